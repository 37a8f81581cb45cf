"""Record positions: the rows of the base file that the records of a log block replace.

On disk they are a 64-bit Roaring bitmap in its portable format, as Base64 text. All integers in it
are little-endian. The bitmap holds a bucket, which is a 32-bit bitmap, for each distinct upper half
of the positions. A bucket holds a container for each distinct upper half of those 32 bits. A
container is an array, a bitmap, or a list of runs.
"""

from __future__ import annotations

import base64
import binascii
import struct
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from lakewright.errors import CorruptError
from lakewright.format.log_block import Header, LogBlock

Positions = npt.NDArray[np.uint64]
_LowBits = npt.NDArray[np.uint16]

_PLAIN_COOKIE = 12346
_RUN_COOKIE = 12347
# A container with more values than this is a bitmap of 2^16 bits, not an array.
_MAX_ARRAY_VALUES = 4096
_BITMAP_BYTES = 8192
# Buckets with runs store offsets only if they have at least this many containers.
_MIN_CONTAINERS_WITH_OFFSETS = 4


@dataclass(frozen=True, slots=True, eq=False)
class RecordPositions:
    """Row numbers in the base file of `base_instant`, ascending, one for each record."""

    base_instant: str
    positions: Positions

    def headers(self) -> dict[Header, str]:
        """Return the two block headers that record them."""
        return {
            Header.RECORD_POSITIONS: format_positions(self.positions),
            Header.BASE_FILE_INSTANT_TIME_OF_RECORD_POSITIONS: self.base_instant,
        }


def record_positions(block: LogBlock, records: int) -> RecordPositions | None:
    """Return the positions of a block's `records` records; None if it does not record them."""
    text = block.headers.get(Header.RECORD_POSITIONS)
    base = block.headers.get(Header.BASE_FILE_INSTANT_TIME_OF_RECORD_POSITIONS)
    if not text or not base:
        return None
    try:
        return RecordPositions(base, parse_positions(text, records))
    except CorruptError as error:
        raise block.corrupt(error.message, **error.facts) from error


def parse_positions(text: str, max_positions: int) -> Positions:
    """Parse the positions, ascending; more than `max_positions` are an error.

    A run of a few bytes can represent 2^16 positions, so the length of the text is no bound. The
    cardinalities of the containers are therefore checked before the containers are expanded.
    """
    try:
        reader = _Reader(base64.b64decode(text, validate=True))
    except (binascii.Error, ValueError) as error:
        raise CorruptError("record positions are not Base64", cause=str(error)) from error
    (buckets,) = reader.numbers("<Q")
    parts: list[Positions] = [np.zeros(0, np.uint64)]
    # The bucket count is untrusted. Each bucket takes bytes: a wrong count runs into the end.
    while len(parts) <= buckets:
        (high,) = reader.numbers("<I")
        low = np.concatenate([np.zeros(0, np.uint64), *_containers(reader, max_positions)])
        max_positions -= len(low)
        parts.append((np.uint64(high) << np.uint64(32)) | low)
    if reader.at != len(reader.data):
        raise CorruptError("record positions go on after their end")
    positions = np.concatenate(parts)
    if np.any(positions[1:] <= positions[:-1]):
        raise CorruptError("record positions do not ascend")
    return positions


def format_positions(positions: Positions) -> str:
    """Return the text of the distinct positions; the inverse of `parse_positions`."""
    values = np.sort(positions)
    values = values[np.append(True, values[1:] != values[:-1])] if len(values) else values
    buckets = _split(values, 32)
    parts = [struct.pack("<Q", len(buckets))]
    for high, low in buckets:
        parts.append(struct.pack("<I", high) + _format_bitmap(low))
    return base64.b64encode(b"".join(parts)).decode("ascii")


class _Reader:
    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def take(self, length: int) -> bytes:
        if length > len(self.data) - self.at:
            raise CorruptError("record positions are cut off")
        self.at += length
        return self.data[self.at - length : self.at]

    def numbers(self, form: str) -> tuple[int, ...]:
        return struct.unpack(form, self.take(struct.calcsize(form)))

    def shorts(self, count: int) -> _LowBits:
        return np.frombuffer(self.take(2 * count), "<u2")


