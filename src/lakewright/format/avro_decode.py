"""Avro rows to Arrow columns, many rows at a time.

All rows stand at the same field of the schema; a step reads that field of every row with a few
array operations and moves each row on. Every row must be used up at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lakewright.errors import CorruptError
from lakewright.format.avro_arrow import AvroField, AvroType
from lakewright.format.avro_cursor import Chunk, Ints, Rows
from lakewright.format.avro_skip import items, present, skip

# Small enough that the arrays of one step stay in the processor's cache.
_CHUNK_ROWS = 16 * 1024
_CHUNK_BYTES = 8 << 20


def decode_rows(
    content: memoryview, starts: Ints, ends: Ints, schema: AvroType, columns: Sequence[str] | None
) -> pa.Table:
    """Decode the rows at `[starts, ends)` of `content`: the asked columns that the schema has.

    `starts` and `ends` must ascend and not overlap.
    """
    wanted = None if columns is None else set(columns)
    fields = [f for f in schema.children if wanted is None or f.name in wanted]
    arrow = pa.schema([field.arrow for field in fields])
    batches = []
    for first, last in _chunks(starts, ends):
        base = int(starts[first])
        chunk = Chunk(content[base : int(ends[last - 1])])
        rows = Rows(chunk, starts[first:last] - base, ends[first:last] - base)
        arrays = _read_chunk(schema.children, wanted, rows)
        batches.append(pa.RecordBatch.from_arrays(arrays, schema=arrow))
    table = pa.Table.from_batches(batches, arrow)
    if columns is None:
        return table
    known = set(arrow.names)
    return table.select([name for name in columns if name in known])


def read_values(kind: AvroType, rows: Rows) -> pa.Array:
    """Read one value of each row.

    Raises IndexError or pa.ArrowInvalid, beside CorruptError, where the bytes are damaged.
    """
    if not len(rows):
        return pa.array([], kind.arrow)
    holds = present(kind, rows)
    if holds is None:
        return _READERS[kind.kind](kind, rows)
    if not holds.any():
        return pa.nulls(len(rows), kind.arrow)
    inner = rows.some(holds)
    values = _READERS[kind.kind](kind, inner)
    rows.at[holds] = inner.at
    index = np.cumsum(holds, dtype=np.int32) - 1
    return values.take(pa.array(index, mask=~holds))


def _chunks(starts: Ints, ends: Ints) -> Iterator[tuple[int, int]]:
    first = 0
    while first < len(starts):
        full = int(np.searchsorted(ends, starts[first] + _CHUNK_BYTES, side="right"))
        last = min(first + _CHUNK_ROWS, max(full, first + 1))
        yield first, last
        first = last


def _read_chunk(fields: Sequence[AvroField], wanted: set[str] | None, rows: Rows) -> list[pa.Array]:
    try:
        arrays = _read_fields(fields, wanted, rows)
    except IndexError as error:
        raise CorruptError("an Avro row ends in the middle of a value") from error
    except pa.ArrowInvalid as error:
        raise CorruptError("an Avro value is not of its type", cause=str(error)) from error
    if np.any(rows.at != rows.limit):
        raise CorruptError("an Avro row is longer or shorter than its schema says")
    return arrays


def _read_fields(
    fields: Sequence[AvroField], wanted: set[str] | None, rows: Rows
) -> list[pa.Array]:
    arrays = []
    for field in fields:
        if wanted is None or field.name in wanted:
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


def _slices(rows: Rows, length: Ints | int) -> pa.Array:
    """The next `length` bytes of each row, as binary values; moves on."""
    ends = rows.at + length
    # Values lie in the order of the rows, so they and the gaps between them form one big binary
    # array over the chunk, of which every second value is asked for.
    offsets = np.empty(2 * len(rows) + 1, np.int32)
    offsets[0:-1:2], offsets[1::2] = rows.at, ends
    offsets[-1] = offsets[-2]
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(rows.chunk.data)]
    both = pa.Array.from_buffers(pa.binary(), 2 * len(rows), buffers)
    rows.at = ends
    return both.take(pa.array(np.arange(0, 2 * len(rows), 2, dtype=np.int32)))


def _read_null(kind: AvroType, rows: Rows) -> pa.Array:
    return pa.nulls(len(rows), kind.arrow)


def _read_boolean(kind: AvroType, rows: Rows) -> pa.Array:
    flag = rows.byte()
    rows.move(1)
    if flag.max() > 1:
        raise CorruptError("an Avro boolean is neither 0 nor 1")
    return pa.array(flag.view(np.bool_))


def _read_int(kind: AvroType, rows: Rows) -> pa.Array:
    value = rows.varint()
    narrow = value.astype(np.int32)
    if np.any(narrow != value):
        raise CorruptError("an Avro int has more than 32 bits")
    return _fixed_width(kind.arrow, narrow)


def _read_long(kind: AvroType, rows: Rows) -> pa.Array:
    return _fixed_width(kind.arrow, rows.varint())


def _read_float(kind: AvroType, rows: Rows) -> pa.Array:
    word = rows.word()
    rows.move(4)
    return _fixed_width(kind.arrow, word.astype(np.uint32))


def _read_double(kind: AvroType, rows: Rows) -> pa.Array:
    word = rows.word()
    rows.move(8)
    return _fixed_width(kind.arrow, word)


def _read_enum(kind: AvroType, rows: Rows) -> pa.Array:
    index = rows.varint()
    if index.min() < 0 or index.max() >= len(kind.symbols):
        raise CorruptError("an Avro enum has no such symbol")
    return pa.array(kind.symbols, pa.string()).take(pa.array(index))


def _read_string(kind: AvroType, rows: Rows) -> pa.Array:
    # This cast copies nothing and checks the encoding.
    return _slices(rows, rows.lengths()).cast(kind.arrow)


def _read_bytes(kind: AvroType, rows: Rows) -> pa.Array:
    length = rows.lengths()
    if not pa.types.is_decimal(kind.arrow):
        return _slices(rows, length)
    if length.min() < 1 or length.max() > 16:
        raise CorruptError("an Avro decimal has an impossible length")
    # Big-endian, as short as it goes: taken from its last byte backwards.
    backwards = np.arange(16)
    place = np.maximum(rows.at[:, None] + length[:, None] - 1 - backwards, 0)
    sign = np.where(rows.byte() >= 0x80, 0xFF, 0).astype(np.uint8)
    little = np.where(backwards < length[:, None], rows.chunk.data.take(place), sign[:, None])
    rows.move(length)
    return _fixed_width(kind.arrow, little)


def _read_fixed(kind: AvroType, rows: Rows) -> pa.Array:
    rows.check_room(kind.size)
    values = _slices(rows, kind.size).buffers()[2]
    if not pa.types.is_decimal(kind.arrow):
        return pa.Array.from_buffers(kind.arrow, len(rows), [None, values])
    big = np.frombuffer(values, np.uint8)[: len(rows) * kind.size].reshape(len(rows), kind.size)
    sign = np.where(big[:, 0] >= 0x80, 0xFF, 0).astype(np.uint8)[:, None]
    if np.any(big[:, : max(kind.size - 16, 0)] != sign):
        raise CorruptError("an Avro decimal does not fit its precision")
    little = np.repeat(sign, 16, axis=1)
    kept = min(kind.size, 16)
    little[:, :kept] = big[:, ::-1][:, :kept]
    return _fixed_width(kind.arrow, little)


def _read_record(kind: AvroType, rows: Rows) -> pa.Array:
    arrays = [read_values(child.type, rows) for child in kind.children]
    if not arrays:
        return pa.array([{}] * len(rows), kind.arrow)
    return pa.StructArray.from_arrays(arrays, fields=list(kind.arrow))


def _read_array(kind: AvroType, rows: Rows) -> pa.Array:
    offsets, values = _read_items(kind, rows)
    return pa.ListArray.from_arrays(offsets, values, kind.arrow)


def _read_map(kind: AvroType, rows: Rows) -> pa.Array:
    offsets, entries = _read_items(kind, rows)
    keys, values = entries.flatten()
    return pa.MapArray.from_arrays(offsets, keys, values, kind.arrow)


def _read_items(kind: AvroType, rows: Rows) -> tuple[pa.Array, pa.Array]:
    item = kind.children[0].type
    count, starts = items(item, rows)
    offsets = np.zeros(len(rows) + 1, np.int32)
    np.cumsum(count, out=offsets[1:])
    inner = Rows(rows.chunk, starts, np.repeat(rows.limit, count))
    return pa.array(offsets), read_values(item, inner)


_READERS: dict[str, Callable[[AvroType, Rows], pa.Array]] = {
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
