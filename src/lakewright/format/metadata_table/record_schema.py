"""The Avro schema of the metadata table's records, and what readers make of a writer's schema.

All partitions share one schema, in which every kind of record has a field of its own. Files carry
the schema of their writer: older versions lack fields, so values are found by their names.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from enum import StrEnum
from functools import lru_cache
from typing import Any

import pyarrow as pa

from lakewright.errors import CorruptError, UnsupportedError
from lakewright.format.avro.schema import AvroField, AvroType, load_schema, parse_writer_schema
from lakewright.model.metadata_partitions import MetadataPartitionType, RecordType, partition_type
from lakewright.model.schema import META_COLUMNS


class RecordKind(StrEnum):
    """What the records of a partition hold; several partitions may hold the same."""

    FILES = "files"
    COLUMN_STATS = "column_stats"
    BLOOM_FILTERS = "bloom_filters"
    RECORD_INDEX = "record_index"
    SECONDARY_INDEX = "secondary_index"


# The columns of records in memory, for each kind. `key` is the key of the record.
FILES = pa.schema(
    [
        ("key", pa.string()),
        (
            "files",
            pa.list_(
                pa.struct([("name", pa.string()), ("size", pa.int64()), ("is_deleted", pa.bool_())])
            ),
        ),
    ]
)
# `type` is 3 for a file and 6 for a partition. A value is the number of its wrapper and the Avro
# bytes in it (see column_values.py); `value_type` is null in version 1 of the index.
COLUMN_STATS = pa.schema(
    [
        ("key", pa.string()),
        ("type", pa.int32()),
        ("file_name", pa.string()),
        ("column_name", pa.string()),
        ("min_wrapper", pa.int8()),
        ("min_value", pa.binary()),
        ("max_wrapper", pa.int8()),
        ("max_value", pa.binary()),
        ("value_count", pa.int64()),
        ("null_count", pa.int64()),
        ("total_size", pa.int64()),
        ("total_uncompressed_size", pa.int64()),
        ("is_deleted", pa.bool_()),
        ("is_tight_bound", pa.bool_()),
        ("value_type", pa.int32()),
        ("value_type_info", pa.string()),
    ]
)
# `bloom_filter` is the text in the footer of the base file.
BLOOM_FILTERS = pa.schema(
    [
        ("key", pa.string()),
        ("filter_type", pa.string()),
        ("timestamp", pa.string()),
        ("bloom_filter", pa.binary()),
        ("is_deleted", pa.bool_()),
    ]
)
RECORD_INDEX = pa.schema(
    [
        ("key", pa.string()),
        ("partition", pa.string()),
        ("file_id_high", pa.int64()),
        ("file_id_low", pa.int64()),
        ("file_index", pa.int32()),
        ("file_id", pa.string()),
        ("instant_ms", pa.int64()),
        ("file_id_encoding", pa.int32()),
        ("position", pa.int64()),
    ]
)
SECONDARY_INDEX = pa.schema([("key", pa.string()), ("is_deleted", pa.bool_())])

RECORD_COLUMNS: Mapping[RecordKind, pa.Schema] = {
    RecordKind.FILES: FILES,
    RecordKind.COLUMN_STATS: COLUMN_STATS,
    RecordKind.BLOOM_FILTERS: BLOOM_FILTERS,
    RecordKind.RECORD_INDEX: RECORD_INDEX,
    RecordKind.SECONDARY_INDEX: SECONDARY_INDEX,
}
# The types that records of a kind may have, and the field that holds them.
RECORD_TYPES: Mapping[RecordKind, tuple[RecordType, ...]] = {
    RecordKind.FILES: (RecordType.PARTITION_LIST, RecordType.FILE_LIST),
    RecordKind.COLUMN_STATS: (RecordType.COLUMN_STATS, RecordType.PARTITION_STATS),
    RecordKind.BLOOM_FILTERS: (RecordType.BLOOM_FILTER,),
    RecordKind.RECORD_INDEX: (RecordType.RECORD_INDEX,),
    RecordKind.SECONDARY_INDEX: (RecordType.SECONDARY_INDEX,),
}
RECORD_FIELDS: Mapping[RecordKind, str] = {
    RecordKind.FILES: "filesystemMetadata",
    RecordKind.COLUMN_STATS: "ColumnStatsMetadata",
    RecordKind.BLOOM_FILTERS: "BloomFilterMetadata",
    RecordKind.RECORD_INDEX: "recordIndexMetadata",
    RecordKind.SECONDARY_INDEX: "SecondaryIndexMetadata",
}

_KINDS = {
    MetadataPartitionType.FILES: RecordKind.FILES,
    MetadataPartitionType.COLUMN_STATS: RecordKind.COLUMN_STATS,
    MetadataPartitionType.PARTITION_STATS: RecordKind.COLUMN_STATS,
    MetadataPartitionType.BLOOM_FILTERS: RecordKind.BLOOM_FILTERS,
    MetadataPartitionType.RECORD_INDEX: RecordKind.RECORD_INDEX,
    MetadataPartitionType.SECONDARY_INDEX: RecordKind.SECONDARY_INDEX,
}
_ARROW = {
    "null": pa.null(),
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "string": pa.string(),
}
_NULL_TYPE = AvroType("null", pa.null())
# Without these fields a record says nothing.
_NEEDED = ("key", "type", "value", "size", "isDeleted", "minValue", "maxValue")


def record_kind(folder: str, index_type: str | None = None) -> RecordKind:
    """Return what the records of a partition of the metadata table hold.

    Args:
        folder: the partition.
        index_type: the type in the definition of an expression index, which may hold column
            statistics or bloom filters.
    """
    kind = partition_type(folder)
    if kind is not MetadataPartitionType.EXPRESSION_INDEX:
        return _KINDS[kind]
    if index_type in (RecordKind.COLUMN_STATS, RecordKind.BLOOM_FILTERS):
        return RecordKind(index_type)
    raise UnsupportedError("an expression index of another type", index=folder, type=index_type)


@lru_cache(maxsize=2)
def record_schema_json(*, meta_columns: bool = True) -> str:
    """Return the schema of new files and blocks, or without meta columns that of commit metadata.

    It lacks the documentation that Hudi's text has, which is half of it. It keeps the attributes of
    strings: some readers refuse file groups whose blocks differ in them.
    """
    text = load_schema("HoodieMetadataRecord").text
    if not meta_columns:
        return text
    tree = json.loads(text)
    columns = [
        {"name": name, "type": ["null", "string"], "doc": "", "default": None}
        for name in META_COLUMNS
    ]
    tree["fields"] = columns + tree["fields"]
    return json.dumps(tree, separators=(",", ":"))


@lru_cache(maxsize=16)
def parse_record_schema(schema_json: bytes) -> AvroType:
    """Resolve the schema of a file's values; cached, because a table has few of them."""
    writer = parse_writer_schema(schema_json)
    record = _resolve(writer.plain, {})
    if not _reads_as(record, own_record_schema()):
        raise CorruptError("a schema is not that of a metadata table", record=writer.name)
    return record


