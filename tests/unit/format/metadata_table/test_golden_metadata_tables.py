"""Metadata tables of real Hudi: every file is read and written again, and every view is right."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from lakewright.engine.local import read_local
from lakewright.format.data_block import data_block_rows
from lakewright.format.delete_block import parse_delete_block
from lakewright.format.hfile.reader import HFile, parse_hfile
from lakewright.format.hfile.writer import format_hfile
from lakewright.format.index_definitions import format_index_definitions, parse_index_definitions
from lakewright.format.log_block import BlockKind, parse_blocks
from lakewright.format.metadata_table.column_values import (
    WrappedValues,
    Wrapper,
    column_values,
)
from lakewright.format.metadata_table.files import (
    format_base_file,
    format_initial_log_file,
    format_log_file,
)
from lakewright.format.metadata_table.listing import listed_files
from lakewright.format.metadata_table.merging import merge_records
from lakewright.format.metadata_table.properties import (
    format_metadata_properties,
    parse_metadata_properties,
)
from lakewright.format.metadata_table.record_index import file_ids_of
from lakewright.format.metadata_table.record_schema import COLUMN_STATS, RecordKind
from lakewright.format.metadata_table.records import decode_records, encode_records
from lakewright.format.metadata_table.statistics import ColumnStatistics, file_statistics
from lakewright.format.metadata_table.widening import widen
from lakewright.format.table_properties import parse_properties
from lakewright.model.file_group import FileSlice
from lakewright.model.metadata_keys import (
    bloom_filter_keys,
    column_stats_keys,
    expression_partition_keys,
    partition_stats_keys,
    split_secondary_index_keys,
)
from lakewright.model.metadata_partitions import (
    MetadataPartitionType,
    RecordType,
    ShardNumbers,
    Shards,
    data_partition_of,
    partition_type,
    shard_file_id,
    shards_by_partition,
    shards_of,
)
from lakewright.model.schema import FILE_NAME
from lakewright.model.value_order import column_bounds
from lakewright.scan.planner import plan_snapshot
from lakewright.storage.local import LocalStorage
from lakewright.table.snapshot import load_snapshot
from support.hfiles import as_plain, assert_same_file
from support.metadata_tables import ALL_STEPS, GoldenStep, MetadataTables, log_blocks


def created_ms(hfile: HFile) -> int:
    milliseconds: int = struct.unpack(">q", hfile.info["hfile.CREATE_TIME_TS"])[0]
    return milliseconds


def in_large_blocks(hfile: HFile) -> bytes:
    """The bytes of a file with blocks of the size that Hudi uses."""
    own = ("schema", "bloomFilterTypeCode", "minRecordKey", "maxRecordKey")
    info = {name: value for name, value in hfile.info.items() if name in own}
    return format_hfile(
        hfile.entries,
        info.pop("schema").decode(),
        created_ms(hfile),
        block_bytes=1 << 20,
        info=info,
        meta=hfile.meta,
    )


def is_of_compaction(path: Path) -> bool:
    """Whether a compaction wrote a base file, and not the building of its partition."""
    return not path.stem.split("_")[-1].startswith("0" * 14)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("step", ALL_STEPS)
def test_base_files_come_back(step: str, metadata_tables: MetadataTables) -> None:
    table = metadata_tables[step]
    for folder in table.folders:
        kind = table.kind(folder)
        for path in table.files(folder):
            if path.suffix == ".hfile":
                data = path.read_bytes()
                hfile = parse_hfile(data)
                schema = hfile.info["schema"]
                records = decode_records(kind, hfile.entries, schema)
                name = path.name if is_of_compaction(path) else None
                entries = encode_records(kind, records, name)
                assert entries.keys.equals(hfile.entries.keys)
                assert entries.values.equals(hfile.entries.values)
                made = created_ms(hfile)
                own = format_base_file(entries, made, schema_json=schema.decode(), with_filter=True)
                assert as_plain(parse_hfile(own)) == as_plain(hfile)
                assert_same_file(in_large_blocks(hfile), data)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("step", ALL_STEPS)
def test_log_files_come_back(step: str, metadata_tables: MetadataTables) -> None:
    table = metadata_tables[step]
    for folder in table.folders:
        kind = table.kind(folder)
        for path in table.files(folder):
            if path.suffix == ".hfile":
                continue
            for block in log_blocks(path):
                schema = block.schema_json
                if block.kind is BlockKind.DELETE:
                    keys = parse_delete_block(block).keys
                    again = (
                        format_log_file(folder, block.instant, 0, None, keys, schema_json=schema)
                        if len(keys)
                        else format_initial_log_file(block.instant)
                    )
                    assert content_of(again) == bytes(block.content)
                else:
                    assert schema is not None
                    hfile = parse_hfile(block.content)
                    assert hfile.info["schema"] == schema.encode()
                    records = decode_records(kind, hfile.entries, schema.encode())
                    entries = encode_records(kind, records)
                    assert entries.values.equals(hfile.entries.values)
                    own = format_log_file(
                        folder, block.instant, created_ms(hfile), entries, schema_json=schema
                    )
                    assert as_plain(parse_hfile(content_of(own))) == as_plain(hfile)
                    assert_same_file(in_large_blocks(hfile), bytes(block.content))


def content_of(log_file: bytes) -> bytes:
    (block,) = parse_blocks(log_file, file_name="")
    return bytes(block.content)


@pytest.mark.parametrize("step", ALL_STEPS)
def test_the_listing_is_what_is_on_disk(step: str, metadata_tables: MetadataTables) -> None:
    table = metadata_tables[step]
    assert listed_files(table.merged("files")) == table.on_disk()


@pytest.mark.parametrize("step", ALL_STEPS)
def test_definitions_and_properties_come_back(step: str, metadata_tables: MetadataTables) -> None:
    table = metadata_tables[step]
    path = table.table / ".hoodie/.index_defs/index.json"
    if path.exists():
        assert format_index_definitions(parse_index_definitions(path.read_bytes())) == (
            path.read_bytes()
        )
    stored = (table.metadata / ".hoodie/hoodie.properties").read_bytes()
    properties = parse_metadata_properties(stored)
    assert parse_properties(format_metadata_properties(properties)) == parse_properties(stored)
    assert properties.version == table.table_version


@pytest.mark.parametrize("step", ALL_STEPS)
def test_shards_have_the_file_ids_and_the_keys_that_they_should(
    step: str, metadata_tables: MetadataTables
) -> None:
    table = metadata_tables[step]
    for folder in table.folders:
        slices = table.slices(folder)
        ids = [part.file_id for part in slices]
        by_partition: dict[str | None, Shards] = {None: shards_of(ids)}
        if data_partition_of(ids[0]) is not None:
            by_partition = dict(shards_by_partition(ids).items())
        for partition, shards in by_partition.items():
            assert shards.file_ids == tuple(
                shard_file_id(folder, number, partition) for number in range(len(shards))
            )
            for part in slices:
                if part.file_id in shards.file_ids:
                    numbers = shard_numbers_of(table, part, shards)
                    assert set(numbers.tolist()) <= {shards.file_ids.index(part.file_id)}


def shard_numbers_of(table: GoldenStep, part: FileSlice, shards: Shards) -> ShardNumbers:
    keys = merge_records(table.kind(part.partition), table.sources(part))["key"].combine_chunks()
    if partition_type(part.partition) is MetadataPartitionType.SECONDARY_INDEX:
        version = table.definitions.version(part.partition, table.table_version)
        return shards.of_secondary_keys(keys, version)
    return shards.of_keys(keys)


@pytest.mark.parametrize("step", ALL_STEPS)
def test_keys_are_made_of_what_records_hold(step: str, metadata_tables: MetadataTables) -> None:
    table = metadata_tables[step]
    partitions = {name: path for path, files in table.on_disk().items() for name in files}
    for folder in table.folders:
        if table.kind(folder) is RecordKind.COLUMN_STATS:
            records = table.merged(folder)
            of_files = records.filter(pc.equal(records["type"], int(RecordType.COLUMN_STATS)))
            # Statistics of files that are gone stay for a while.
            of_files = of_files.filter(pc.is_in(of_files["file_name"], pa.array(list(partitions))))
            names = of_files["file_name"].combine_chunks()
            paths = pa.array([partitions[name] for name in names.to_pylist()], pa.string())
            columns = of_files["column_name"].combine_chunks()
            assert column_stats_keys(columns, paths, names) == of_files["key"].combine_chunks()
            of_all = records.filter(pc.equal(records["type"], int(RecordType.PARTITION_STATS)))
            is_own = partition_type(folder) is MetadataPartitionType.PARTITION_STATS
            make = partition_stats_keys if is_own else expression_partition_keys
            keys = make(*(of_all[n].combine_chunks() for n in ("column_name", "file_name")))
            assert keys == of_all["key"].combine_chunks()
        elif table.kind(folder) is RecordKind.BLOOM_FILTERS:
            stored = set(table.merged(folder)["key"].to_pylist())
            base = [name for name in partitions if name.endswith(".parquet")]
            paths = pa.array([partitions[name] for name in base], pa.string())
            assert set(bloom_filter_keys(paths, pa.array(base)).to_pylist()) <= stored


STEPS_WITH_STATISTICS = [step for step in ALL_STEPS if not step.startswith("g9")]


@pytest.mark.parametrize("step", STEPS_WITH_STATISTICS)
def test_statistics_of_base_files_are_those_of_their_rows(
    step: str, metadata_tables: MetadataTables
) -> None:
    table = metadata_tables[step]
    compared = 0
    for path in table.table.rglob("*.parquet"):
        footer = pq.ParquetFile(path)
        rows = footer.read()
        for record in records_of_file(table, path):
            sizes = sizes_of(footer, record["column_name"])
            assert own_record(table, path, record["column_name"], rows, sizes) == record
            column = rows[record["column_name"]]
            bounds = column_bounds(column)
            for side, bound in (("min", bounds.least), ("max", bounds.greatest)):
                assert value_of(record, side, column.type) == bound.as_py()
            compared += 1
    assert compared


@pytest.mark.parametrize(
    "step", ["a9mor/03-delete", "b8/02-update", "b9/02-update", "c9/03-delete"]
)
def test_statistics_of_log_files_are_those_of_their_rows(
    step: str, metadata_tables: MetadataTables
) -> None:
    table = metadata_tables[step]
    compared = 0
    for path in table.table.rglob(".*.log.*"):
        if ".hoodie" in path.relative_to(table.table).parts:
            continue
        blocks = [b for b in log_blocks(path) if b.kind in (BlockKind.AVRO, BlockKind.PARQUET)]
        rows = pa.concat_tables(map(data_block_rows, blocks)) if blocks else None
        for record in records_of_file(table, path):
            assert own_record(table, path, record["column_name"], rows, (0, 0)) == record
            compared += 1
    assert compared


def records_of_file(table: GoldenStep, path: Path) -> list[dict[str, Any]]:
    records = table.merged("column_stats")
    found: list[dict[str, Any]] = records.filter(
        pc.equal(records["file_name"], path.name)
    ).to_pylist()
    return found


def own_record(
    table: GoldenStep, path: Path, name: str, rows: pa.Table | None, sizes: tuple[int, int]
) -> object:
    """Our record of a column in a file; without rows the file has deletes only."""
    column = None if rows is None else rows[name]
    values = pa.nulls(0) if column is None else column
    bounds = column_bounds(values)
    kind = values.type
    statistics = ColumnStatistics(
        column=name,
        column_type=None if column is None else kind,
        least=pa.array([bounds.least.as_py()], kind),
        greatest=pa.array([bounds.greatest.as_py()], kind),
        values=pa.array([len(values)]),
        nulls=pa.array([bounds.nulls]),
        total_sizes=pa.array([sizes[0]]),
        total_uncompressed_sizes=pa.array([sizes[1]]),
    )
    partition = path.parent.relative_to(table.table).as_posix().removeprefix(".")
    version = table.definitions.version("column_stats", table.table_version)
    own = file_statistics(statistics, pa.array([partition]), pa.array([path.name]), version)
    return own.to_pylist()[0]


def sizes_of(footer: pq.ParquetFile, column: str) -> tuple[int, int]:
    """The sizes of a column's chunks on storage, and before compression."""
    groups = [footer.metadata.row_group(n) for n in range(footer.metadata.num_row_groups)]
    chunks = [group.column(n) for group in groups for n in range(group.num_columns)]
    own = [chunk for chunk in chunks if chunk.path_in_schema == column]
    return (
        sum(chunk.total_compressed_size for chunk in own),
        sum(chunk.total_uncompressed_size for chunk in own),
    )


