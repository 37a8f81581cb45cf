"""Read HFiles: whole ones in memory, and parts of others by ranges of bytes.

A reader needs the index of a file once. It is a small value that callers may keep: a file never
changes. The index says which blocks can hold a key, and only these are read.
"""

from __future__ import annotations

import struct
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakewright.errors import CorruptError, InvalidError
from lakewright.format.hfile.layout import (
    BLOCK_HEADER,
    DATA_MAGIC,
    ENTRY_HEAD,
    ENTRY_OVERHEAD,
    ENTRY_TAIL,
    INDEX_MAGIC,
    INFO_MAGIC,
    KEY_OVERHEAD,
    LAST_KEY,
    META_MAGIC,
    TRAILER_SIZE,
    Codec,
    HFileEntries,
    PlainBytes,
    Trailer,
    ascend_strictly,
    parse_block,
    parse_hadoop_vint,
    parse_info,
    parse_trailer,
)

ReadRange = Callable[[int, int], bytes | memoryview]

_LENGTHS = struct.Struct(">ii")
_ROW_LENGTH = struct.Struct(">H")
_INDEX_ENTRY = struct.Struct(">qi")
# The first range that is read of a file: trailer, file info and a small index.
_TAIL_BYTES = 64 << 10
# Blocks closer together than this are read with what is between them: a request costs more.
_MAX_GAP = 128 << 10
_MAX_RANGE = 8 << 20
# Entries are passed on in batches of about this size.
_BATCH_BYTES = 32 << 20


@dataclass(frozen=True, slots=True, eq=False)
class HFileIndex:
    """What a reader needs of a file before it reads entries.

    - `first_keys` has the first key of each data block, ascending; `offsets` and `sizes` say where
      the blocks are on storage;
    - `meta` has offset and size of each meta block by name.
    """

    codec: Codec
    entries: int
    first_keys: tuple[bytes, ...]
    offsets: tuple[int, ...]
    sizes: tuple[int, ...]
    meta: Mapping[str, tuple[int, int]]
    info: Mapping[str, bytes]

    @property
    def schema_json(self) -> bytes | None:
        """The Avro schema of the values, if the file names one."""
        return self.info.get("schema")

    @property
    def last_key(self) -> bytes | None:
        """The greatest key; None if there are no entries, or the file does not name it."""
        stored = self.info.get(LAST_KEY, b"")
        if len(stored) < _ROW_LENGTH.size:
            return None
        length = _ROW_LENGTH.unpack_from(stored)[0]
        return stored[_ROW_LENGTH.size : _ROW_LENGTH.size + length]


@dataclass(frozen=True, slots=True, eq=False)
class HFile:
    """A file that was read as a whole."""

    entries: HFileEntries
    info: Mapping[str, bytes]
    meta: Mapping[str, bytes] = field(default_factory=dict)


def parse_hfile(data: bytes | memoryview) -> HFile:
    """Parse a whole file."""
    view = memoryview(data).cast("B")
    reader = HFileReader.open(lambda at, length: view[at : at + length], len(view))
    batches = list(reader.scan())
    meta = {name: reader.meta_block(name) or b"" for name in reader.index.meta}
    return HFile(_concat(batches), reader.index.info, meta)


def file_ranges(file: pa.NativeFile) -> ReadRange:
    """Return how ranges of an open file are read."""
    return lambda at, length: file.read_at(length, at)


def load_index(read_range: ReadRange, size: int) -> HFileIndex:
    """Load the index of a file of `size` bytes, by one read or, if the index is large, by two."""
    return HFileReader.open(read_range, size).index