@lru_cache(maxsize=1)
def own_record_schema() -> AvroType:
    """Return the schema of `record_schema_json()`, resolved."""
    return _resolve(parse_writer_schema(record_schema_json().encode()).plain, {})


def _reads_as(found: AvroType, own: AvroType) -> bool:
    """Whether values of a writer's type are such that the reader takes them for its own type.

    Fields that older writers do not have may be missing, and others may be there.
    """
    if found.kind != own.kind:
        return False
    theirs = {child.name: child.type for child in found.children}
    if own.kind in ("array", "map"):
        return _reads_as(found.children[0].type, own.children[0].type)
    needed = () if own.kind == "union" else _NEEDED
    return all(
        _reads_as(theirs[child.name], child.type) if child.name in theirs else True
        for child in own.children
    ) and all(child.name in theirs for child in own.children if child.name in needed)


def _resolve(plain: Any, named: dict[str, AvroType]) -> AvroType:
    if isinstance(plain, str):
        return AvroType(plain, _ARROW[plain]) if plain in _ARROW else named[plain]
    if isinstance(plain, list):
        return _resolve_union(plain, named)
    if plain["type"] == "array":
        items = AvroField("item", _resolve(plain["items"], named))
        return AvroType("array", pa.null(), (items,))
    if plain["type"] == "map":
        entry = (
            AvroField("key", AvroType("string", pa.string())),
            AvroField("value", _resolve(plain["values"], named)),
        )
        return AvroType(
            "map", pa.null(), (AvroField("entry", AvroType("record", pa.null(), entry)),)
        )
    fields = tuple(
        AvroField(child["name"], _resolve(child["type"], named)) for child in plain["fields"]
    )
    named[plain["name"]] = AvroType("record", pa.null(), fields)
    return named[plain["name"]]


def _resolve_union(plain: list[Any], named: dict[str, AvroType]) -> AvroType:
    branches = [_resolve(branch, named) for branch in plain]
    if len(branches) == 2 and _NULL_TYPE in branches:
        null_branch = branches.index(_NULL_TYPE)
        value = branches[1 - null_branch]
        if value.branch is None and value.kind != "union":
            return replace(value, branch=1 - null_branch, null_branch=null_branch)
    names = [_branch_name(branch) for branch in plain]
    children = tuple(map(AvroField, names, branches))
    return AvroType("union", pa.null(), children)


def _branch_name(plain: Any) -> str:
    name: str = plain["name"] if isinstance(plain, dict) and "name" in plain else str(plain)
    return name.rpartition(".")[2]
