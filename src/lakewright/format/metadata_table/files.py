"""Log files and base files of the metadata table.

A log file of one commit holds at most one block of records, which is an HFile, and after it one
block of deleted keys. A base file is an HFile.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from lakewright.errors import CorruptError, InvalidError
from lakewright.format.bloom_filter import BloomSettings, build_bloom, format_bloom
from lakewright.format.delete_block import (
    DeleteRecords,
    format_delete_block,
    parse_delete_block,
)
from lakewright.format.hfile.layout import HFileEntries
from lakewright.format.hfile.reader import HFile, HFileIndex, HFileReader, ReadRange, parse_hfile
from lakewright.format.hfile.writer import format_hfile
from lakewright.format.log_block import BlockKind, Header, LogBlock, format_block
from lakewright.format.metadata_table.record_schema import RecordKind, record_schema_json
from lakewright.format.metadata_table.records import decode_records

_FILTER_BLOCK = "bloomFilter"
_FILTER_TYPE, _LEAST_KEY, _GREATEST_KEY = "bloomFilterTypeCode", "minRecordKey", "maxRecordKey"
# The filter that Hudi gives base files of a metadata table.
_FILTER = BloomSettings(entries=10_000)


@dataclass(frozen=True, slots=True, eq=False)
class DeletedKeys:
    """Keys whose records are deleted, as a block of a log file says."""

    keys: pa.Array


def format_log_file(
    folder: str,
    instant: str,
    created_ms: int,
    records: HFileEntries | None = None,
    deleted: pa.Array | None = None,
    *,
    schema_json: str | None = None,
    compacted_instants: Sequence[str] = (),
) -> bytes:
    """Return the log file that a commit writes to one shard.

    Args:
        folder: the partition of the metadata table.
        instant: the instant of the commit.
        created_ms: the time now, in milliseconds.
        records: the records, with ascending keys.
        deleted: the keys that are deleted.
        schema_json: the schema of the records; by default that of new files.
        compacted_instants: the instants whose blocks these replace, in a log compaction.

    Raises:
        InvalidError: there are neither records nor deletes, or a key is in both: the delete, which
            is read after the records, would hide its record.
    """
    schema = record_schema_json() if schema_json is None else schema_json
    keys = None if deleted is None else deleted.cast(pa.string())
    blocks = []
    if records is not None and len(records):
        headers = {Header.INSTANT_TIME: instant, Header.SCHEMA: schema}
        if compacted_instants:
            headers[Header.COMPACTED_BLOCK_TIMES] = ",".join(compacted_instants)
        content = format_hfile(records, schema, created_ms)
        blocks.append(format_block(BlockKind.HFILE, headers, content))
        if keys is not None and pc.any(pc.is_in(keys, records.keys.cast(pa.string()))).as_py():
            raise InvalidError("a key of the metadata table is written and deleted", folder=folder)
    if keys is not None and len(keys):
        deletes = _delete_records(keys, folder)
        blocks.append(
            format_delete_block(deletes, instant, schema, compacted_instants=compacted_instants)
        )
    if not blocks:
        raise InvalidError("a log file of a metadata table without content", folder=folder)
    return b"".join(blocks)


def format_initial_log_file(instant: str) -> bytes:
    """Return the log file that shows a new shard to readers, before there is anything in it."""
    return format_delete_block(_delete_records(pa.array([], pa.string()), ""), instant)


def read_block(kind: RecordKind, block: LogBlock) -> pa.Table | DeletedKeys:
    """Return the records of a block, or the keys that it deletes."""
    if block.kind is BlockKind.DELETE:
        return DeletedKeys(parse_delete_block(block).keys)
    if block.kind is not BlockKind.HFILE:
        raise block.corrupt("a log file of a metadata table has a block of another kind")
    hfile = parse_hfile(block.content)
    schema = None if block.schema_json is None else block.schema_json.encode()
    return read_records(kind, hfile, schema)


def block_reader(
    read_range: ReadRange, block: LogBlock, index: HFileIndex | None = None
) -> HFileReader:
    """Return a reader of the records in one block of a log file.

    Args:
        read_range: reads ranges of the log file.
        block: the block, which may have been read without its content.
        index: the index of the block's HFile, if it was loaded before.
    """

    def read(offset: int, length: int) -> bytes | memoryview:
        return read_range(block.content_offset + offset, length)

    if block.kind is not BlockKind.HFILE:
        raise InvalidError("a block of a metadata table holds no records", kind=block.kind.name)
    if index is not None:
        return HFileReader(read, index)
    return HFileReader.open(read, block.content_size)


def look_up_records(
    kind: RecordKind, reader: HFileReader, keys: pa.Array, schema_json: bytes | None = None
) -> pa.Table:
    """Return the records of those keys that a file has.

    Args:
        kind: what the records hold.
        reader: reads the file by ranges; only blocks that can hold a key are read.
        keys: the keys, in any order.
        schema_json: the schema of a block of a log file; that of a base file is in the file.
    """
    schema = _schema(kind, reader.index.schema_json, schema_json)
    return decode_records(kind, reader.entries_with(keys), schema)


def scan_records(
    kind: RecordKind,
    reader: HFileReader,
    prefixes: Iterable[str] = ("",),
    schema_json: bytes | None = None,
) -> Iterator[pa.Table]:
    """Yield the records whose keys begin with one of the prefixes, in batches."""
    schema = _schema(kind, reader.index.schema_json, schema_json)
    for entries in reader.with_prefixes(prefix.encode() for prefix in prefixes):
        yield decode_records(kind, entries, schema)


def read_records(kind: RecordKind, hfile: HFile, schema_json: bytes | None = None) -> pa.Table:
    """Return the records of an HFile, whose schema a log file has beside it."""
    return decode_records(kind, hfile.entries, _schema(kind, hfile.info.get("schema"), schema_json))


def format_base_file(
    records: HFileEntries,
    created_ms: int,
    *,
    schema_json: str | None = None,
    with_filter: bool = False,
) -> bytes:
    """Return the base file of a shard.

    Args:
        records: the records, with ascending keys.
        created_ms: the time now, in milliseconds.
        schema_json: the schema of the records; by default that of new files.
        with_filter: whether to add a bloom filter and the range of the keys, as Hudi does, whose
            readers make no use of them.
    """
    schema = record_schema_json() if schema_json is None else schema_json
    info: Mapping[str, bytes] = {}
    meta: Mapping[str, bytes] = {}
    if with_filter:
        bloom = format_bloom(build_bloom(records.keys.cast(pa.string()), _FILTER))
        keys = records.keys
        info = {
            _LEAST_KEY: keys[0].as_py() if len(keys) else b"",
            _GREATEST_KEY: keys[-1].as_py() if len(keys) else b"",
            _FILTER_TYPE: _FILTER.kind.encode(),
        }
        meta = {_FILTER_BLOCK: b64encode(bloom)}
    return format_hfile(records, schema, created_ms, info=info, meta=meta)


def _schema(kind: RecordKind, stored: bytes | None, schema_json: bytes | None) -> bytes:
    schema = stored if schema_json is None else schema_json
    if schema is None:
        raise CorruptError("an HFile of a metadata table has no schema", kind=kind)
    return schema


def _delete_records(keys: pa.Array, folder: str) -> DeleteRecords:
    partitions = pa.repeat(pa.scalar(folder), len(keys))
    return DeleteRecords(keys, partitions, pa.repeat(pa.scalar(True), len(keys)))