class HFileReader:
    """Reads entries of one file by ranges.

    `read_range(offset, length)` returns the bytes at an offset; fewer than asked for are an error.
    """

    def __init__(
        self, read_range: ReadRange, index: HFileIndex, tail: tuple[int, memoryview] | None = None
    ) -> None:
        """Read with an index that was loaded before; `tail` is a part that needs no reading."""
        self.index = index
        self._read_range = read_range
        self._tail_start, self._tail = tail or (0, memoryview(b""))

    @classmethod
    def open(cls, read_range: ReadRange, size: int) -> HFileReader:
        """Load the index; small files are read as a whole by that."""
        if size < TRAILER_SIZE:
            raise CorruptError("an HFile is too short for its trailer", size=size)
        start = max(0, size - _TAIL_BYTES)
        tail = _exactly(read_range, start, size - start)
        try:
            trailer = parse_trailer(bytes(tail[-TRAILER_SIZE:]))
            body = size - TRAILER_SIZE
            if not 0 <= trailer.index_offset <= trailer.info_offset < body:
                raise CorruptError("the index of an HFile is outside of it", size=size)
            if trailer.index_offset < start:
                start = trailer.index_offset
                tail = _exactly(read_range, start, size - start)
            return cls(read_range, _index(trailer, tail[: body - start], start), (start, tail))
        except (struct.error, IndexError, UnicodeDecodeError) as error:
            raise CorruptError("an HFile is damaged", size=size, cause=str(error)) from error

    def scan(self, start: bytes = b"", stop: bytes | None = None) -> Iterator[HFileEntries]:
        """Yield the entries with keys from `start` on and below `stop`, in batches."""
        is_whole = not start and stop is None
        count = 0
        for batch in self._batches(self._blocks_between(start, stop)):
            found = batch if is_whole else _between(batch, [(start, stop)])
            count += len(found)
            if len(found):
                yield found
        if is_whole and count != self.index.entries:
            raise CorruptError("an HFile has another number of entries than it says")

    def look_up(self, keys: pa.Array) -> pa.Array:
        """Return the value of each key, null where the file does not have it.

        Args:
            keys: any keys, in any order, as text or binary; nulls have no value.
        """
        entries = self.entries_with(keys)
        return entries.values.take(pc.index_in(keys.cast(pa.binary()), value_set=entries.keys))

    def entries_with(self, keys: pa.Array) -> HFileEntries:
        """Return the entries of those keys that the file has, ascending."""
        distinct = pc.unique(keys.cast(pa.binary())).drop_null()
        ordered = distinct.take(pc.array_sort_indices(distinct))
        ordered_keys = ordered.to_pylist()
        found = []
        for batch in self._batches(self._blocks_with(ordered_keys)):
            first = bisect_left(ordered_keys, batch.keys[0].as_py())
            end = bisect_right(ordered_keys, batch.keys[-1].as_py())
            at = pc.index_in(ordered[first:end], value_set=batch.keys).drop_null()
            found.append(HFileEntries(batch.keys.take(at), batch.values.take(at)))
        return _concat(found)

    def with_prefixes(self, prefixes: Iterable[bytes]) -> Iterator[HFileEntries]:
        """Yield the entries whose keys start with one of the prefixes, in batches."""
        ranges = [(prefix, _after_prefix(prefix)) for prefix in _disjoint(prefixes)]
        blocks: set[int] = set()
        for start, stop in ranges:
            blocks.update(self._blocks_between(start, stop))
        for batch in self._batches(sorted(blocks)):
            found = _between(batch, ranges)
            if len(found):
                yield found

    def meta_block(self, name: str) -> bytes | None:
        """Return the content of a meta block, or None if the file has none of this name."""
        if name not in self.index.meta:
            return None
        offset, size = self.index.meta[name]
        data = self._bytes_at(offset, size)
        payload, _ = parse_block(data, 0, META_MAGIC, self.index.codec, PlainBytes())
        return bytes(payload)

    def _blocks_between(self, start: bytes, stop: bytes | None) -> range:
        first = max(bisect_right(self.index.first_keys, start) - 1, 0)
        end = None if stop is None else bisect_left(self.index.first_keys, stop)
        return range(first, len(self.index.offsets) if end is None else end)

    def _blocks_with(self, keys: Sequence[bytes]) -> list[int]:
        """Return the blocks that can hold one of some ascending keys."""
        last_key = self.index.last_key
        end = len(keys) if last_key is None else bisect_right(keys, last_key)
        bounds = [bisect_left(keys, first, hi=end) for first in self.index.first_keys]
        return [number for number, (at, stop) in enumerate(pairwise([*bounds, end])) if at < stop]

    def _batches(self, blocks: Sequence[int]) -> Iterator[HFileEntries]:
        """Yield the entries of some blocks, whose numbers ascend."""
        for numbers, payloads in self._payloads(blocks):
            batch, counts = _entries(payloads)
            if not ascend_strictly(batch.keys):
                raise CorruptError("the keys of an HFile do not ascend")
            self._check_places(numbers, batch.keys, counts)
            if len(batch):
                yield batch

    def _check_places(self, numbers: Sequence[int], keys: pa.Array, counts: Sequence[int]) -> None:
        """Check that the keys of each block are where the index leads to."""
        first_keys = self.index.first_keys
        ends = list(accumulate(counts, initial=0))
        for number, start, end in zip(numbers, ends, ends[1:], strict=False):
            stop = first_keys[number + 1 : number + 2]
            if start < end and (
                keys[start].as_py() < first_keys[number]
                or (stop and keys[end - 1].as_py() >= stop[0])
            ):
                raise CorruptError("a key of an HFile is not where its index leads to")

    def _payloads(
        self, blocks: Sequence[int]
    ) -> Iterator[tuple[list[int], list[bytes | memoryview]]]:
        """Yield numbers and payloads of blocks in batches."""
        plain_bytes = PlainBytes()
        numbers: list[int] = []
        payloads: list[bytes | memoryview] = []
        size = 0
        for request in self._requests(blocks):
            start = self.index.offsets[request[0]]
            end = self.index.offsets[request[-1]] + self.index.sizes[request[-1]]
            data = self._bytes_at(start, end - start)
            for number in request:
                at = self.index.offsets[number] - start
                own = data[at : at + self.index.sizes[number]]
                payload, _ = parse_block(own, 0, DATA_MAGIC, self.index.codec, plain_bytes)
                numbers.append(number)
                payloads.append(payload)
                size += len(payload)
                if size >= _BATCH_BYTES:
                    yield numbers, payloads
                    numbers, payloads, size = [], [], 0
        if numbers:
            yield numbers, payloads

    def _requests(self, blocks: Sequence[int]) -> Iterator[list[int]]:
        """Group blocks that are read together."""
        offsets, sizes = self.index.offsets, self.index.sizes
        group: list[int] = []
        for number in blocks:
            end = offsets[number] + sizes[number]
            if group and (
                offsets[number] - offsets[group[-1]] - sizes[group[-1]] > _MAX_GAP
                or end - offsets[group[0]] > _MAX_RANGE
            ):
                yield group
                group = []
            group.append(number)
        if group:
            yield group

    def _bytes_at(self, offset: int, length: int) -> memoryview:
        if offset >= self._tail_start and self._tail:
            at = offset - self._tail_start
            return self._tail[at : at + length]
        return _exactly(self._read_range, offset, length)


