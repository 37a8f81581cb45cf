"""Bloom filters of base files: which record keys a file may hold.

Two kinds exist. A SIMPLE filter is one row of bits. A DYNAMIC_V0 filter starts with one row, sized
for a number of keys, and adds a row whenever the last one is full, up to a limit. Further keys are
added to the rows in turn, which raises the rate of false positives but keeps the file small.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lakewright.errors import CorruptError, InvalidError, UnsupportedError
from lakewright.model.hashing import MurmurKeys, murmur_keys

_VERSION = -1
_MURMUR = 1
_FILTER = struct.Struct(">iibi")
_DYNAMIC = struct.Struct(">iii")
# More than any writer uses; a header that names more is damaged.
_MAX_HASHES = 1000

Bits = npt.NDArray[np.bool_]


class BloomType(StrEnum):
    """The kinds of filters, with the names that base files use."""

    SIMPLE = "SIMPLE"
    DYNAMIC = "DYNAMIC_V0"


@dataclass(frozen=True, slots=True)
class BloomSettings:
    """Kind and size of a new filter; the defaults are Hudi's."""

    kind: BloomType = BloomType.DYNAMIC
    entries: int = 60_000
    false_positives: float = 1e-9
    max_entries: int = 100_000

    @property
    def bits(self) -> int:
        """The number of bits of a row."""
        exact = self.entries * -math.log(self.false_positives) / math.log(2) ** 2
        return math.ceil(exact)

    @property
    def hashes(self) -> int:
        """The number of bits that each key sets."""
        return math.ceil(math.log(2) * self.bits / self.entries)

    def __post_init__(self) -> None:
        if self.entries < 1 or not 0 < self.false_positives < 1:
            raise InvalidError(
                "a bloom filter cannot be made like this",
                entries=self.entries,
                false_positives=self.false_positives,
            )


@dataclass(frozen=True, slots=True, eq=False)
class BloomFilter:
    """A filter; `rows` is a matrix with a flag for each bit of each row.

    `row_entries` and `in_last_row` are 0 for a SIMPLE filter.
    """

    kind: BloomType
    hashes: int
    rows: npt.NDArray[np.bool_]
    row_entries: int = 0
    in_last_row: int = 0

    def may_contain(self, keys: pa.Array) -> npt.NDArray[np.bool_]:
        """For each key, whether it may have been added; False is certain."""
        result = np.zeros(len(keys), bool)
        for index, bits in _bits_of(keys, self.hashes, self.rows.shape[1]):
            hits = np.ones((len(self.rows), len(index)), bool)
            for bit in bits:
                hits &= self.rows[:, bit]
            result[index] = hits.any(axis=0)
        return result


def build_bloom(keys: pa.Array, settings: BloomSettings) -> BloomFilter:
    """Return the filter that results from adding these keys in this order."""
    if keys.null_count:
        raise InvalidError("a record key is null")
    row_of, rows, in_last_row = _rows_of(len(keys), settings)
    flags = np.zeros((rows, settings.bits), bool)
    flat = flags.reshape(-1)
    for index, bits in _bits_of(keys, settings.hashes, settings.bits):
        start = row_of[index] * settings.bits
        for bit in bits:
            flat[start + bit] = True
    if settings.kind is BloomType.SIMPLE:
        return BloomFilter(settings.kind, settings.hashes, flags)
    return BloomFilter(settings.kind, settings.hashes, flags, settings.entries, in_last_row)


def bloom_of_all_keys() -> BloomFilter:
    """Return the smallest filter that may contain any key: a reader that needs a filter has one."""
    return BloomFilter(BloomType.SIMPLE, hashes=1, rows=np.ones((1, 8), bool))


def parse_bloom(data: bytes, kind: BloomType) -> BloomFilter:
    """Parse a stored filter."""
    try:
        return _parse(data, kind)
    except struct.error as error:
        raise CorruptError("a bloom filter is cut off", size=len(data)) from error