def value_of(record: dict[str, Any], side: str, column: pa.DataType) -> object:
    wrapped = WrappedValues(
        pa.array([record[f"{side}_wrapper"]], pa.int8()),
        pa.array([record[f"{side}_value"]], pa.binary()),
    )
    types = pa.array([record["value_type"]], pa.int32())
    infos = pa.array([record["value_type_info"]], pa.string())
    return column_values(wrapped, types, infos, column)[0].as_py()


@pytest.mark.parametrize("step", ALL_STEPS)
def test_statistics_of_partitions_enclose_those_of_their_files(
    step: str, metadata_tables: MetadataTables
) -> None:
    table = metadata_tables[step]
    if "partition_stats" not in table.folders:
        return
    on_disk = table.on_disk()
    of_files = table.merged("column_stats").to_pylist()
    for partition in table.merged("partition_stats").to_pylist():
        for record in of_files:
            if (
                record["file_name"] in on_disk.get(partition["file_name"], {})
                and record["column_name"] == partition["column_name"]
                and record["min_wrapper"] != Wrapper.NULL
            ):
                both = pa.Table.from_pylist([record, partition], schema=COLUMN_STATS)
                widened = widen(both, np.zeros(2, np.int64)).to_pylist()[0]
                for name in ("min_value", "max_value"):
                    assert widened[name] == partition[name]


