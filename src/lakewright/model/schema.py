"""Meta columns, the Arrow schema of query results, and conforming older rows to it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakewright.errors import CorruptError, InvalidError, UnsupportedError

COMMIT_TIME = "_hoodie_commit_time"
COMMIT_SEQNO = "_hoodie_commit_seqno"
RECORD_KEY = "_hoodie_record_key"
PARTITION_PATH = "_hoodie_partition_path"
FILE_NAME = "_hoodie_file_name"
OPERATION = "_hoodie_operation"  # only in tables of changelog writers
# A boolean column of incoming rows: a row with true in it is a delete.
IS_DELETED = "_hoodie_is_deleted"
META_COLUMNS = (COMMIT_TIME, COMMIT_SEQNO, RECORD_KEY, PARTITION_PATH, FILE_NAME)

META_FIELDS = tuple(pa.field(name, pa.string()) for name in META_COLUMNS)


def query_schema(stored: pa.Schema) -> pa.Schema:
    """Return the schema of query results: meta columns, then the table's, as query types.

    All columns are nullable, because a row may come from a file that is older than a column.
    """
    data_fields = [field for field in stored if field.name not in META_COLUMNS]
    return pa.schema([*META_FIELDS, *(_query_field(field) for field in data_fields)])


def select_fields(schema: pa.Schema, columns: Sequence[str] | None) -> pa.Schema:
    """Return the schema of the given columns in the given order; all columns for None."""
    if columns is None:
        return schema
    names = set(schema.names)
    unknown = [name for name in columns if name not in names]
    if unknown:
        raise InvalidError(
            "the table has no such column", unknown=unknown, columns=list(schema.names)
        )
    return pa.schema([schema.field(name) for name in columns])


def conform(rows: pa.Table, schema: pa.Schema, *, source: str) -> pa.Table:
    """Return rows of an older or narrower schema in this one, with null for missing columns."""
    columns = []
    stored = rows.schema
    for field in schema:
        index = stored.get_field_index(field.name)
        if index < 0:
            columns.append(pa.chunked_array([pa.nulls(len(rows), field.type)]))
            continue
        try:
            columns.append(_conform_column(rows.column(index), field.type))
        except pa.ArrowException as error:
            raise CorruptError(
                "a column on storage does not fit the table's schema",
                file=source,
                column=field.name,
                stored=str(rows.column(index).type),
                expected=str(field.type),
            ) from error
    return pa.table(columns, schema=schema)


def _conform_column(column: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    if column.type == kind:
        return column
    chunks: Iterable[pa.Array] = column.chunks
    return pa.chunked_array([_conform_array(chunk, kind) for chunk in chunks], kind)


def _conform_array(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """Cast an array: struct fields match by name, list and map items whatever their name."""
    if array.type == kind:
        return array
    if array.offset:
        # The children of a sliced array are not sliced: copy it.
        array = array.take(pa.array(np.arange(len(array))))
    if pa.types.is_struct(kind) and pa.types.is_struct(array.type):
        names = {array.type.field(i).name: i for i in range(array.type.num_fields)}
        children = [
            _conform_array(pc.struct_field(array, [names[field.name]]), field.type)
            if field.name in names
            else pa.nulls(len(array), field.type)
            for field in kind
        ]
        return pa.StructArray.from_arrays(children, fields=list(kind), mask=array.is_null())
    if pa.types.is_list(kind) and pa.types.is_list(array.type):
        values = _conform_array(array.values, kind.value_type)
        return pa.ListArray.from_arrays(array.offsets, values, kind, mask=_mask(array))
    if pa.types.is_map(kind) and pa.types.is_map(array.type):
        keys = _conform_array(array.keys, kind.key_type)
        items = _conform_array(array.items, kind.item_type)
        return pa.MapArray.from_arrays(array.offsets, keys, items, kind, mask=_mask(array))
    # All readers accept that widening an integer to a float may lose digits, and that a timestamp
    # may lose its nanoseconds.
    is_lossy = (pa.types.is_integer(array.type) and pa.types.is_floating(kind)) or (
        pa.types.is_timestamp(array.type) and pa.types.is_timestamp(kind)
    )
    return array.cast(kind, safe=not is_lossy)


def _mask(array: pa.Array) -> pa.Array | None:
    return array.is_null() if array.null_count else None


def _query_field(field: pa.Field) -> pa.Field:
    return pa.field(field.name, _query_type(field.type, field.name))


def _query_type(kind: pa.DataType, column: str) -> pa.DataType:
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(f.name, _query_type(f.type, column)) for f in kind])
    if pa.types.is_list(kind):
        return pa.list_(pa.field("element", _query_type(kind.value_type, column)))
    if pa.types.is_map(kind):
        value = pa.field("value", _query_type(kind.item_type, column))
        return pa.map_(_query_type(kind.key_type, column), value)
    if pa.types.is_timestamp(kind):
        # Query results have timestamps in microseconds only.
        return pa.timestamp("us", tz=kind.tz)
    if pa.types.is_fixed_size_binary(kind):
        return pa.binary()
    if pa.types.is_time(kind):
        raise UnsupportedError("a time-of-day column has no type in Spark", column=column)
    return kind
