"""Records of the metadata table: entries of HFiles to tables and back, many records at a time.

Each kind of record is a table of its own columns (see record_schema.py). Values of an HFile hold
everything but the key, which is that of the entry.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakewright.errors import CorruptError, InvalidError
from lakewright.format.avro.decode import (
    ByteChunk,
    RowCursors,
    items,
    present,
    read_slices,
    read_values,
    row_chunks,
    skip,
)
from lakewright.format.avro.encode import Part, join_parts, value_parts, varint_parts
from lakewright.format.avro.schema import AvroType
from lakewright.format.hfile.layout import HFileEntries, ascend_strictly
from lakewright.format.hfile.writer import sorted_entries
from lakewright.format.metadata_table.column_values import WRAPPER_NAMES, Wrapper
from lakewright.format.metadata_table.record_schema import (
    RECORD_COLUMNS,
    RECORD_FIELDS,
    RECORD_TYPES,
    RecordKind,
    own_record_schema,
    parse_record_schema,
)
from lakewright.model.metadata_keys import ALL_PARTITIONS
from lakewright.model.metadata_partitions import RecordType
from lakewright.model.schema import META_COLUMNS
from lakewright.utils.grouped_rows import distinct_rows

Columns: TypeAlias = dict[str, pa.Array]

# The names of columns in memory and of fields on storage, where they are plain values.
_BLOOM_FIELDS = {
    "filter_type": "type",
    "timestamp": "timestamp",
    "bloom_filter": "bloomFilter",
    "is_deleted": "isDeleted",
}
_STATS_FIELDS = {
    "file_name": "fileName",
    "column_name": "columnName",
    "value_count": "valueCount",
    "null_count": "nullCount",
    "total_size": "totalSize",
    "total_uncompressed_size": "totalUncompressedSize",
    "is_deleted": "isDeleted",
    "is_tight_bound": "isTightBound",
}
_LOCATION_FIELDS = {
    "partition": "partitionName",
    "file_id_high": "fileIdHighBits",
    "file_id_low": "fileIdLowBits",
    "file_index": "fileIndex",
    "file_id": "fileId",
    "instant_ms": "instantTime",
    "file_id_encoding": "fileIdEncoding",
    "position": "position",
}
_PLAIN_FIELDS: Mapping[RecordKind, Mapping[str, str]] = {
    RecordKind.COLUMN_STATS: _STATS_FIELDS,
    RecordKind.BLOOM_FILTERS: _BLOOM_FIELDS,
    RecordKind.RECORD_INDEX: _LOCATION_FIELDS,
    RecordKind.SECONDARY_INDEX: {"is_deleted": "isDeleted"},
}
# What fields are that the schemas of older writers lack.
_DEFAULTS = {"is_tight_bound": False, "file_id_encoding": 0}
_ABSENT, _PRESENT = b"\x00", b"\x02"
# Readers take the key of the entry.
_EMPTY_KEY = b"\x00"


def decode_records(kind: RecordKind, entries: HFileEntries, schema_json: bytes) -> pa.Table:
    """Return the records of some entries, in their order.

    Args:
        kind: what the records hold.
        entries: keys and values.
        schema_json: the schema of the writer, from the file or the block that has the entries.

    Raises:
        CorruptError: a value does not fit the schema, or is of another kind.
    """
    schema = parse_record_schema(schema_json)
    if RECORD_FIELDS[kind] not in {field.name for field in schema.children}:
        raise CorruptError("a schema has no records of this kind", kind=kind)
    columns = RECORD_COLUMNS[kind]
    try:
        keys = entries.keys.cast(pa.string())
        batches = list(_decoded(kind, keys, entries.values, schema))
        return pa.Table.from_batches(batches, columns)
    except (IndexError, pa.ArrowInvalid) as error:
        raise CorruptError(
            "a record of the metadata table is damaged", kind=kind, cause=str(error)
        ) from error


def encode_records(
    kind: RecordKind, records: pa.Table, file_name: str | None = None
) -> HFileEntries:
    """Return the entries of some records, sorted by key; their schema is `record_schema_json()`.

    Args:
        kind: what the records hold.
        records: the records.
        file_name: the name of the base file that a compaction writes; all other meta columns are
            null, and in other files this one is.

    Raises:
        InvalidError: a record has no key, two have the same, or a value does not fit.
    """
    columns = RECORD_COLUMNS[kind]
    try:
        batches = records.select(columns.names).cast(columns).combine_chunks().to_batches()
        head = _head(file_name)
        encoded = [
            HFileEntries(batch["key"].cast(pa.binary()), _encoded(kind, batch, head))
            for batch in batches
        ]
    except (
        KeyError,
        pa.ArrowInvalid,
        pa.ArrowNotImplementedError,
        pa.ArrowCapacityError,
    ) as error:
        raise InvalidError(
            "records do not fit their columns", kind=kind, cause=str(error)
        ) from error
    empty = pa.array([], pa.binary())
    keys = pa.concat_arrays([empty, *(entries.keys for entries in encoded)])
    values = pa.concat_arrays([empty, *(entries.values for entries in encoded)])
    if keys.null_count:
        raise InvalidError("a record of the metadata table has no key", kind=kind)
    entries = sorted_entries(HFileEntries(keys, values))
    if not ascend_strictly(entries.keys):
        raise InvalidError("two records of the metadata table have one key", kind=kind)
    return entries


# Decoding.


def _decoded(
    kind: RecordKind, keys: pa.Array, values: pa.Array, schema: AvroType
) -> Iterator[pa.RecordBatch]:
    if not len(values):
        return
    stored = np.frombuffer(values.buffers()[1], np.int32)[values.offset :]
    bounds = stored[: len(values) + 1].astype(np.int64)
    content = memoryview(values.buffers()[2] or b"")
    starts, ends = bounds[:-1], bounds[1:]
    names = RECORD_COLUMNS[kind].names
    for first, last in row_chunks(starts, ends):
        base = int(starts[first])
        chunk = ByteChunk(content[base : int(ends[last - 1])])
        rows = RowCursors(chunk, starts[first:last] - base, ends[first:last] - base)
        columns = _read_record(kind, schema, rows)
        if np.any(rows.at != rows.limit):
            raise CorruptError("a record is longer or shorter than its schema says", kind=kind)
        columns["key"] = keys[first:last]
        batch = [columns[name] for name in names]
        yield pa.RecordBatch.from_arrays(batch, schema=RECORD_COLUMNS[kind])


def _read_record(kind: RecordKind, schema: AvroType, rows: RowCursors) -> Columns:
    columns: Columns = {}
    for field in schema.children:
        if field.name == "type":
            columns["type"] = read_values(field.type, rows)
        elif field.name != RECORD_FIELDS[kind]:
            skip(field.type, rows)
        elif kind is RecordKind.FILES:
            columns["files"] = _read_files(field.type, rows)
        else:
            if present(field.type, rows) is not None:
                raise CorruptError("a record of the metadata table is of another kind", kind=kind)
            columns |= _read_fields(kind, field.type, rows)
    allowed = pa.array(list(map(int, RECORD_TYPES[kind])), pa.int32())
    if not pc.all(pc.is_in(columns["type"], value_set=allowed)).as_py():
        raise CorruptError("a record of the metadata table is of another kind", kind=kind)
    return columns


def _read_fields(kind: RecordKind, record: AvroType, rows: RowCursors) -> Columns:
    columns: Columns = {}
    names = {stored: name for name, stored in _PLAIN_FIELDS[kind].items()}
    for field in record.children:
        if field.name in names:
            columns[names[field.name]] = read_values(field.type, rows)
        elif field.name in ("minValue", "maxValue"):
            side = field.name[:3]
            wrappers, values = _read_union(field.type, rows)
            columns |= {f"{side}_wrapper": wrappers, f"{side}_value": values}
        elif field.name == "valueType":
            columns |= _read_value_type(field.type, rows)
        else:
            skip(field.type, rows)
    for column in RECORD_COLUMNS[kind]:
        if column.name not in columns and column.name not in ("key", "type"):
            default = pa.scalar(_DEFAULTS.get(column.name), column.type)
            columns[column.name] = pa.repeat(default, len(rows))
    return columns


def _read_union(union: AvroType, rows: RowCursors) -> tuple[pa.Array, pa.Array]:
    """Return wrapper and bytes of one value of each row."""
    names = [field.name for field in union.children]
    wrappers = np.array([WRAPPER_NAMES.get(name, -1) for name in names], np.int8)
    start = RowCursors(rows.chunk, rows.at, rows.limit)
    branch = start.varint()
    skip(union, rows)
    used = wrappers[branch]
    if np.any(used < 0):
        raise CorruptError("a value of statistics is in an unknown wrapper", wrappers=names)
    start.check_room(rows.at - start.at)
    return pa.array(used), read_slices(start, rows.at - start.at)


def _read_value_type(record: AvroType, rows: RowCursors) -> Columns:
    has_type = present(record, rows)
    which = np.ones(len(rows), bool) if has_type is None else has_type
    inner = rows.some(which)
    columns: Columns = {}
    if len(inner):
        fields = {"typeOrdinal": "value_type", "additionalInfo": "value_type_info"}
        for field in record.children:
            if field.name in fields:
                columns[fields[field.name]] = read_values(field.type, inner)
            else:
                skip(field.type, inner)
    rows.at[which] = inner.at
    index = pa.array(np.cumsum(which, dtype=np.int32) - 1, mask=~which)
    return {name: values.take(index) for name, values in columns.items()}


def _read_files(kind: AvroType, rows: RowCursors) -> pa.Array:
    has_files = present(kind, rows)
    which = np.ones(len(rows), bool) if has_files is None else has_files
    inner = rows.some(which)
    entry = kind.children[0].type
    counts = np.zeros(len(rows), np.int64)
    starts = np.zeros(0, np.int64)
    if len(inner):
        counts[which], starts = items(entry, inner)
    rows.at[which] = inner.at
    entries = RowCursors(rows.chunk, starts, np.repeat(rows.limit, counts))
    offsets = np.zeros(len(rows) + 1, np.int32)
    np.cumsum(counts, out=offsets[1:])
    files = _read_entries(entry, entries)
    return pa.ListArray.from_arrays(pa.array(offsets), files)


def _read_entries(entry: AvroType, rows: RowCursors) -> pa.StructArray:
    name, file = entry.children
    columns: Columns = {"name": read_values(name.type, rows)}
    for field in file.type.children:
        if field.name in ("size", "isDeleted"):
            columns[field.name] = read_values(field.type, rows)
        else:
            skip(field.type, rows)
    fields = RECORD_COLUMNS[RecordKind.FILES].field("files").type.value_type
    ordered = [columns["name"], columns["size"], columns["isDeleted"]]
    return pa.StructArray.from_arrays(ordered, fields=list(fields))


# Encoding.


def _encoded(kind: RecordKind, records: pa.RecordBatch, head: bytes) -> pa.Array:
    schema = own_record_schema()
    fields = [child for child in schema.children if child.name in RECORD_FIELDS.values()]
    place = [child.name for child in fields].index(RECORD_FIELDS[kind])
    types, parts = _ENCODERS[kind](records, fields[place].type)
    before = pa.scalar(_ABSENT * place)
    after = pa.scalar(_ABSENT * (len(fields) - place - 1))
    return join_parts([pa.scalar(head), types, before, *parts, after])


def _head(file_name: str | None) -> bytes:
    """Return what all values of a file begin with: the meta columns and the key."""
    text = AvroType("string", pa.string(), branch=1, null_branch=0)
    name = join_parts(value_parts(text, pa.array([file_name], pa.string()), "file_name"))[0]
    others = _ABSENT * (len(META_COLUMNS) - 1)
    encoded: bytes = name.as_py()
    return others + encoded + _EMPTY_KEY


def _encode_files(records: pa.RecordBatch, kind: AvroType) -> tuple[Part, list[Part]]:
    files = records["files"]
    names, sizes, deleted = files.flatten().flatten()
    is_list = pc.equal(records["key"], ALL_PARTITIONS)
    of_list = is_list.take(pc.list_parent_indices(files))
    if pc.any(pc.and_not(pc.less_equal(sizes, 0), pc.or_(deleted, of_list))).as_py():
        raise InvalidError("a file in a listing must have a size")
    info = pa.StructArray.from_arrays([sizes, deleted], ["size", "isDeleted"])
    entries = pa.StructArray.from_arrays([names, info], ["key", "value"])
    offsets = pc.subtract(files.offsets, files.offsets[0])
    entries_by_record = pa.ListArray.from_arrays(offsets, entries)
    types = pc.if_else(is_list, int(RecordType.PARTITION_LIST), int(RecordType.FILE_LIST))
    return _type_part(RecordKind.FILES, types), value_parts(kind, entries_by_record, "files")


def _encode_stats(records: pa.RecordBatch, kind: AvroType) -> tuple[Part, list[Part]]:
    parts: list[Part] = [pa.scalar(_PRESENT)]
    names = {stored: name for name, stored in _STATS_FIELDS.items()}
    for field in kind.children:
        if field.name in names:
            column = records[names[field.name]]
            parts += value_parts(field.type, column, names[field.name])
        elif field.name == "valueType":
            parts.append(_value_type_part(records))
        else:
            side = field.name[:3]
            parts += _union_parts(records[f"{side}_wrapper"], records[f"{side}_value"])
    return _type_part(RecordKind.COLUMN_STATS, records["type"]), parts


def _encode_plain(kind: RecordKind) -> _Encoder:
    names = {stored: name for name, stored in _PLAIN_FIELDS[kind].items()}

    def encode(records: pa.RecordBatch, record: AvroType) -> tuple[Part, list[Part]]:
        # Millions of keys are in some thousand file groups, and differ in nothing else.
        distinct, numbers = distinct_rows(records, list(names.values()))
        parts: list[Part] = [pa.scalar(_PRESENT)]
        for field in record.children:
            name = names[field.name]
            parts += value_parts(field.type, distinct[name], name)
        types = pa.scalar(_zigzag_byte(RECORD_TYPES[kind][0]))
        return types, [join_parts(parts).take(pa.array(numbers))]

    return encode


def _value_type_part(records: pa.RecordBatch) -> pa.Array:
    distinct, numbers = distinct_rows(records, ["value_type", "value_type_info"])
    ordinals = distinct["value_type"]
    info_type = AvroType("string", pa.string(), branch=1, null_branch=0)
    encoded = join_parts(
        [
            pa.scalar(_PRESENT),
            varint_parts(np.asarray(pc.fill_null(ordinals, 0)).astype(np.int64)),
            *value_parts(info_type, distinct["value_type_info"], "value_type_info"),
        ]
    )
    return pc.if_else(ordinals.is_valid(), encoded, pa.scalar(_ABSENT)).take(pa.array(numbers))


def _union_parts(wrappers: pa.Array, values: pa.Array) -> list[Part]:
    branches = pa.array([_zigzag_byte(wrapper) for wrapper in Wrapper], pa.binary())
    is_known = pc.is_in(wrappers, pa.array(list(map(int, Wrapper)), wrappers.type))
    is_null = pc.equal(wrappers, pa.scalar(int(Wrapper.NULL), wrappers.type))
    is_empty = pc.equal(pc.binary_length(values), 0)
    if values.null_count or not pc.all(pc.and_(is_known, pc.equal(is_null, is_empty))).as_py():
        raise InvalidError("a value of statistics is not in its wrapper")
    return [branches.take(wrappers), values]


def _type_part(kind: RecordKind, types: pa.Array) -> pa.Array:
    allowed = [int(number) for number in RECORD_TYPES[kind]]
    if not pc.all(pc.is_in(types, pa.array(allowed, types.type))).as_py():
        raise InvalidError("a record of the metadata table is of another kind", kind=kind)
    places = pa.array([_zigzag_byte(number) for number in allowed], pa.binary())
    return places.take(pc.index_in(types, pa.array(allowed, types.type)))


def _zigzag_byte(number: int) -> bytes:
    return bytes([number * 2])


_Encoder: TypeAlias = Callable[[pa.RecordBatch, AvroType], tuple[Part, list[Part]]]

_ENCODERS: Mapping[RecordKind, _Encoder] = {
    RecordKind.FILES: _encode_files,
    RecordKind.COLUMN_STATS: _encode_stats,
    RecordKind.BLOOM_FILTERS: _encode_plain(RecordKind.BLOOM_FILTERS),
    RecordKind.RECORD_INDEX: _encode_plain(RecordKind.RECORD_INDEX),
    RecordKind.SECONDARY_INDEX: _encode_plain(RecordKind.SECONDARY_INDEX),
}