def _concat(batches: Sequence[HFileEntries]) -> HFileEntries:
    if len(batches) == 1:
        return batches[0]
    empty = pa.array([], pa.binary())
    try:
        return HFileEntries(
            pa.concat_arrays([empty, *(batch.keys for batch in batches)]),
            pa.concat_arrays([empty, *(batch.values for batch in batches)]),
        )
    except pa.ArrowInvalid as error:
        raise InvalidError("the entries of an HFile are too many to hold at once") from error


def _between(batch: HFileEntries, ranges: Sequence[tuple[bytes, bytes | None]]) -> HFileEntries:
    """Return the entries of a batch in some ranges of keys, which ascend and do not overlap."""
    keys = batch.keys.to_pylist()
    first = max(bisect_right(ranges, keys[0], key=_range_start) - 1, 0)
    found = []
    for start, stop in ranges[first:]:
        at = bisect_left(keys, start)
        end = len(keys) if stop is None else bisect_left(keys, stop)
        if at == len(keys):
            break
        found.append(np.arange(at, end))
    at_rows = pa.array(np.concatenate(found) if found else [], pa.int64())
    return HFileEntries(batch.keys.take(at_rows), batch.values.take(at_rows))


def _range_start(span: tuple[bytes, bytes | None]) -> bytes:
    return span[0]


def _disjoint(prefixes: Iterable[bytes]) -> Iterator[bytes]:
    """Yield ascending prefixes without those that start with another one."""
    last: bytes | None = None
    for prefix in sorted(prefixes):
        if last is None or not prefix.startswith(last):
            last = prefix
            yield prefix


def _after_prefix(prefix: bytes) -> bytes | None:
    """Return the least key above all keys with a prefix; None if there is none."""
    stem = prefix.rstrip(b"\xff")
    return stem[:-1] + bytes([stem[-1] + 1]) if stem else None


def _exactly(read_range: ReadRange, offset: int, length: int) -> memoryview:
    data = memoryview(read_range(offset, length)).cast("B")
    if len(data) != length:
        raise CorruptError("an HFile ends too early", offset=offset, length=length)
    return data


