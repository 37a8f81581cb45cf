"""Pass over Avro values without building them, and find where the items of arrays start."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from lakewright.errors import CorruptError
from lakewright.format.avro_arrow import AvroType
from lakewright.format.avro_cursor import Ints, Rows

_FIXED_WIDTH = {"null": 0, "boolean": 1, "float": 4, "double": 8}
_VARINTS = frozenset({"int", "long", "enum"})
# Below this many rows one by one is faster than side by side.
_FEW = 32


def skip(kind: AvroType, rows: Rows) -> None:
    """Move all rows over one value."""
    if not len(rows):
        return
    holds = present(kind, rows)
    if holds is None:
        _skip_value(kind, rows)
    elif holds.any():
        inner = rows.some(holds)
        _skip_value(kind, inner)
        rows.at[holds] = inner.at


def present(kind: AvroType, rows: Rows) -> npt.NDArray[np.bool_] | None:
    """Read the branch of a union: which rows hold a value and not null; None if all do."""
    if kind.branch is None:
        return None
    branch = rows.varint()
    holds: npt.NDArray[np.bool_] = branch == kind.branch
    if holds.all():
        return None
    if np.any(branch[~holds] != kind.null_branch):
        raise CorruptError("an Avro union has no such branch")
    return holds


def items(item: AvroType, rows: Rows) -> tuple[Ints, Ints]:
    """Move over arrays: how many items each row has, and where all items start."""
    total = np.zeros(len(rows), np.int64)
    starts: list[Ints] = [np.zeros(0, np.int64)]
    active = np.arange(len(rows))
    while len(active):
        block = rows.some(active)
        count = block.counts()
        starts += _item_starts(item, block, count)
        rows.at[active] = block.at
        total[active] += count
        active = active[count > 0]
    # Items follow each other in the bytes as they do in the rows.
    return total, np.sort(np.concatenate(starts))


def varint_at(data: bytes | memoryview, at: int) -> tuple[int, int]:
    """A single zig-zag number, and where it ends; IndexError if it does not."""
    value = data[at]
    at += 1
    if value < 0x80:
        return (value >> 1) ^ -(value & 1), at
    value &= 0x7F
    shift = 7
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), at
        shift += 7
        if shift > 63:
            raise CorruptError("an Avro number has more than 64 bits")


def _width(kind: AvroType) -> int | None:
    """The number of bytes of every value, if that is one number."""
    return kind.size if kind.kind == "fixed" else _FIXED_WIDTH.get(kind.kind)


def _skip_value(kind: AvroType, rows: Rows) -> None:
    width = _width(kind)
    if width is not None:
        rows.move(width)
    elif kind.kind in _VARINTS:
        rows.varint()
    elif kind.kind in ("bytes", "string"):
        length = rows.lengths()
        rows.move(length)
    elif kind.kind in ("array", "map"):
        items(kind.children[0].type, rows)
    else:
        for child in kind.children:
            skip(child.type, rows)


def _item_starts(item: AvroType, block: Rows, count: Ints) -> Iterator[Ints]:
    width = _width(item)
    if item.branch is None and width is not None:
        block.check_room(count * width)
        yield np.repeat(block.at, count) + _within(count) * width
        block.move(count * width)
    elif item.branch is None and item.kind in _VARINTS:
        yield _varint_starts(block, count)
    else:
        yield from _stepped_starts(item, block, count)


def _stepped_starts(item: AvroType, block: Rows, count: Ints) -> Iterator[Ints]:
    """The first item of all rows, then the second one of those that have it, and so on."""
    for passed in range(int(count.max())):
        live = np.flatnonzero(count > passed)
        if len(live) < _FEW:
            for row in live.tolist():
                yield _starts_of_one(item, block, row, int(count[row]) - passed)
            return
        part = block.some(live)
        part.check_room(1)
        yield part.at.copy()
        skip(item, part)
        block.at[live] = part.at


def _starts_of_one(item: AvroType, block: Rows, row: int, count: int) -> Ints:
    data = block.chunk.data.data
    at = int(block.at[row])
    starts = []
    for _ in range(count):
        starts.append(at)
        at = _skip_one(item, data, at)
    if at > block.limit[row]:
        raise CorruptError("an Avro array reaches over the end of its row")
    block.at[row] = at
    return np.array(starts, np.int64)


def _varint_starts(block: Rows, count: Ints) -> Ints:
    last_bytes = block.chunk.last_bytes
    first = np.searchsorted(last_bytes, block.at)
    within = _within(count)
    before = last_bytes.take(np.repeat(first, count) + within - 1)
    starts = np.where(within == 0, np.repeat(block.at, count), before + 1)
    filled = count > 0
    block.at[filled] = last_bytes.take((first + count - 1)[filled]) + 1
    block.check_room(0)
    return starts


def _within(count: Ints) -> Ints:
    """For each item its position in its row."""
    return np.arange(count.sum()) - np.repeat(np.cumsum(count) - count, count)


def _skip_one(kind: AvroType, data: memoryview, at: int) -> int:
    if kind.branch is not None:
        branch, at = varint_at(data, at)
        if branch != kind.branch:
            if branch != kind.null_branch:
                raise CorruptError("an Avro union has no such branch")
            return at
    width = _width(kind)
    if width is not None:
        return at + width
    if kind.kind in _VARINTS:
        return varint_at(data, at)[1]
    if kind.kind in ("bytes", "string"):
        length, at = varint_at(data, at)
        if length < 0:
            raise CorruptError("an Avro length is negative")
        return at + length
    if kind.kind in ("array", "map"):
        return _skip_items_of_one(kind.children[0].type, data, at)
    for child in kind.children:
        at = _skip_one(child.type, data, at)
    return at


def _skip_items_of_one(item: AvroType, data: memoryview, at: int) -> int:
    while True:
        count, at = varint_at(data, at)
        if count == 0:
            return at
        if count < 0:
            _, at = varint_at(data, at)
        # Each item takes a byte or more: a count that lies runs into the end of the chunk.
        for _ in range(abs(count)):
            at = _skip_one(item, data, at)
            if at > len(data):
                raise CorruptError("an Avro array reaches over the end of its row")
