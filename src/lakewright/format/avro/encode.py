"""Encode Arrow columns as Avro rows, many rows at a time.

A column is encoded as a list of parts: binary arrays with one value for each row, or scalars that
are the same in every row. Arrow joins the parts of each row. A null in a part means no bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lakewright.errors import InvalidError
from lakewright.format.avro.schema import AvroField, AvroType

# Arrow joins the rows of a batch into one array, which is limited to 2 GB.
_BATCH_ROWS = 16 * 1024
_U = np.uint64

Part: TypeAlias = pa.Array | pa.Scalar


def encode_rows(rows: pa.Table, schema: AvroType) -> list[pa.Array]:
    """Encode rows that have the columns of `schema`, as binary arrays of one value per row."""
    ordered = in_columns(rows, [field.name for field in schema.children])
    try:
        return [_encode_batch(b, schema) for b in ordered.to_batches(_BATCH_ROWS)]
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowCapacityError) as error:
        raise InvalidError("rows do not fit their schema", cause=str(error)) from error


def in_columns(rows: pa.Table, names: Sequence[str]) -> pa.Table:
    """Return rows with their columns in this order; they must have exactly these columns."""
    if sorted(rows.column_names) != sorted(names):
        raise InvalidError(
            "rows do not have the columns of their schema",
            missing=sorted(set(names) - set(rows.column_names)),
            unknown=sorted(set(rows.column_names) - set(names)),
        )
    return rows.select(list(names))


def join_parts(parts: Sequence[Part]) -> pa.Array:
    """Join the parts of each row to one binary value."""
    return pc.binary_join_element_wise(
        *parts, pa.scalar(b""), null_handling="replace", null_replacement=""
    )


def varint_parts(values: npt.NDArray[np.int64]) -> pa.Array:
    """Encode numbers as zig-zag varints."""
    rest = ((values << 1) ^ (values >> 63)).view(np.uint64)
    length = np.ones(len(rest), np.int64)
    groups = []
    while True:
        groups.append((rest & _U(0x7F)).astype(np.uint8))
        rest = rest >> _U(7)
        more = rest > _U(0)
        if not more.any():
            break
        groups[-1] |= more.astype(np.uint8) << 7
        length += more
    matrix = np.stack(groups, axis=1)
    used = np.arange(len(groups)) < length[:, None]
    return _binary(matrix[used], length)


def value_parts(kind: AvroType, column: pa.Array, name: str) -> list[Part]:
    """Return the parts of a column's values, with the branch of their union."""
    column = _as_type(column, kind)
    if kind.kind == "null":
        return []
    if column.null_count and not kind.nullable:
        raise InvalidError("a column that must have values has nulls", column=name)
    if kind.branch is None:
        return _ENCODERS[kind.kind](kind, column)
    value_branch = pa.scalar(bytes([kind.branch * 2]))
    if not column.null_count:
        return [value_branch, *_ENCODERS[kind.kind](kind, column)]
    valid = column.is_valid()
    branch = pc.if_else(valid, value_branch, pa.scalar(bytes([(kind.null_branch or 0) * 2])))
    values = column.drop_null()
    if not len(values):
        return [branch]
    index = np.cumsum(np.asarray(valid), dtype=np.int32) - 1
    spread = pa.array(index, mask=~np.asarray(valid))
    return [branch, _joined(_ENCODERS[kind.kind](kind, values), len(values)).take(spread)]


def joined_bytes(array: pa.Array) -> memoryview:
    """Return the bytes of a joined array's values, one after the other."""
    _, offsets, data = array.buffers()
    return memoryview(data)[: int(np.frombuffer(offsets, np.int32)[len(array)])]


def _encode_batch(batch: pa.RecordBatch, schema: AvroType) -> pa.Array:
    parts = _record_parts(schema.children, batch.columns)
    return join_parts(parts or [pa.array([b""] * batch.num_rows, pa.binary())])


def _record_parts(fields: Sequence[AvroField], columns: Sequence[pa.Array]) -> list[Part]:
    return [
        part
        for field, column in zip(fields, columns, strict=True)
        for part in value_parts(field.type, column, field.name)
    ]


def _as_type(column: pa.Array, kind: AvroType) -> pa.Array:
    if column.type == kind.arrow or kind.kind in ("record", "map", "array", "null"):
        return column
    return column.cast(kind.arrow)


def _joined(parts: Sequence[Part], length: int) -> pa.Array:
    return join_parts(parts) if parts else pa.array([b""] * length, pa.binary())


def _binary(data: npt.NDArray[np.uint8], length: npt.NDArray[np.int64]) -> pa.Array:
    offsets = np.zeros(len(length) + 1, np.int32)
    np.cumsum(length, out=offsets[1:])
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(data))]
    return pa.Array.from_buffers(pa.binary(), len(length), buffers)


