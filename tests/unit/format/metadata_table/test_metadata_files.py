"""Log files and base files of metadata tables, and their properties."""

from __future__ import annotations

from base64 import b64decode

import pyarrow as pa
import pytest

from lakewright.errors import CorruptError, InvalidError, UnsupportedError
from lakewright.format.bloom_filter import BloomType, parse_bloom
from lakewright.format.hfile.reader import HFile, parse_hfile
from lakewright.format.log_block import (
    BlockKind,
    Header,
    LogBlock,
    format_block,
    parse_blocks,
    parse_heads,
)
from lakewright.format.metadata_table.files import (
    DeletedKeys,
    block_reader,
    format_base_file,
    format_initial_log_file,
    format_log_file,
    look_up_records,
    read_block,
    read_records,
    scan_records,
)
from lakewright.format.metadata_table.properties import (
    MetadataTableProperties,
    format_metadata_properties,
    parse_metadata_properties,
)
from lakewright.format.metadata_table.record_schema import (
    SECONDARY_INDEX,
    RecordKind,
    record_schema_json,
)
from lakewright.format.metadata_table.records import encode_records
from lakewright.format.table_properties import parse_properties
from support.hfiles import as_plain, hfile_entries
from support.metadata_records import listing

RECORDS = encode_records(RecordKind.FILES, listing(p={"a": 5}, q={"b": 6}))
INSTANT = "20260101000000000"


def blocks(data: bytes) -> list[LogBlock]:
    return parse_blocks(data, file_name="log")


def test_records_come_before_deletes() -> None:
    data = format_log_file("files", INSTANT, 7, RECORDS, pa.array(["x", "y"]))
    first, second = blocks(data)
    assert (first.kind, second.kind) == (BlockKind.HFILE, BlockKind.DELETE)
    assert first.headers == second.headers
    assert first.headers == {Header.INSTANT_TIME: INSTANT, Header.SCHEMA: record_schema_json()}
    records = read_block(RecordKind.FILES, first)
    assert isinstance(records, pa.Table)
    assert records.equals(listing(p={"a": 5}, q={"b": 6}))
    deletes = read_block(RecordKind.FILES, second)
    assert isinstance(deletes, DeletedKeys)
    assert deletes.keys.to_pylist() == ["x", "y"]


def test_there_is_no_block_without_content() -> None:
    nothing = pa.array([], pa.string())
    (only,) = blocks(format_log_file("files", INSTANT, 7, RECORDS, nothing))
    assert only.kind is BlockKind.HFILE
    (only,) = blocks(format_log_file("files", INSTANT, 7, hfile_entries(), pa.array(["x"])))
    assert only.kind is BlockKind.DELETE
    with pytest.raises(InvalidError):
        format_log_file("files", INSTANT, 7, hfile_entries(), nothing)
    with pytest.raises(InvalidError):
        format_log_file("files", INSTANT, 7)


def test_a_key_is_not_written_and_deleted_at_once() -> None:
    with pytest.raises(InvalidError):
        format_log_file("files", INSTANT, 7, RECORDS, pa.array(["x", "p"]))


def test_a_log_compaction_names_what_it_replaces() -> None:
    data = format_log_file(
        "files", INSTANT, 7, RECORDS, pa.array(["x"]), compacted_instants=("1", "2")
    )
    assert [block.compacted_instants for block in blocks(data)] == [("1", "2")] * 2


def test_blocks_keep_the_schema_of_their_file_group() -> None:
    schema = record_schema_json().replace('"doc":""', '"doc":"d"')
    data = format_log_file("files", INSTANT, 7, RECORDS, pa.array(["x"]), schema_json=schema)
    assert {block.schema_json for block in blocks(data)} == {schema}
    assert parse_hfile(blocks(data)[0].content).info["schema"] == schema.encode()


def test_a_new_shard_has_a_log_file_of_80_bytes() -> None:
    data = format_initial_log_file("00000000000000000")
    assert len(data) == 80
    (block,) = blocks(data)
    assert block.headers == {Header.INSTANT_TIME: "00000000000000000"}
    deletes = read_block(RecordKind.FILES, block)
    assert isinstance(deletes, DeletedKeys)
    assert not len(deletes.keys)


def test_a_block_of_another_kind_is_damage() -> None:
    (block,) = blocks(format_block(BlockKind.AVRO, {Header.INSTANT_TIME: INSTANT}, b""))
    with pytest.raises(CorruptError):
        read_block(RecordKind.FILES, block)
    with pytest.raises(InvalidError):
        block_reader(lambda at, length: b"", block)


def test_records_without_a_schema_are_damage() -> None:
    with pytest.raises(CorruptError):
        read_records(RecordKind.FILES, HFile(RECORDS, {}))


