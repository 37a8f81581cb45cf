"""Many Avro values read side by side: where each row stands in a chunk of bytes.

Bytes are only ever read inside the chunk, and lengths and counts are held against the end of their
row before they are used: damaged bytes give a CorruptError, never a crash or an absurd allocation.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from lakewright.errors import CorruptError

Ints = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]
Words = npt.NDArray[np.uint64]

# Eight bytes are read wherever a row may stand, and a varint may look at two more.
_PADDING = 24
_U = np.uint64
_HIGH_BITS = _U(0x8080808080808080)
_LOW_BITS = _U(0x7F7F7F7F7F7F7F7F)
_ONES = _U(0x0101010101010101)


class Chunk:
    """The bytes of some rows, padded so that a look ahead never leaves them."""

    def __init__(self, content: memoryview) -> None:
        """Copy the bytes of a chunk."""
        self.data: Bytes = np.zeros((len(content) + _PADDING) // 8 * 8, np.uint8)
        self.data[: len(content)] = np.frombuffer(content, np.uint8)
        self.words: Words = self.data.view("<u8")

    @cached_property
    def last_bytes(self) -> Ints:
        """Where a varint would end: all bytes below 0x80."""
        return np.flatnonzero(self.data < 0x80)


class Rows:
    """Where each row stands (`at`) and ends (`limit`); both ascend. There is at least one row."""

    __slots__ = ("at", "chunk", "limit")

    def __init__(self, chunk: Chunk, at: Ints, limit: Ints) -> None:
        """Stand at these positions of a chunk; `at` must not be shared."""
        self.chunk = chunk
        self.at = at
        self.limit = limit

    def __len__(self) -> int:
        """The number of rows."""
        return len(self.at)

    def some(self, which: npt.NDArray[Any]) -> Rows:
        """A part of the rows; moving it on does not move these."""
        return Rows(self.chunk, self.at[which], self.limit[which])

    def move(self, length: Ints | int) -> None:
        """Move each row on."""
        self.at = self.at + length

    def byte(self) -> Bytes:
        """The byte at which each row stands; does not move on."""
        return self.chunk.data.take(self.at)

    def word(self) -> Words:
        """The eight bytes from where each row stands, little-endian; does not move on."""
        index = self.at >> 3
        shift = ((self.at & 7) << 3).view(np.uint64)
        low, high = self.chunk.words.take(index), self.chunk.words.take(index + 1)
        # A shift by all 64 bits gives 0, which is what an aligned row needs.
        return (low >> shift) | (high << (_U(64) - shift))

    def varint(self) -> Ints:
        """Read one zig-zag number of each row."""
        first = self.byte()
        if first.max() < 0x80:
            self.move(1)
            plain = first.astype(np.int64)
            return (plain >> 1) ^ -(plain & 1)
        word = self.word()
        stop = ~word & _HIGH_BITS
        lowest = stop & (~stop + _U(1))
        # All bits up to the highest one of the last byte; all 64 where eight bytes do not suffice.
        mask = lowest ^ (lowest - _U(1))
        value = _pack_sevens(word & mask & _LOW_BITS)
        # One bit of each byte of the mask, added up by a multiplication.
        length = ((mask & _ONES) * _ONES >> _U(56)).view(np.int64)
        if not stop.all():
            self._finish_long(np.flatnonzero(stop == 0), value, length)
        self.move(length)
        return ((value >> _U(1)) ^ (~(value & _U(1)) + _U(1))).view(np.int64)

    def _finish_long(self, long: Ints, value: Words, length: Ints) -> None:
        ninth = self.chunk.data.take(self.at[long] + 8).astype(np.uint64)
        more = ninth >= _U(0x80)
        tenth = np.where(more, self.chunk.data.take(self.at[long] + 9), 0).astype(np.uint64)
        if np.any(tenth > _U(1)):
            raise CorruptError("an Avro number has more than 64 bits")
        value[long] |= ((ninth & _U(0x7F)) << _U(56)) | (tenth << _U(63))
        length[long] = np.where(more, 10, 9)

    def counts(self) -> Ints:
        """Read how many items follow: what a block of an array or map starts with."""
        count = self.varint()
        negative = np.flatnonzero(count < 0)
        if len(negative):
            # Then the size of the block in bytes follows, for those who want to jump over it.
            sized = self.some(negative)
            sized.varint()
            self.at[negative] = sized.at
            count[negative] *= -1
        self.check_room(count)
        if count.sum() > len(self.chunk.data):
            raise CorruptError("Avro arrays claim more items than there are bytes")
        return count

    def lengths(self) -> Ints:
        """Read the length of the bytes that follow, which then lie inside the row."""
        length = self.varint()
        self.check_room(length)
        return length

    def check_room(self, needed: Ints | int) -> None:
        """Refuse a value that would reach over the end of its row."""
        if np.any(self.limit - self.at < needed) or np.any(np.less(needed, 0)):
            raise CorruptError("an Avro value reaches over the end of its row")


def _pack_sevens(x: Words) -> Words:
    """Push the seven low bits of each byte together."""
    x = (x & _U(0x007F007F007F007F)) | ((x & _U(0x7F007F007F007F00)) >> _U(1))
    x = (x & _U(0x00003FFF00003FFF)) | ((x & _U(0x3FFF00003FFF0000)) >> _U(2))
    return (x & _U(0x000000000FFFFFFF)) | ((x & _U(0x0FFFFFFF00000000)) >> _U(4))