@pytest.mark.parametrize("step", [step for step in ALL_STEPS if step.startswith("c9")])
def test_the_record_index_says_where_rows_are(step: str, metadata_tables: MetadataTables) -> None:
    table = metadata_tables[step]
    records = table.merged("record_index")
    found = dict(
        zip(
            records["key"].to_pylist(),
            zip(records["partition"].to_pylist(), file_ids_of(records).to_pylist(), strict=True),
            strict=True,
        )
    )
    rows = rows_of(table.table, ["_hoodie_record_key", "_hoodie_partition_path", FILE_NAME])
    expected = {}
    for row in rows:
        key, partition, name = row.values()
        expected[key] = (partition, name.partition("_")[0])
    assert found == expected


def rows_of(table: Path, columns: list[str]) -> list[dict[str, Any]]:
    storage = LocalStorage(str(table))
    batches = read_local(storage, plan_snapshot(load_snapshot(storage)), columns=columns)
    return [row for batch in batches for row in batch.select(columns).to_pylist()]


@pytest.mark.parametrize("step", ["c9/06-upsert-si", "c9/09-compaction", "c9/13-insert_overwrite2"])
def test_the_secondary_index_has_the_keys_of_each_value(
    step: str, metadata_tables: MetadataTables
) -> None:
    table = metadata_tables[step]
    keys = table.merged("secondary_index_idx_s")["key"].combine_chunks()
    values, record_keys = split_secondary_index_keys(keys)
    found = set(zip(values.to_pylist(), record_keys.to_pylist(), strict=True))
    rows = rows_of(table.table, ["s", "_hoodie_record_key"])
    assert found == {(row["s"], row["_hoodie_record_key"]) for row in rows}