def _containers(reader: _Reader, limit: int) -> Iterator[Positions]:
    (cookie,) = reader.numbers("<I")
    runs = np.zeros(0, bool)
    if cookie & 0xFFFF == _RUN_COOKIE:
        count = (cookie >> 16) + 1
        flags = np.frombuffer(reader.take((count + 7) // 8), np.uint8)
        runs = np.unpackbits(flags, count=count, bitorder="little").astype(bool)
    elif cookie == _PLAIN_COOKIE:
        (count,) = reader.numbers("<I")
        if count > 1 << 16:
            raise CorruptError("record positions have too many containers", count=count)
        runs = np.zeros(count, bool)
    else:
        raise CorruptError("record positions are no Roaring bitmap", cookie=cookie)
    descriptions = reader.shorts(2 * count).reshape(count, 2)
    # Cardinalities are stored minus one.
    claimed = int(descriptions[:, 1].sum(dtype=np.int64)) + count
    if claimed > limit:
        raise CorruptError(
            "there are more record positions than records", claimed=claimed, limit=limit
        )
    if cookie == _PLAIN_COOKIE or count >= _MIN_CONTAINERS_WITH_OFFSETS:
        reader.take(4 * count)
    for (key, cardinality), is_run in zip(descriptions.tolist(), runs.tolist(), strict=True):
        low = _container(reader, cardinality + 1, is_run=is_run)
        yield (np.uint64(key) << np.uint64(16)) | low.astype(np.uint64)


def _container(reader: _Reader, cardinality: int, *, is_run: bool) -> npt.NDArray[np.int64]:
    if is_run:
        (count,) = reader.numbers("<H")
        pairs = reader.shorts(2 * count).astype(np.int64).reshape(count, 2)
        start, length = pairs[:, 0], pairs[:, 1] + 1
        if length.sum() != cardinality or np.any(start + length > 1 << 16):
            raise CorruptError("record positions have an impossible run")
        within = np.arange(cardinality) - np.repeat(np.cumsum(length) - length, length)
        return np.repeat(start, length) + within
    if cardinality <= _MAX_ARRAY_VALUES:
        return reader.shorts(cardinality).astype(np.int64)
    bits = np.frombuffer(reader.take(_BITMAP_BYTES), np.uint8)
    low = np.flatnonzero(np.unpackbits(bits, bitorder="little"))
    if len(low) != cardinality:
        raise CorruptError("record positions have another number than they say")
    return low


def _split(values: Positions, bits: int) -> list[tuple[int, Positions]]:
    """Group ascending values by their upper bits; the groups hold only the lower `bits` bits."""
    if not len(values):
        return []
    high = values >> np.uint64(bits)
    steps = np.flatnonzero(high[1:] != high[:-1]) + 1
    low = values & np.uint64((1 << bits) - 1)
    keys = high[np.append(0, steps)].tolist()
    return list(zip(keys, np.split(low, steps), strict=True))


def _format_bitmap(values: Positions) -> bytes:
    containers = _split(values, 16)
    descriptions = b"".join(struct.pack("<HH", key, len(low) - 1) for key, low in containers)
    stored = [_format_container(low.astype("<u2")) for _, low in containers]
    sizes = np.array([len(container) for container in stored[:-1]], np.int64)
    first = 8 + len(descriptions) + 4 * len(stored)
    offsets = first + np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes)])
    head = struct.pack("<II", _PLAIN_COOKIE, len(stored))
    return b"".join((head, descriptions, offsets.astype("<u4").tobytes(), *stored))


def _format_container(low: _LowBits) -> bytes:
    if len(low) <= _MAX_ARRAY_VALUES:
        return low.tobytes()
    bits = np.zeros(1 << 16, np.uint8)
    bits[low] = 1
    return np.packbits(bits, bitorder="little").tobytes()
