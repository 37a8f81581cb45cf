"""Least and greatest values in column statistics, for columns of values.

A value is stored in a wrapper, a record with one field, whose type says how it is encoded. Version
1 of the index has wrappers for dates and decimals and leaves the rest to the reader, who knows the
column's type. Version 2 uses wrappers of plain types, and stores the column's type beside them.

In memory a value is the number of its wrapper and its Avro bytes, so that records of all columns
are rows of one table and nothing is lost on the way back to storage.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakewright.errors import CorruptError, InvalidError, UnsupportedError
from lakewright.format.avro.decode import ByteChunk, RowCursors, read_values
from lakewright.format.avro.encode import join_parts, value_parts
from lakewright.format.avro.schema import AvroType
from lakewright.model.metadata_partitions import IndexVersion


class Wrapper(IntEnum):
    """The wrappers; the values are the branches of the union on storage."""

    NULL = 0
    BOOLEAN = 1
    INT = 2
    LONG = 3
    FLOAT = 4
    DOUBLE = 5
    BYTES = 6
    STRING = 7
    DATE = 8
    DECIMAL = 9
    TIME_MICROS = 10
    TIMESTAMP_MICROS = 11
    LOCAL_DATE = 12
    ARRAY = 13


# The wrappers by the names of their records; a schema of an older writer may have fewer of them.
WRAPPER_NAMES: Mapping[str, Wrapper] = {
    "null": Wrapper.NULL,
    "BooleanWrapper": Wrapper.BOOLEAN,
    "IntWrapper": Wrapper.INT,
    "LongWrapper": Wrapper.LONG,
    "FloatWrapper": Wrapper.FLOAT,
    "DoubleWrapper": Wrapper.DOUBLE,
    "BytesWrapper": Wrapper.BYTES,
    "StringWrapper": Wrapper.STRING,
    "DateWrapper": Wrapper.DATE,
    "DecimalWrapper": Wrapper.DECIMAL,
    "TimeMicrosWrapper": Wrapper.TIME_MICROS,
    "TimestampMicrosWrapper": Wrapper.TIMESTAMP_MICROS,
    "LocalDateWrapper": Wrapper.LOCAL_DATE,
    "ArrayWrapper": Wrapper.ARRAY,
}


class ValueType(IntEnum):
    """The types of columns in version 2; the values are those on storage."""

    V1 = 0
    NULL = 1
    BOOLEAN = 2
    INT = 3
    LONG = 4
    FLOAT = 5
    DOUBLE = 6
    STRING = 7
    BYTES = 8
    FIXED = 9
    DECIMAL = 10
    UUID = 11
    DATE = 12
    TIME_MILLIS = 13
    TIME_MICROS = 14
    TIMESTAMP_MILLIS = 15
    TIMESTAMP_MICROS = 16
    TIMESTAMP_NANOS = 17
    LOCAL_TIMESTAMP_MILLIS = 18
    LOCAL_TIMESTAMP_MICROS = 19
    LOCAL_TIMESTAMP_NANOS = 20


# How the value in a wrapper is encoded, and its Arrow type where nothing else is known of it.
_WRAPPED: Mapping[Wrapper, AvroType] = {
    Wrapper.BOOLEAN: AvroType("boolean", pa.bool_()),
    Wrapper.INT: AvroType("int", pa.int32()),
    Wrapper.LONG: AvroType("long", pa.int64()),
    Wrapper.FLOAT: AvroType("float", pa.float32()),
    Wrapper.DOUBLE: AvroType("double", pa.float64()),
    Wrapper.BYTES: AvroType("bytes", pa.binary()),
    Wrapper.STRING: AvroType("string", pa.string()),
    Wrapper.DATE: AvroType("int", pa.date32()),
    Wrapper.DECIMAL: AvroType("bytes", pa.decimal128(30, 15)),
    Wrapper.TIME_MICROS: AvroType("long", pa.time64("us")),
    Wrapper.TIMESTAMP_MICROS: AvroType("long", pa.timestamp("us", "UTC")),
    Wrapper.LOCAL_DATE: AvroType("int", pa.date32()),
}
_V2_TYPES: Mapping[ValueType, tuple[Wrapper, pa.DataType]] = {
    ValueType.BOOLEAN: (Wrapper.BOOLEAN, pa.bool_()),
    ValueType.INT: (Wrapper.INT, pa.int32()),
    ValueType.LONG: (Wrapper.LONG, pa.int64()),
    ValueType.FLOAT: (Wrapper.FLOAT, pa.float32()),
    ValueType.DOUBLE: (Wrapper.DOUBLE, pa.float64()),
    ValueType.STRING: (Wrapper.STRING, pa.string()),
    ValueType.BYTES: (Wrapper.BYTES, pa.binary()),
    ValueType.FIXED: (Wrapper.BYTES, pa.binary()),
    ValueType.UUID: (Wrapper.STRING, pa.string()),
    ValueType.DATE: (Wrapper.INT, pa.date32()),
    ValueType.TIME_MILLIS: (Wrapper.INT, pa.time32("ms")),
    ValueType.TIME_MICROS: (Wrapper.LONG, pa.time64("us")),
    ValueType.TIMESTAMP_MILLIS: (Wrapper.LONG, pa.timestamp("ms", "UTC")),
    ValueType.TIMESTAMP_MICROS: (Wrapper.LONG, pa.timestamp("us", "UTC")),
    ValueType.TIMESTAMP_NANOS: (Wrapper.LONG, pa.timestamp("ns", "UTC")),
    ValueType.LOCAL_TIMESTAMP_MILLIS: (Wrapper.LONG, pa.timestamp("ms")),
    ValueType.LOCAL_TIMESTAMP_MICROS: (Wrapper.LONG, pa.timestamp("us")),
    ValueType.LOCAL_TIMESTAMP_NANOS: (Wrapper.LONG, pa.timestamp("ns")),
}
_MAX_V1_DECIMAL = pa.decimal128(30, 15)
_MAX_PRECISION = 38


@dataclass(frozen=True, slots=True)
class StoredType:
    """How the values of one column are stored, and their type in memory.

    `value_type` and `info` are None in version 1.
    """

    wrapper: Wrapper
    arrow: pa.DataType
    value_type: ValueType | None = None
    info: str | None = None


@dataclass(frozen=True, slots=True, eq=False)
class WrappedValues:
    """Values as they are stored; the bytes of a null are empty."""

    wrappers: pa.Array
    values: pa.Array


def stored_type(column: pa.DataType, version: IndexVersion) -> StoredType | None:
    """Return how the values of a column of this type are stored, or None if they cannot be.

    Columns of other types, such as structs and lists, have no statistics.
    """
    column = _plain_type(column)
    if pa.types.is_decimal128(column):
        return _stored_decimal(column, version)
    for value_type, (wrapper, arrow) in _V2_TYPES.items():
        if arrow != column or value_type in (ValueType.UUID, ValueType.FIXED):
            continue
        if version is IndexVersion.V2:
            return StoredType(wrapper, arrow, value_type)
        # Dates have a wrapper of their own in version 1, and times are plain numbers.
        return StoredType(Wrapper.DATE if pa.types.is_date(column) else wrapper, arrow)
    if not pa.types.is_fixed_size_binary(column):
        return None
    is_v2 = version is IndexVersion.V2
    return StoredType(Wrapper.BYTES, pa.binary(), ValueType.FIXED if is_v2 else None)


def type_of_stored(wrapper: Wrapper, value_type: int | None, info: str | None) -> StoredType:
    """Return how values are stored that a record holds in this wrapper."""
    if value_type is None:
        if wrapper not in _WRAPPED:
            raise UnsupportedError("statistics with values of an unknown type", wrapper=wrapper)
        return StoredType(wrapper, _WRAPPED[wrapper].arrow)
    found = _type_of_v2(value_type, info)
    if wrapper != found.wrapper:
        raise CorruptError("a value is not in the wrapper of its type", wrapper=wrapper, type=found)
    return found


def known_type(wrapper: Wrapper, value_type: int | None, info: str | None) -> StoredType | None:
    """Return how the values of a record are stored, or None if it does not say.

    Args:
        wrapper: the wrapper of a value, in version 1 only; null if the record has no value.
        value_type: the type beside the values, in version 2 only.
        info: what the type has as addition.
    """
    if value_type is not None:
        return None if value_type == ValueType.NULL else _type_of_v2(value_type, info)
    return None if wrapper is Wrapper.NULL else type_of_stored(wrapper, None, None)


def wrap_values(values: pa.Array, stored: StoredType) -> WrappedValues:
    """Return values as they are stored; nulls are the values of columns without any."""
    kind = _avro_type(stored)
    # The branch of null takes no bytes, so a null gets none at all.
    parts = value_parts(kind, _as_stored(values, stored).drop_null(), "value")
    encoded = join_parts(parts) if parts else pa.array([], pa.binary())
    valid = np.asarray(values.is_valid())
    index = pa.array(np.cumsum(valid, dtype=np.int32) - 1, mask=~valid)
    wrappers = np.where(valid, np.int8(stored.wrapper), np.int8(Wrapper.NULL))
    return WrappedValues(pa.array(wrappers), pc.fill_null(encoded.take(index), b""))


def unwrap_values(wrapped: WrappedValues, stored: StoredType) -> pa.Array:
    """Return stored values, which have all the same type; the inverse of `wrap_values`."""
    has_value = pc.not_equal(wrapped.wrappers, pa.scalar(int(Wrapper.NULL), pa.int8()))
    filled = wrapped.values.filter(has_value)
    if not len(filled):
        return pa.nulls(len(wrapped.values), stored.arrow)
    chunk, starts, ends = _chunk_of(filled)
    rows = RowCursors(chunk, starts, ends)
    try:
        values = read_values(_avro_type(stored), rows)
    except (IndexError, pa.ArrowInvalid) as error:
        raise CorruptError("a value of statistics is damaged", cause=str(error)) from error
    if np.any(rows.at != rows.limit):
        raise CorruptError("a value of statistics is longer or shorter than it should be")
    mask = np.asarray(has_value)
    return values.take(pa.array(np.cumsum(mask, dtype=np.int32) - 1, mask=~mask))


def column_values(
    wrapped: WrappedValues, value_types: pa.Array, infos: pa.Array, column: pa.DataType
) -> pa.Array:
    """Return stored values of one column in the column's type, null where there is no value.

    Records of different versions may store them differently, and a column may have got a wider type
    since.

    Raises:
        UnsupportedError: a value is of a type that does not become the column's.
    """
    target = _plain_type(column)
    result = pa.nulls(len(value_types), target)
    for which, stored in _by_type(wrapped, value_types, infos):
        part = WrappedValues(wrapped.wrappers.filter(which), wrapped.values.filter(which))
        try:
            values = unwrap_values(part, stored).cast(target)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise UnsupportedError(
                "statistics of a column have another type than the column",
                column=str(column),
                statistics=str(stored.arrow),
            ) from error
        result = pc.replace_with_mask(result, which, values)
    return result


def _by_type(
    wrapped: WrappedValues, value_types: pa.Array, infos: pa.Array
) -> list[tuple[pa.Array, StoredType]]:
    rows = pa.table([wrapped.wrappers, value_types, infos], names=["wrapper", "type", "info"])
    found = []
    for kind in rows.group_by(["wrapper", "type", "info"]).aggregate([]).to_pylist():
        if kind["wrapper"] == Wrapper.NULL:
            continue
        which = pc.equal(rows["wrapper"], kind["wrapper"])
        for name in ("type", "info"):
            same = pc.equal(rows[name], kind[name]) if kind[name] is not None else None
            which = pc.and_(
                which, pc.is_null(rows[name]) if same is None else pc.fill_null(same, False)
            )
        stored = type_of_stored(Wrapper(kind["wrapper"]), kind["type"], kind["info"])
        found.append((which.combine_chunks(), stored))
    return found


def _type_of_v2(value_type: int, info: str | None) -> StoredType:
    if value_type == ValueType.DECIMAL:
        return StoredType(Wrapper.BYTES, _decimal(info), ValueType.DECIMAL, info)
    if value_type not in set(_V2_TYPES):
        raise UnsupportedError("statistics with values of an unknown type", type=value_type)
    kind = ValueType(value_type)
    return StoredType(*_V2_TYPES[kind], kind, info)


def _plain_type(column: pa.DataType) -> pa.DataType:
    if pa.types.is_dictionary(column):
        return _plain_type(column.value_type)
    if pa.types.is_int8(column) or pa.types.is_int16(column):
        return pa.int32()
    if pa.types.is_large_string(column) or pa.types.is_string_view(column):
        return pa.string()
    if pa.types.is_large_binary(column) or pa.types.is_binary_view(column):
        return pa.binary()
    if pa.types.is_timestamp(column) and column.tz is not None:
        return pa.timestamp(column.unit, "UTC")
    return column


def _stored_decimal(column: pa.DataType, version: IndexVersion) -> StoredType | None:
    if version is IndexVersion.V2:
        info = f"{column.precision},{column.scale}"
        return StoredType(Wrapper.BYTES, column, ValueType.DECIMAL, info)
    limit = _MAX_V1_DECIMAL
    digits = column.precision + limit.scale - column.scale
    if column.scale > limit.scale or digits > limit.precision:
        return None
    return StoredType(Wrapper.DECIMAL, limit)


def _decimal(info: str | None) -> pa.DataType:
    parts = (info or "").split(",")
    if len(parts) != 2 or not all(part.isascii() and part.isdecimal() for part in parts):
        raise CorruptError("statistics of decimals without their precision", info=info)
    precision, scale = map(int, parts)
    if not 0 <= scale <= precision <= _MAX_PRECISION or precision < 1:
        raise CorruptError("statistics of decimals with an impossible precision", info=info)
    return pa.decimal128(precision, scale)


def _avro_type(stored: StoredType) -> AvroType:
    kind = _WRAPPED[stored.wrapper].kind
    return AvroType(kind, stored.arrow)


def _as_stored(values: pa.Array, stored: StoredType) -> pa.Array:
    try:
        return values.cast(stored.arrow)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise InvalidError(
            "values of a column do not fit its statistics",
            type=str(values.type),
            statistics=str(stored.arrow),
        ) from error


def _chunk_of(values: pa.Array) -> tuple[ByteChunk, np.ndarray, np.ndarray]:
    bounds = np.frombuffer(values.buffers()[1], np.int32)[values.offset :][: len(values) + 1]
    bounds = bounds.astype(np.int64)
    data = memoryview(values.buffers()[2] or b"")[bounds[0] : bounds[-1]]
    bounds -= bounds[0]
    return ByteChunk(data), bounds[:-1].copy(), bounds[1:].copy()
