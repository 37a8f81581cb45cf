"""Records of the metadata table's `files` partition, which list the files of a table."""

from __future__ import annotations

import io
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import fastavro

from lakewright.errors import CorruptError
from lakewright.format.avro.schema import parse_writer_schema
from lakewright.format.hfile import HFile, parse_hfile
from lakewright.format.log_block import BlockKind, LogBlock

ALL_PARTITIONS = "__all_partitions__"
# The partition name that the metadata table uses for a table without partitions.
_NO_PARTITION = "."
_PARTITION_LIST, _FILE_LIST = 1, 2
_DECODE_ERRORS = (
    AttributeError,
    EOFError,
    LookupError,
    MemoryError,
    OverflowError,
    TypeError,
    ValueError,
)


@dataclass(frozen=True, slots=True)
class ListedFile:
    """A file of a partition, or a partition of the table; `is_deleted` removes an earlier entry."""

    size: int
    is_deleted: bool


@dataclass(frozen=True, slots=True)
class MetadataRecord:
    """The changes of one commit to a partition, or to the list of partitions."""

    key: str
    listed: Mapping[str, ListedFile]


def metadata_records(source: HFile | LogBlock) -> list[MetadataRecord]:
    """Return the records of an HFile or a log block of the `files` partition."""
    hfile, schema = _hfile_and_schema(source)
    parsed = parse_writer_schema(schema).parsed
    return [_record(key, value, parsed) for key, value in hfile.entries]


def merged_listing(records: Iterable[MetadataRecord]) -> dict[str, dict[str, int]]:
    """Return the files of each partition with their sizes, from records in commit order."""
    partitions: dict[str, int] = {}
    files: dict[str, dict[str, int]] = {}
    for record in records:
        target = partitions
        if record.key != ALL_PARTITIONS:
            target = files.setdefault(_partition_path(record.key), {})
        for name, file in record.listed.items():
            if file.is_deleted:
                target.pop(name, None)
            else:
                target[name] = max(file.size, target.get(name, 0))
    return {_partition_path(name): files.get(_partition_path(name), {}) for name in partitions}


def _hfile_and_schema(source: HFile | LogBlock) -> tuple[HFile, bytes]:
    if isinstance(source, LogBlock):
        if source.kind is not BlockKind.HFILE:
            raise source.corrupt("a log block of the metadata table is no HFile")
        hfile, header = parse_hfile(source.content), source.schema_json
        schema = header.encode() if header is not None else hfile.info.get("schema")
    else:
        hfile, schema = source, source.info.get("schema")
    if schema is None:
        raise CorruptError("an HFile of the metadata table has no schema")
    return hfile, schema


def _record(key: bytes, value: bytes, schema: Any) -> MetadataRecord:
    stream = io.BytesIO(value)
    try:
        name = key.decode()
        record: Any = fastavro.schemaless_reader(stream, schema, None)
        kind, listed = record["type"], record["filesystemMetadata"] or {}
        items = {file: ListedFile(i["size"], i["isDeleted"]) for file, i in listed.items()}
    except (*_DECODE_ERRORS, struct.error) as error:
        raise CorruptError(
            "a record of the metadata table is damaged", key=key, cause=str(error)
        ) from error
    expected = _PARTITION_LIST if name == ALL_PARTITIONS else _FILE_LIST
    if kind != expected or stream.read(1):
        raise CorruptError("a record of the metadata table is not what it should be", key=key)
    return MetadataRecord(name, items)


def _partition_path(partition: str) -> str:
    return "" if partition == _NO_PARTITION else partition