def _fixed_bytes(matrix: npt.NDArray[np.uint8]) -> pa.Array:
    return _binary(matrix.reshape(-1), np.full(len(matrix), matrix.shape[1]))


def _raw(column: pa.Array, width: int) -> npt.NDArray[np.uint8]:
    """Return the bytes of a fixed-width column, one row of the matrix for each value."""
    data = np.frombuffer(column.buffers()[1], np.uint8)
    first = column.offset * width
    return data[first : first + len(column) * width].reshape(len(column), width)


def _encode_boolean(kind: AvroType, column: pa.Array) -> list[Part]:
    return [pc.if_else(column, pa.scalar(b"\x01"), pa.scalar(b"\x00"))]


def _encode_varint(kind: AvroType, column: pa.Array) -> list[Part]:
    width = column.type.bit_width // 8
    return [varint_parts(_raw(column, width).view(f"<i{width}").reshape(-1).astype(np.int64))]


def _encode_float(kind: AvroType, column: pa.Array) -> list[Part]:
    return [_fixed_bytes(_raw(column, column.type.bit_width // 8))]


def _encode_bytes(kind: AvroType, column: pa.Array) -> list[Part]:
    if pa.types.is_decimal(kind.arrow):
        column = _shortest_decimals(column)
    length = np.asarray(pc.binary_length(column)).astype(np.int64)
    return [varint_parts(length), column.cast(pa.binary())]


def _shortest_decimals(column: pa.Array) -> pa.Array:
    big = _raw(column, 16)[:, ::-1]
    sign = np.where(big[:, :1] >= 0x80, 0xFF, 0)
    # A leading byte is redundant if it only repeats the sign bit of the next byte.
    redundant = (big[:, :-1] == sign) & ((big[:, 1:] >= 0x80) == (sign > 0))
    dropped = np.minimum.accumulate(redundant, axis=1).sum(axis=1)
    return _binary(big[np.arange(16) >= dropped[:, None]], 16 - dropped)


def _encode_fixed(kind: AvroType, column: pa.Array) -> list[Part]:
    if not pa.types.is_decimal(kind.arrow):
        return [column.cast(pa.binary())]
    big = _raw(column, 16)[:, ::-1]
    sign = np.where(big[:, :1] >= 0x80, 0xFF, 0).astype(np.uint8)
    wide = np.concatenate([np.repeat(sign, max(kind.size - 16, 0), axis=1), big], axis=1)
    dropped, stored = np.split(wide, [wide.shape[1] - kind.size], axis=1)
    if np.any(dropped != sign) or np.any((stored[:, :1] >= 0x80) != (sign > 0)):
        raise InvalidError("a decimal does not fit the size its schema gives", size=kind.size)
    return [_fixed_bytes(stored)]


def _encode_enum(kind: AvroType, column: pa.Array) -> list[Part]:
    index = pc.index_in(column, value_set=pa.array(kind.symbols, pa.string()))
    if index.null_count:
        raise InvalidError("a value is none of the symbols of its enum", symbols=kind.symbols)
    return [varint_parts(np.asarray(index).astype(np.int64))]


def _encode_record(kind: AvroType, column: pa.Array) -> list[Part]:
    by_name = dict(zip([f.name for f in column.type], column.flatten(), strict=True))
    missing = [child.name for child in kind.children if child.name not in by_name]
    if missing or len(by_name) != len(kind.children):
        raise InvalidError("a struct does not have the fields of its schema", missing=missing)
    return _record_parts(kind.children, [by_name[child.name] for child in kind.children])


def _encode_items(kind: AvroType, column: pa.Array) -> list[Part]:
    item = kind.children[0]
    if not pa.types.is_map(column.type):
        column = column.cast(pa.list_(column.type.value_field))
    bounds = np.asarray(column.offsets)
    part = slice(int(bounds[0]), int(bounds[-1]))
    if pa.types.is_map(column.type):
        parts = _record_parts(item.type.children, [column.keys[part], column.items[part]])
    else:
        parts = value_parts(item.type, column.values[part], item.name)
    encoded = _joined(parts, part.stop - part.start)
    starts = pa.array((bounds - bounds[0]).astype(np.int32))
    joined = pc.binary_join(pa.ListArray.from_arrays(starts, encoded), b"")
    count = np.diff(bounds).astype(np.int64)
    # An empty array consists of the terminating zero count only.
    head = pc.if_else(pa.array(count > 0), varint_parts(count), pa.scalar(b""))
    return [head, joined, pa.scalar(b"\x00")]


_ENCODERS: dict[str, Callable[[AvroType, pa.Array], list[Part]]] = {
    "boolean": _encode_boolean,
    "int": _encode_varint,
    "long": _encode_varint,
    "float": _encode_float,
    "double": _encode_float,
    "bytes": _encode_bytes,
    "string": _encode_bytes,
    "fixed": _encode_fixed,
    "enum": _encode_enum,
    "array": _encode_items,
    "map": _encode_items,
    "record": _encode_record,
}
