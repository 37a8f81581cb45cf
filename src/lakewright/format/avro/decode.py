"""Decode Avro rows to Arrow columns, many rows at a time.

Every row has a cursor in a chunk of bytes, and all cursors are at the same field of the schema. A
step reads that field of every row with a few array operations and advances the cursors. At the end
every cursor must be at the end of its row.

Reads never leave the chunk, and lengths and counts are checked against the end of their row before
they are used: damaged bytes raise a CorruptError and cause no crash and no huge allocation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lakewright.errors import CorruptError
from lakewright.format.avro.schema import AvroField, AvroType

Ints = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]
Words = npt.NDArray[np.uint64]

# `word` reads eight bytes at any position, and a varint may take two more.
_PADDING = 24
_U = np.uint64
_HIGH_BITS = _U(0x8080808080808080)
_LOW_BITS = _U(0x7F7F7F7F7F7F7F7F)
_ONES = _U(0x0101010101010101)


class ByteChunk:
    """The bytes of some rows, padded so that reading ahead stays inside."""

    def __init__(self, content: memoryview) -> None:
        """Copy `content`."""
        self.data: Bytes = np.zeros((len(content) + _PADDING) // 8 * 8, np.uint8)
        self.data[: len(content)] = np.frombuffer(content, np.uint8)
        self.words: Words = self.data.view("<u8")

    @cached_property
    def last_bytes(self) -> Ints:
        """The positions where a varint can end: all bytes below 0x80."""
        return np.flatnonzero(self.data < 0x80)


class RowCursors:
    """The position (`at`) and end (`limit`) of each row, ascending; reads need at least one row."""

    __slots__ = ("at", "chunk", "limit")

    def __init__(self, chunk: ByteChunk, at: Ints, limit: Ints) -> None:
        """Start at these positions of a chunk; `at` must not be shared."""
        self.chunk = chunk
        self.at = at
        self.limit = limit

    def __len__(self) -> int:
        """The number of rows."""
        return len(self.at)

    def some(self, which: npt.NDArray[Any]) -> RowCursors:
        """Return cursors of some rows, which move independently of these."""
        return RowCursors(self.chunk, self.at[which], self.limit[which])

    def move(self, length: Ints | int) -> None:
        """Advance each cursor."""
        self.at = self.at + length

    def byte(self) -> Bytes:
        """Return the byte at each cursor, without advancing."""
        return self.chunk.data.take(self.at)

    def word(self) -> Words:
        """Return the eight bytes at each cursor, little-endian, without advancing."""
        index = self.at >> 3
        shift = ((self.at & 7) << 3).view(np.uint64)
        low, high = self.chunk.words.take(index), self.chunk.words.take(index + 1)
        # NumPy shifts by 64 bits to 0, which is right for an aligned position.
        return (low >> shift) | (high << (_U(64) - shift))

    def varint(self) -> Ints:
        """Read one zig-zag varint of each row."""
        first = self.byte()
        if first.max() < 0x80:
            self.move(1)
            plain = first.astype(np.int64)
            return (plain >> 1) ^ -(plain & 1)
        word = self.word()
        stop = ~word & _HIGH_BITS
        lowest = stop & (~stop + _U(1))
        # All bits of the varint's bytes; all 64 bits if the varint has more than eight bytes.
        mask = lowest ^ (lowest - _U(1))
        value = _pack_sevens(word & mask & _LOW_BITS)
        # The multiplication adds up one bit of each byte of the mask.
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
        """Read the item count that starts a block of an array or map."""
        count = self.varint()
        negative = np.flatnonzero(count < 0)
        if len(negative):
            # A negative count is followed by the byte size of the block, which is not needed here.
            sized = self.some(negative)
            sized.varint()
            self.at[negative] = sized.at
            count[negative] *= -1
        self.check_room(count)
        if count.sum() > len(self.chunk.data):
            raise CorruptError("Avro arrays claim more items than there are bytes")
        return count

    def lengths(self) -> Ints:
        """Read the length of the bytes that follow, and check that they lie inside the row."""
        length = self.varint()
        self.check_room(length)
        return length

    def check_room(self, needed: Ints | int) -> None:
        """Raise CorruptError for a value that reaches over the end of its row."""
        if np.any(self.limit - self.at < needed) or np.any(np.less(needed, 0)):
            raise CorruptError("an Avro value reaches over the end of its row")


def _pack_sevens(x: Words) -> Words:
    """Concatenate the seven low bits of each byte."""
    x = (x & _U(0x007F007F007F007F)) | ((x & _U(0x7F007F007F007F00)) >> _U(1))
    x = (x & _U(0x00003FFF00003FFF)) | ((x & _U(0x3FFF00003FFF0000)) >> _U(2))
    return (x & _U(0x000000000FFFFFFF)) | ((x & _U(0x0FFFFFFF00000000)) >> _U(4))


# Skip Avro values without building them, and find where the items of arrays start.

_FIXED_WIDTH = {"null": 0, "boolean": 1, "float": 4, "double": 8}
_VARINTS = frozenset({"int", "long", "enum"})
# Fewer rows than this are skipped faster one by one than with array operations.
_FEW_ROWS = 32


def skip(kind: AvroType, rows: RowCursors) -> None:
    """Advance all cursors over one value."""
    if not len(rows):
        return
    has_value = present(kind, rows)
    if has_value is None:
        _skip_value(kind, rows)
    elif has_value.any():
        inner = rows.some(has_value)
        _skip_value(kind, inner)
        rows.at[has_value] = inner.at


def present(kind: AvroType, rows: RowCursors) -> npt.NDArray[np.bool_] | None:
    """Read the branch of a union; return which rows have a value, not null, or None if all do."""
    if kind.branch is None:
        return None
    branch = rows.varint()
    has_value: npt.NDArray[np.bool_] = branch == kind.branch
    if has_value.all():
        return None
    if np.any(branch[~has_value] != kind.null_branch):
        raise CorruptError("an Avro union has no such branch")
    return has_value


def items(item: AvroType, rows: RowCursors) -> tuple[Ints, Ints]:
    """Skip one array of each row; return the item count of each row and the start of every item."""
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
    # Sorted by position, the items are in the order of their rows.
    return total, np.sort(np.concatenate(starts))


def varint_at(data: bytes | memoryview, at: int) -> tuple[int, int]:
    """Return the zig-zag varint at `at`, and where it ends; IndexError if the data ends first."""
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
    """Return the number of bytes of a value; None if it varies."""
    return kind.size if kind.kind == "fixed" else _FIXED_WIDTH.get(kind.kind)


def _skip_value(kind: AvroType, rows: RowCursors) -> None:
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
    elif kind.kind == "union":
        _skip_branches(kind, rows)
    else:
        for child in kind.children:
            skip(child.type, rows)


def _skip_branches(kind: AvroType, rows: RowCursors) -> None:
    branch = rows.varint()
    for number in np.unique(branch).tolist():
        if not 0 <= number < len(kind.children):
            raise CorruptError("an Avro union has no such branch")
        which = np.flatnonzero(branch == number)
        part = rows.some(which)
        skip(kind.children[number].type, part)
        rows.at[which] = part.at


def _item_starts(item: AvroType, block: RowCursors, count: Ints) -> Iterator[Ints]:
    width = _width(item)
    if item.branch is None and width is not None:
        block.check_room(count * width)
        yield np.repeat(block.at, count) + _within(count) * width
        block.move(count * width)
    elif item.branch is None and item.kind in _VARINTS:
        yield _varint_starts(block, count)
    else:
        yield from _stepped_starts(item, block, count)


def _stepped_starts(item: AvroType, block: RowCursors, count: Ints) -> Iterator[Ints]:
    """Yield the starts of the first items of all rows, then of the second ones, and so on."""
    for skipped in range(int(count.max())):
        active = np.flatnonzero(count > skipped)
        if len(active) < _FEW_ROWS:
            for row in active.tolist():
                yield _starts_of_one(item, block, row, int(count[row]) - skipped)
            return
        part = block.some(active)
        part.check_room(1)
        yield part.at.copy()
        skip(item, part)
        block.at[active] = part.at


def _starts_of_one(item: AvroType, block: RowCursors, row: int, count: int) -> Ints:
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


def _varint_starts(block: RowCursors, count: Ints) -> Ints:
    last_bytes = block.chunk.last_bytes
    first = np.searchsorted(last_bytes, block.at)
    within = _within(count)
    previous_end = last_bytes.take(np.repeat(first, count) + within - 1)
    starts = np.where(within == 0, np.repeat(block.at, count), previous_end + 1)
    filled = count > 0
    block.at[filled] = last_bytes.take((first + count - 1)[filled]) + 1
    block.check_room(0)
    return starts


def _within(count: Ints) -> Ints:
    """Return the index of each item in its row."""
    return np.arange(count.sum()) - np.repeat(np.cumsum(count) - count, count)


def _skip_one(kind: AvroType, data: memoryview, at: int) -> int:
    if kind.branch is not None:
        branch, at = varint_at(data, at)
        if branch != kind.branch:
            if branch != kind.null_branch:
                raise CorruptError("an Avro union has no such branch")
            return at
    width = _width(kind)
    return at + width if width is not None else _skip_value_of_one(kind, data, at)


def _skip_value_of_one(kind: AvroType, data: memoryview, at: int) -> int:
    if kind.kind in _VARINTS:
        return varint_at(data, at)[1]
    if kind.kind in ("bytes", "string"):
        length, at = varint_at(data, at)
        if length < 0:
            raise CorruptError("an Avro length is negative")
        return at + length
    if kind.kind in ("array", "map"):
        return _skip_items_of_one(kind.children[0].type, data, at)
    if kind.kind == "union":
        branch, at = varint_at(data, at)
        if not 0 <= branch < len(kind.children):
            raise CorruptError("an Avro union has no such branch")
        return _skip_one(kind.children[branch].type, data, at)
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
        # Each item takes at least a byte: a wrong count runs into the end of the chunk.
        for _ in range(abs(count)):
            at = _skip_one(item, data, at)
            if at > len(data):
                raise CorruptError("an Avro array reaches over the end of its row")


# Read Avro values into Arrow arrays.

# Small enough that the arrays of one step stay in the processor's cache.
_CHUNK_ROWS = 16 * 1024
_CHUNK_BYTES = 8 << 20


def decode_rows(
    content: memoryview, starts: Ints, ends: Ints, schema: AvroType, columns: Sequence[str] | None
) -> pa.Table:
    """Decode the rows at `[starts, ends)` of `content`; columns that the schema lacks are left out.

    `starts` and `ends` must ascend and not overlap.
    """
    projection = None if columns is None else set(columns)
    fields = [f for f in schema.children if projection is None or f.name in projection]
    arrow = pa.schema([field.arrow for field in fields])
    batches = []
    for first, last in row_chunks(starts, ends):
        base = int(starts[first])
        chunk = ByteChunk(content[base : int(ends[last - 1])])
        rows = RowCursors(chunk, starts[first:last] - base, ends[first:last] - base)
        arrays = _read_chunk(schema.children, projection, rows)
        batches.append(pa.RecordBatch.from_arrays(arrays, schema=arrow))
    table = pa.Table.from_batches(batches, arrow)
    if columns is None:
        return table
    available = set(arrow.names)
    return table.select([name for name in columns if name in available])


def read_values(kind: AvroType, rows: RowCursors) -> pa.Array:
    """Read one value of each row.

    Damaged bytes raise CorruptError, IndexError or pa.ArrowInvalid.
    """
    if not len(rows):
        return pa.array([], kind.arrow)
    has_value = present(kind, rows)
    if has_value is None:
        return _READERS[kind.kind](kind, rows)
    if not has_value.any():
        return pa.nulls(len(rows), kind.arrow)
    inner = rows.some(has_value)
    values = _READERS[kind.kind](kind, inner)
    rows.at[has_value] = inner.at
    index = np.cumsum(has_value, dtype=np.int32) - 1
    return values.take(pa.array(index, mask=~has_value))


def row_chunks(starts: Ints, ends: Ints) -> Iterator[tuple[int, int]]:
    """Yield spans of rows that are decoded together."""
    first = 0
    while first < len(starts):
        fitting = int(np.searchsorted(ends, starts[first] + _CHUNK_BYTES, side="right"))
        last = min(first + _CHUNK_ROWS, max(fitting, first + 1))
        yield first, last
        first = last


def _read_chunk(
    fields: Sequence[AvroField], projection: set[str] | None, rows: RowCursors
) -> list[pa.Array]:
    try:
        arrays = _read_fields(fields, projection, rows)
    except IndexError as error:
        raise CorruptError("an Avro row ends in the middle of a value") from error
    except pa.ArrowInvalid as error:
        raise CorruptError("an Avro value is not of its type", cause=str(error)) from error
    if np.any(rows.at != rows.limit):
        raise CorruptError("an Avro row is longer or shorter than its schema says")
    return arrays


def _read_fields(
    fields: Sequence[AvroField], projection: set[str] | None, rows: RowCursors
) -> list[pa.Array]:
    arrays = []
    for field in fields:
        if projection is None or field.name in projection:
            arrays.append(read_values(field.type, rows))
        else:
            skip(field.type, rows)
    return arrays


def _fixed_width(arrow: pa.DataType, values: npt.NDArray[Any]) -> pa.Array:
    buffer = pa.py_buffer(np.ascontiguousarray(values))
    array = pa.Array.from_buffers(arrow, len(values), [None, buffer])
    if pa.types.is_time(arrow) or pa.types.is_decimal(arrow):
        array.validate(full=True)
    return array


def read_slices(rows: RowCursors, length: Ints | int) -> pa.Array:
    """Read the next `length` bytes of each row as binary values."""
    ends = rows.at + length
    # Values are in the order of the rows, so they and the gaps between them form one binary array
    # over the chunk, of which every second value is selected.
    offsets = np.empty(2 * len(rows) + 1, np.int32)
    offsets[0:-1:2], offsets[1::2] = rows.at, ends
    offsets[-1] = offsets[-2]
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(rows.chunk.data)]
    values_and_gaps = pa.Array.from_buffers(pa.binary(), 2 * len(rows), buffers)
    rows.at = ends
    return values_and_gaps.take(pa.array(np.arange(0, 2 * len(rows), 2, dtype=np.int32)))


def _read_null(kind: AvroType, rows: RowCursors) -> pa.Array:
    return pa.nulls(len(rows), kind.arrow)


def _read_boolean(kind: AvroType, rows: RowCursors) -> pa.Array:
    flag = rows.byte()
    rows.move(1)
    if flag.max() > 1:
        raise CorruptError("an Avro boolean is neither 0 nor 1")
    return pa.array(flag.view(np.bool_))


def _read_int(kind: AvroType, rows: RowCursors) -> pa.Array:
    value = rows.varint()
    narrow = value.astype(np.int32)
    if np.any(narrow != value):
        raise CorruptError("an Avro int has more than 32 bits")
    return _fixed_width(kind.arrow, narrow)


def _read_long(kind: AvroType, rows: RowCursors) -> pa.Array:
    return _fixed_width(kind.arrow, rows.varint())


def _read_float(kind: AvroType, rows: RowCursors) -> pa.Array:
    word = rows.word()
    rows.move(4)
    return _fixed_width(kind.arrow, word.astype(np.uint32))


def _read_double(kind: AvroType, rows: RowCursors) -> pa.Array:
    word = rows.word()
    rows.move(8)
    return _fixed_width(kind.arrow, word)


def _read_enum(kind: AvroType, rows: RowCursors) -> pa.Array:
    index = rows.varint()
    if index.min() < 0 or index.max() >= len(kind.symbols):
        raise CorruptError("an Avro enum has no such symbol")
    return pa.array(kind.symbols, pa.string()).take(pa.array(index))


def _read_string(kind: AvroType, rows: RowCursors) -> pa.Array:
    # This cast copies nothing and checks the encoding.
    return read_slices(rows, rows.lengths()).cast(kind.arrow)


def _read_bytes(kind: AvroType, rows: RowCursors) -> pa.Array:
    length = rows.lengths()
    if not pa.types.is_decimal(kind.arrow):
        return read_slices(rows, length)
    if length.min() < 1 or length.max() > 16:
        raise CorruptError("an Avro decimal has an impossible length")
    # Big-endian and of variable length: read from the last byte backwards.
    backwards = np.arange(16)
    positions = np.maximum(rows.at[:, None] + length[:, None] - 1 - backwards, 0)
    sign = np.where(rows.byte() >= 0x80, 0xFF, 0).astype(np.uint8)
    little = np.where(backwards < length[:, None], rows.chunk.data.take(positions), sign[:, None])
    rows.move(length)
    return _fixed_width(kind.arrow, little)


def _read_fixed(kind: AvroType, rows: RowCursors) -> pa.Array:
    rows.check_room(kind.size)
    values = read_slices(rows, kind.size).buffers()[2]
    if not pa.types.is_decimal(kind.arrow):
        return pa.Array.from_buffers(kind.arrow, len(rows), [None, values])
    big = np.frombuffer(values, np.uint8)[: len(rows) * kind.size].reshape(len(rows), kind.size)
    sign = np.where(big[:, 0] >= 0x80, 0xFF, 0).astype(np.uint8)[:, None]
    if np.any(big[:, : max(kind.size - 16, 0)] != sign):
        raise CorruptError("an Avro decimal does not fit its precision")
    little = np.repeat(sign, 16, axis=1)
    width = min(kind.size, 16)
    little[:, :width] = big[:, ::-1][:, :width]
    return _fixed_width(kind.arrow, little)


def _read_record(kind: AvroType, rows: RowCursors) -> pa.Array:
    arrays = [read_values(child.type, rows) for child in kind.children]
    if not arrays:
        return pa.array([{}] * len(rows), kind.arrow)
    return pa.StructArray.from_arrays(arrays, fields=list(kind.arrow))


def _read_array(kind: AvroType, rows: RowCursors) -> pa.Array:
    offsets, values = _read_items(kind, rows)
    return pa.ListArray.from_arrays(offsets, values, kind.arrow)


def _read_map(kind: AvroType, rows: RowCursors) -> pa.Array:
    offsets, entries = _read_items(kind, rows)
    keys, values = entries.flatten()
    return pa.MapArray.from_arrays(offsets, keys, values, kind.arrow)


def _read_items(kind: AvroType, rows: RowCursors) -> tuple[pa.Array, pa.Array]:
    item = kind.children[0].type
    count, starts = items(item, rows)
    offsets = np.zeros(len(rows) + 1, np.int32)
    np.cumsum(count, out=offsets[1:])
    inner = RowCursors(rows.chunk, starts, np.repeat(rows.limit, count))
    return pa.array(offsets), read_values(item, inner)


_READERS: dict[str, Callable[[AvroType, RowCursors], pa.Array]] = {
    "null": _read_null,
    "boolean": _read_boolean,
    "int": _read_int,
    "long": _read_long,
    "float": _read_float,
    "double": _read_double,
    "bytes": _read_bytes,
    "string": _read_string,
    "fixed": _read_fixed,
    "enum": _read_enum,
    "array": _read_array,
    "map": _read_map,
    "record": _read_record,
}