def test_a_block_is_read_by_ranges_of_its_log_file() -> None:
    rows = [{"key": f"v${number:06d}", "is_deleted": False} for number in range(50_000)]
    entries = encode_records(
        RecordKind.SECONDARY_INDEX, pa.Table.from_pylist(rows, SECONDARY_INDEX)
    )
    data = format_log_file("secondary_index_x", INSTANT, 7, entries, pa.array(["x"]))
    ranges: list[tuple[int, int]] = []

    def read(offset: int, length: int) -> bytes:
        ranges.append((offset, length))
        return data[offset : offset + length]

    head, _ = parse_heads(read, len(data), file_name="log")
    reader = block_reader(read, head)
    found = reader.look_up(pa.array(["v$030000", "v$050000"]))
    assert [value is not None for value in found.to_pylist()] == [True, False]
    table = look_up_records(RecordKind.SECONDARY_INDEX, reader, pa.array(["x", "v$000007"]))
    assert table["key"].to_pylist() == ["v$000007"]
    schema = (head.schema_json or "").encode()
    scanned = scan_records(RecordKind.SECONDARY_INDEX, reader, ["v$04999"], schema)
    assert sum(map(len, scanned)) == 10
    assert sum(map(len, scan_records(RecordKind.SECONDARY_INDEX, reader))) == 50_000
    ranges.clear()
    again = block_reader(read, head, reader.index)
    assert again.look_up(pa.array(["v$030000"])).null_count == 0
    assert len(ranges) == 1
    assert ranges[0][1] < 66_000


def test_a_base_file_may_have_a_filter_as_hudi_writes_it() -> None:
    hfile = parse_hfile(format_base_file(RECORDS, 7, with_filter=True))
    assert {name: hfile.info[name] for name in ("minRecordKey", "maxRecordKey")} == {
        "minRecordKey": b"p",
        "maxRecordKey": b"q",
    }
    bloom = parse_bloom(b64decode(hfile.meta["bloomFilter"]), BloomType.DYNAMIC)
    assert bloom.may_contain(pa.array(["p", "q", "r"])).tolist() == [True, True, False]
    assert bloom.row_entries == 10_000
    plain = parse_hfile(format_base_file(RECORDS, 7))
    assert as_plain(plain)[0] == as_plain(hfile)[0]
    assert not plain.meta
    assert "minRecordKey" not in plain.info
    assert read_records(RecordKind.FILES, plain).equals(listing(p={"a": 5}, q={"b": 6}))


def test_an_empty_base_file_is_read() -> None:
    for with_filter in (False, True):
        hfile = parse_hfile(format_base_file(hfile_entries(), 7, with_filter=with_filter))
        assert not len(read_records(RecordKind.FILES, hfile))


# -- properties

# Those of a metadata table that Hudi 1.2.0 made.
PROPERTIES = {
    "hoodie.compaction.payload.class": "org.apache.hudi.metadata.HoodieMetadataPayload",
    "hoodie.table.initial.version": "8",
    "hoodie.table.keygenerator.type": "HOODIE_TABLE_METADATA",
    "hoodie.table.type": "MERGE_ON_READ",
    "hoodie.archivelog.folder": "history",
    "hoodie.timeline.layout.version": "2",
    "hoodie.timeline.history.path": "history",
    "hoodie.table.checksum": "1356395160",
    "hoodie.datasource.write.drop.partition.columns": "false",
    "hoodie.record.merge.strategy.id": "00000000-0000-0000-0000-000000000000",
    "hoodie.table.recordkey.fields": "key",
    "hoodie.table.name": "c9_metadata",
    "hoodie.timeline.path": "timeline",
    "hoodie.populate.meta.fields": "false",
    "hoodie.table.base.file.format": "HFILE",
    "hoodie.record.merge.mode": "CUSTOM",
    "hoodie.table.version": "9",
}


def test_the_properties_of_a_new_metadata_table_are_those_of_hudi() -> None:
    data = format_metadata_properties(MetadataTableProperties("c9", 9, 8), ["made"])
    assert data.startswith(b"#made\n")
    assert parse_properties(data) == PROPERTIES
    assert parse_metadata_properties(data) == MetadataTableProperties("c9", 9, 8)


def stored(**changed: str | None) -> bytes:
    values = PROPERTIES | {f"hoodie.{k.replace('_', '.')}": v for k, v in changed.items()}
    return "".join(f"{k}={v}\n" for k, v in values.items() if v is not None).encode()


def test_an_old_metadata_table_does_not_tell_its_first_version() -> None:
    data = stored(table_initial_version=None)
    assert parse_metadata_properties(data) == MetadataTableProperties("c9", 9, 9)


OTHERS: dict[str, tuple[bytes, type[Exception]]] = {
    "populated meta columns": (stored(populate_meta_fields="true"), UnsupportedError),
    "another payload": (stored(compaction_payload_class="other"), UnsupportedError),
    "base files of Parquet": (stored(table_base_file_format="PARQUET"), UnsupportedError),
    "an older timeline": (stored(timeline_layout_version="1"), UnsupportedError),
    "a name without suffix": (
        stored(table_name="c9", table_checksum=None),
        UnsupportedError,
    ),
    "a wrong checksum": (stored(table_name="c8_metadata"), CorruptError),
    "no version": (stored(table_version=None), CorruptError),
    "a version that is no number": (stored(table_version="nine"), CorruptError),
}


@pytest.mark.parametrize(("data", "error"), OTHERS.values(), ids=list(OTHERS))
def test_another_metadata_table_is_refused(data: bytes, error: type[Exception]) -> None:
    with pytest.raises(error):
        parse_metadata_properties(data)