def format_bloom(bloom: BloomFilter) -> bytes:
    """Return the stored form of a filter; the inverse of `parse_bloom`."""
    head = _FILTER.pack(_VERSION, bloom.hashes, _MURMUR, bloom.rows.shape[1])
    rows = b"".join(head + np.packbits(row, bitorder="little").tobytes() for row in bloom.rows)
    if bloom.kind is BloomType.SIMPLE:
        return rows
    return head + _DYNAMIC.pack(bloom.row_entries, bloom.in_last_row, len(bloom.rows)) + rows


def _bits_of(
    keys: pa.Array, hashes: int, size: int
) -> Iterator[tuple[npt.NDArray[np.int64], Iterator[npt.NDArray[np.uint32]]]]:
    """Yield groups of keys: their indexes, and for each hash the bit that each key sets."""
    for group in murmur_keys(keys):
        yield group.index, _bits_of_group(group, hashes, np.uint32(size))


def _bits_of_group(
    group: MurmurKeys, hashes: int, size: np.uint32
) -> Iterator[npt.NDArray[np.uint32]]:
    value = np.zeros(len(group.index), np.uint32)
    for _ in range(hashes):
        value = group.hash(value)
        # As in Java: the absolute value of the remainder of a signed hash.
        magnitude = np.abs(value.view(np.int32)).view(np.uint32)
        yield magnitude - magnitude // size * size


def _rows_of(count: int, settings: BloomSettings) -> tuple[npt.NDArray[np.int64], int, int]:
    """Return the row of each key, the number of rows, and the key count of the last row."""
    order = np.arange(count)
    if settings.kind is BloomType.SIMPLE:
        return np.zeros(count, np.int64), 1, 0
    size = settings.entries
    max_rows = max(1, math.ceil(settings.max_entries / size))
    rows = min(max_rows, max(1, math.ceil(count / size)))
    row_of = order // size
    # Once all rows are full, keys go to the rows in turn. As in Hudi, row 0 gets the first two.
    overflow = order >= max_rows * size
    row_of[overflow] = np.maximum(order[overflow] - max_rows * size - 1, 0) % max_rows
    return row_of, rows, count - (rows - 1) * size


def _parse(data: bytes, kind: BloomType) -> BloomFilter:
    if kind is BloomType.SIMPLE:
        row, end = _parse_row(data, 0)
        _expect_end(data, end)
        return BloomFilter(kind, row.hashes, row.flags[None, :])
    head = _parse_head(data, 0)
    entries, in_last_row, count = _DYNAMIC.unpack_from(data, _FILTER.size)
    if entries < 1 or in_last_row < 0 or not 0 < count <= len(data) // _FILTER.size:
        raise CorruptError("a bloom filter has an impossible number of rows", rows=count)
    at = _FILTER.size + _DYNAMIC.size
    rows = []
    for _ in range(count):
        row, at = _parse_row(data, at)
        if (row.hashes, len(row.flags)) != head:
            raise CorruptError("the rows of a bloom filter differ in size")
        rows.append(row.flags)
    _expect_end(data, at)
    return BloomFilter(kind, head[0], np.stack(rows), entries, in_last_row)


@dataclass(frozen=True, slots=True, eq=False)
class _Row:
    hashes: int
    flags: Bits


def _parse_head(data: bytes, at: int) -> tuple[int, int]:
    version, hashes, hash_type, size = _FILTER.unpack_from(data, at)
    if version != _VERSION or hash_type != _MURMUR:
        raise UnsupportedError("a bloom filter of another kind", version=version, hash=hash_type)
    if not 0 < hashes <= _MAX_HASHES or size < 1:
        raise CorruptError("a bloom filter has an impossible size", hashes=hashes, bits=size)
    return hashes, size


def _parse_row(data: bytes, at: int) -> tuple[_Row, int]:
    hashes, size = _parse_head(data, at)
    start = at + _FILTER.size
    end = start + (size + 7) // 8
    if end > len(data):
        raise CorruptError("a bloom filter is cut off", size=len(data))
    packed = np.frombuffer(data, np.uint8)[start:end]
    flags = np.unpackbits(packed, count=size, bitorder="little").view(np.bool_)
    return _Row(hashes, flags), end


def _expect_end(data: bytes, end: int) -> None:
    if end != len(data):
        raise CorruptError("a bloom filter goes on after its end", size=len(data))