def _index(trailer: Trailer, data: memoryview, start: int) -> HFileIndex:
    """Parse the part of a file from `start`, the index or before it, to the trailer."""
    plain_bytes = PlainBytes()

    def block_at(at: int, magic: bytes) -> tuple[bytes, int]:
        payload, end = parse_block(data, at, magic, trailer.codec, plain_bytes)
        return bytes(payload), end

    root, after_root = block_at(trailer.index_offset - start, INDEX_MAGIC)
    blocks = list(_index_entries(root, trailer.data_blocks))
    _check_blocks([(offset, size) for offset, size, _ in blocks], trailer.index_offset)
    keys = [_row(key) for _, _, key in blocks]
    if any(a >= b for a, b in pairwise(keys)):
        raise CorruptError("the keys of an index of an HFile do not ascend")
    meta = {}
    if trailer.meta_blocks:
        for offset, size, name in _index_entries(
            block_at(after_root, INDEX_MAGIC)[0], trailer.meta_blocks
        ):
            meta[name.decode()] = (offset, size)
        _check_blocks(list(meta.values()), trailer.index_offset)
    info, _ = block_at(trailer.info_offset - start, INFO_MAGIC)
    index = HFileIndex(
        codec=trailer.codec,
        entries=trailer.entries,
        first_keys=tuple(keys),
        offsets=tuple(offset for offset, _, _ in blocks),
        sizes=tuple(size for _, size, _ in blocks),
        meta=meta,
        info=parse_info(info),
    )
    if keys and index.last_key is not None and index.last_key < keys[-1]:
        raise CorruptError("the last key of an HFile is not the greatest", key=index.last_key)
    return index


def _index_entries(index: bytes, count: int) -> Iterator[tuple[int, int, bytes]]:
    at = 0
    if count > len(index) // _INDEX_ENTRY.size:
        raise CorruptError("an index of an HFile ends too early", blocks=count)
    for _ in range(count):
        offset, size = _INDEX_ENTRY.unpack_from(index, at)
        length, at = parse_hadoop_vint(index, at + _INDEX_ENTRY.size)
        if not 0 <= length <= len(index) - at:
            raise CorruptError("an index of an HFile has an impossible key")
        yield offset, size, index[at : at + length]
        at += length
    if at != len(index):
        raise CorruptError("an index of an HFile goes on after its end")


def _row(key: bytes) -> bytes:
    length = _ROW_LENGTH.unpack_from(key)[0]
    row = key[_ROW_LENGTH.size : _ROW_LENGTH.size + length]
    if len(row) != length:
        raise CorruptError("an index of an HFile has an impossible key")
    return row


def _check_blocks(blocks: Sequence[tuple[int, int]], end: int) -> None:
    at = 0
    for offset, size in blocks:
        if offset < at or size < BLOCK_HEADER.size or offset + size > end:
            raise CorruptError("a block of an HFile is outside of it", offset=offset, size=size)
        at = offset + size


def _entries(payloads: Sequence[bytes | memoryview]) -> tuple[HFileEntries, list[int]]:
    """Return the entries of some data blocks, and how many each block has."""
    data = payloads[0] if len(payloads) == 1 else b"".join(payloads)
    starts: list[int] = []
    counts: list[int] = []
    at = 0
    try:
        for payload in payloads:
            before = len(starts)
            at = _entry_starts(data, at, at + len(payload), starts)
            counts.append(len(starts) - before)
    except struct.error as error:
        raise CorruptError("an entry of an HFile is cut off") from error
    if not starts:
        return _concat([]), counts
    heads = np.array(starts, np.int64)
    stored = np.frombuffer(data, np.uint8)[heads[:, None] + np.arange(ENTRY_HEAD.size)]
    lengths = np.ascontiguousarray(stored[:, : _LENGTHS.size]).view(">i4").astype(np.int64)
    rows = np.ascontiguousarray(stored[:, _LENGTHS.size :]).view(">u2")[:, 0].astype(np.int64)
    if np.any(lengths[:, 0] != rows + KEY_OVERHEAD):
        raise CorruptError("an entry of an HFile has an impossible length")
    # Key, value and what is between them, one after the other, form a binary array over the data.
    offsets = np.empty((len(heads), 4), np.int32)
    offsets[:, 0] = heads + ENTRY_HEAD.size
    offsets[:, 1] = offsets[:, 0] + rows
    offsets[:, 2] = offsets[:, 1] + len(ENTRY_TAIL)
    offsets[:, 3] = offsets[:, 2] + lengths[:, 1]
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    parts = pa.Array.from_buffers(pa.binary(), offsets.size - 1, buffers)
    numbers = np.arange(0, offsets.size, 4)
    keys, values = (parts.take(pa.array(numbers + place)) for place in (0, 2))
    return HFileEntries(keys, values), counts


def _entry_starts(data: bytes | memoryview, at: int, end: int, starts: list[int]) -> int:
    unpack, add = _LENGTHS.unpack_from, starts.append
    extra = ENTRY_OVERHEAD - KEY_OVERHEAD
    while at < end:
        key_length, value_length = unpack(data, at)
        if key_length < KEY_OVERHEAD or value_length < 0:
            raise CorruptError("an entry of an HFile has an impossible length")
        add(at)
        # Lengths of key and value, and the MVCC version, which is one byte.
        at += key_length + value_length + extra
    if at != end:
        raise CorruptError("an entry of an HFile reaches over its block")
    return at
