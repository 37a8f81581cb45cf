"""What each operation does to rows, files and statistics."""

from __future__ import annotations

import io
from collections.abc import Mapping

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lakewright.client.write_client import WriteClient
from lakewright.format.parquet_footer import parse_footer
from lakewright.model.commit_metadata import CommitMetadata
from lakewright.model.file_group import LogFile, parse_data_file
from lakewright.table.properties import load_properties
from lakewright.table.snapshot import load_snapshot
from lakewright.testing.storage import CountingStorage
from support.tables import SCHEMA, Row, WrittenTable, row

BOTH = pytest.mark.parametrize("table_type", ["COPY_ON_WRITE", "MERGE_ON_READ"])


def last_commit(table: WrittenTable) -> CommitMetadata:
    snapshot = load_snapshot(table.storage)
    return snapshot.commits([snapshot.timeline.completed_writes[-1]])[0]


def data_files(table: WrittenTable) -> list[str]:
    paths = [file.path for file in table.storage.list_tree("")]
    return sorted(
        path
        for path in paths
        if not path.startswith(".hoodie") and parse_data_file(path.rpartition("/")[2])
    )


def notes(table: WrittenTable) -> dict[str, str | None]:
    return {record["id"]: record["note"] for record in table.rows()}


@BOTH
def test_of_a_key_in_one_batch_the_newest_counts(table_type: str) -> None:
    table = WrittenTable().create(table_type)
    commit = table.upsert([row("a", 2, "newer"), row("a", 1, "older"), row("b", 1), row("b", 1)])
    assert commit.inserted == 2
    assert notes(table) == {"a": "newer", "b": "first"}


@BOTH
def test_late_rows_lose_and_equal_ones_win(table_type: str) -> None:
    table = WrittenTable().create(table_type)
    table.upsert([row("a", 5), row("b", 5), row("c", 5)])
    table.upsert([row("a", 4, "late"), row("b", 5, "equal"), row("c", 6, "newer")])
    assert notes(table) == {"a": "first", "b": "equal", "c": "newer"}


@BOTH
def test_without_ordering_the_later_write_wins(table_type: str) -> None:
    table = WrittenTable().create(table_type, ordering=())
    table.upsert([row("a", 5)])
    table.upsert([row("a", 4, "later")])
    assert notes(table) == {"a": "later"}


@BOTH
def test_deletes_without_order_delete_any_version(table_type: str) -> None:
    table = WrittenTable().create(table_type)
    table.upsert([row("a", 5), row("b", 5)])
    commit = table.write("DELETE", [row("a", 0), row("unknown", 0)])
    assert commit.deleted == 1
    assert notes(table) == {"b": "first"}


@BOTH
def test_ordered_deletes_spare_newer_rows(table_type: str) -> None:
    table = WrittenTable().create(table_type)
    table.upsert([row("a", 5), row("b", 5)])
    table.write("DELETE", [row("a", 4), row("b", 6)], ordered=True)
    assert notes(table) == {"a": "first"}


@BOTH
def test_rows_that_are_marked_as_deleted(table_type: str) -> None:
    schema = SCHEMA.append(pa.field("_hoodie_is_deleted", pa.bool_()))
    table = WrittenTable(schema=schema).create(table_type)
    table.upsert([row("a"), row("b"), row("c")])
    flag = {"_hoodie_is_deleted": True}
    table.upsert([{**row("a", 2), **flag}, {**row("b", 0), **flag}, {**row("new", 2), **flag}])
    assert set(notes(table)) == {"b", "c"}
    table.write("INSERT", [{**row("never", 2), **flag}])
    assert set(notes(table)) == {"b", "c"}


def test_new_keys_join_a_small_file_and_large_files_split() -> None:
    table = WrittenTable().create()
    table.upsert([row("a")])
    table.upsert([row("b")])
    assert len({path.split("_")[0] for path in data_files(table)}) == 1
    sized = WrittenTable(
        options={"hoodie.parquet.max.file.size": "20000", "hoodie.parquet.small.file.limit": "0"}
    ).create()
    many = [row(f"{n:06d}" * 4, 1, f"{n * 7919 % 99991:08d}" * 3) for n in range(4000)]
    sized.upsert(many)
    assert len(data_files(sized)) > 2
    assert len(sized.rows()) == 4000


def test_new_keys_of_merge_on_read_go_into_base_files() -> None:
    table = WrittenTable().create("MERGE_ON_READ")
    table.upsert([row("a")])
    table.upsert([row("a", 2, "second")])
    table.upsert([row("b", 1), row("a", 3, "third")])
    # The group has a log file, so the new key opens another group.
    groups = {path.split("/")[1].lstrip(".").split("_")[0] for path in data_files(table)}
    assert len(groups) == 2
    assert {record["id"] for record in table.rows(optimized=True)} == {"a", "b"}
    assert notes(table) == {"a": "third", "b": "first"}


def test_log_files_roll() -> None:
    table = WrittenTable(
        options={"hoodie.logfile.max.size": "2000", "hoodie.logfile.data.block.max.size": "4000"}
    ).create("MERGE_ON_READ")
    table.upsert([row(f"k{n}") for n in range(300)])
    table.upsert([row(f"k{n}", 2, "x" * 20) for n in range(300)])
    logs = [parse_data_file(path.split("/")[1]) for path in data_files(table)]
    versions = sorted(log.version for log in logs if isinstance(log, LogFile))
    assert versions == list(range(1, len(versions) + 1))
    assert len(versions) > 2
    assert set(notes(table).values()) == {"x" * 20}


@BOTH
def test_event_times_are_in_every_statistic(table_type: str) -> None:
    table = WrittenTable().create(table_type, event_time="ts")
    second, millis = 1_767_225_600, 1_767_225_601_000
    table.upsert([row("a", second), row("b", second + 5), row("c", 12)])
    assert ranges(table) == [(second * 1000, (second + 5) * 1000)]
    table.upsert([row("a", millis), row("d", millis + 7, day="2026-01-02")])
    assert ranges(table) == [(millis, millis), (millis + 7, millis + 7)]


def ranges(table: WrittenTable) -> list[tuple[int | None, int | None]]:
    stats = last_commit(table).write_stats()
    return [(stat.min_event_time, stat.max_event_time) for stat in stats]


@BOTH
def test_a_new_column_and_a_wider_one(table_type: str) -> None:
    table = WrittenTable().create(table_type)
    table.write("UPSERT", [{**row("a"), "n": 1}], schema=SCHEMA.append(pa.field("n", pa.int32())))
    wider = pa.schema([pa.field("more", pa.string()), pa.field("n", pa.int64()), *SCHEMA])
    table.write("UPSERT", [{**row("b"), "n": 2**40, "more": "x"}], schema=wider)
    values = {record["id"]: (record["n"], record["more"]) for record in table.rows()}
    assert values == {"a": (1, None), "b": (2**40, "x")}
    assert list(table.rows()[0]) == ["id", "day", "ts", "note", "n", "more"]


@BOTH
def test_overwriting_partitions_and_the_table(table_type: str) -> None:
    table = WrittenTable().create(table_type)
    table.upsert([row("a"), row("b", day="2026-01-02"), row("c", day="2026-01-03")])
    table.write("INSERT_OVERWRITE", [row("d", day="2026-01-02")])
    assert set(notes(table)) == {"a", "c", "d"}
    table.write("INSERT_OVERWRITE_TABLE", [row("e", day="2026-01-02")])
    assert set(notes(table)) == {"e"}


@BOTH
def test_deleting_partitions_by_patterns(table_type: str) -> None:
    table = WrittenTable().create(
        table_type,
        partition_by=("note", "day"),
        options={"hoodie.datasource.write.hive_style_partitioning": "true"},
    )
    days = ("2026-01-01", "2026-02-01")
    table.upsert([row(f"{c}{d}", note=c, day=d) for c in ("NO", "SE") for d in days])
    table.delete_partitions("note=NO/day=2026-01-*")
    assert len(table.rows()) == 3
    table.delete_partitions("*/day=2026-02-01")
    assert {record["id"] for record in table.rows()} == {"SE2026-01-01"}
    assert table.delete_partitions("note=DK/*").partitions == ()
    assert len(table.rows()) == 1


def test_inserting_keeps_duplicates_by_default() -> None:
    table = WrittenTable().create()
    table.write("INSERT", [row("a")])
    table.write("INSERT", [row("a", 2, "again")])
    assert len(table.rows()) == 2
    table.write(
        "INSERT", [row("a", 3), row("b", 3)], {"hoodie.datasource.insert.dup.policy": "drop"}
    )
    assert sorted(record["id"] for record in table.rows()) == ["a", "a", "b"]


def test_a_key_that_was_deleted_in_one_group_and_inserted_into_another() -> None:
    table = WrittenTable().create("MERGE_ON_READ")
    table.upsert([row("a"), row("b")])
    table.write("DELETE", [row("a")])
    drop = {"hoodie.datasource.insert.dup.policy": "drop"}
    table.write("INSERT", [row("a", 2, "again"), row("b", 2, "known")], drop)
    table.upsert([row("b", 3, "third")])
    table.upsert([row("a", 3, "third")])
    assert notes(table) == {"a": "third", "b": "third"}
    assert len(table.rows()) == 2


FILTERS: dict[str, tuple[Mapping[str, str], bool]] = {
    "a bloom index has a filter of the keys": ({"hoodie.index.type": "BLOOM"}, True),
    "so has a global one": ({"hoodie.index.type": "GLOBAL_BLOOM"}, True),
    "other indexes have one that excludes no key": ({}, False),
    "or of the keys, if an option asks for it": (
        {"hoodie.parquet.bloom.filter.enabled": "true"},
        True,
    ),
    "the option does not take it from a bloom index": (
        {"hoodie.index.type": "BLOOM", "hoodie.parquet.bloom.filter.enabled": "false"},
        True,
    ),
}


@pytest.mark.parametrize(("options", "excludes"), FILTERS.values(), ids=list(FILTERS))
def test_base_files_carry_the_footers_that_index_lookups_want(
    options: Mapping[str, str], excludes: bool
) -> None:
    table = WrittenTable(options=options).create()
    table.write("INSERT", [row("a"), row("c")])
    (path,) = data_files(table)
    source = pa.BufferReader(table.storage.read(path))
    footer = parse_footer(pq.ParquetFile(source).metadata.metadata)
    assert (footer.min_key, footer.max_key) == ("a", "c")
    keys = ["a", "b", "c", "d"]
    assert footer.may_contain(pa.array(keys)).tolist() == [True, not excludes, True, False]
    assert footer.bloom is not None
    # Each key sets thirty bits; a filter of no keys takes twenty bytes.
    assert (len(footer.bloom) > 100) == excludes


def test_base_files_have_a_page_index_and_may_have_a_filter_of_parquet() -> None:
    sizes = []
    for options in ({}, {"lakewright.parquet.key.bloom.filter.enabled": "true"}):
        table = WrittenTable(options=options).create()
        table.upsert([row(f"k{n}") for n in range(100)])
        (path,) = data_files(table)
        data = table.storage.read(path)
        column = pq.ParquetFile(pa.BufferReader(data)).metadata.row_group(0).column(2)
        assert column.path_in_schema == "_hoodie_record_key"
        assert column.has_column_index
        assert column.has_offset_index
        sizes.append(len(data))
    assert sizes[1] > sizes[0] + 64
    assert len(table.rows()) == 100


KEYS: dict[str, tuple[tuple[str, ...], Mapping[str, str], list[str]]] = {
    "one field": (("id",), {}, ["a"]),
    "several fields": (("id", "note"), {}, ["id:a,note:first"]),
}


@pytest.mark.parametrize(("key", "options", "expected"), KEYS.values(), ids=list(KEYS))
def test_record_keys(key: tuple[str, ...], options: Mapping[str, str], expected: list[str]) -> None:
    table = WrittenTable().create(key=key, options=options)
    table.upsert([row("a")])
    assert [record["_hoodie_record_key"] for record in table.rows(meta=True)] == expected


def test_rows_without_key_fields_get_keys_of_their_own() -> None:
    table = WrittenTable().create(key=(), ordering=())
    table.write("INSERT", [row("a"), row("a")])
    table.write("BULK_INSERT", [row("a")])
    keys = [record["_hoodie_record_key"] for record in table.rows(meta=True)]
    assert len(set(keys)) == 3


def test_meta_columns_name_the_file_and_commit_of_a_row() -> None:
    table = WrittenTable().create()
    first = table.upsert([row("a"), row("b")])
    second = table.upsert([row("b", 2, "second")])
    records = {record["id"]: record for record in table.rows(meta=True)}
    assert records["a"]["_hoodie_commit_time"] == first.instant
    assert records["b"]["_hoodie_commit_time"] == second.instant
    assert {record["_hoodie_file_name"] for record in records.values()} == {
        data_files(table)[1].split("/")[1]
    }
    assert len({record["_hoodie_commit_seqno"] for record in records.values()}) == 2


def test_calls_to_storage_of_a_small_batch() -> None:
    """A hundred rows into three partitions.

    Fourteen calls begin and complete the write: properties twice, the timeline before, at and after
    the commit and once more for its time, the newest commit for its schema, three timeline files,
    markers listed twice and removed, and the folder of all markers before and at the commit.
    Each partition is listed, looked into, and gets a marker, its file and a last look at the
    timeline.
    """
    days = ("2026-01-01", "2026-01-02", "2026-01-03")
    rows: list[Row] = [row(f"k{n}", 1, "x", days[n % 3]) for n in range(100)]
    for table_type, most in {"COPY_ON_WRITE": 33, "MERGE_ON_READ": 30}.items():
        table = WrittenTable().create(table_type)
        table.upsert(rows)
        counting = CountingStorage(table.storage)
        table.storage = counting
        table.upsert([{**record, "ts": 2} for record in rows])
        calls = sum(counting.calls.values())
        assert calls <= most, dict(counting.calls)


def test_a_file_is_written_in_row_groups_of_the_given_size() -> None:
    table = WrittenTable(options={"hoodie.parquet.block.size": "20000"}).create()
    table.upsert([row(f"k{n:05d}", 1, f"note {n}") for n in range(2000)])
    table.upsert([row(f"k{n:05d}", 2, f"note {n}") for n in range(2000)])
    newest = data_files(table)[-1]
    file = pq.ParquetFile(io.BytesIO(table.storage.read(newest)))
    assert file.metadata.num_row_groups >= 1
    assert len(table.rows()) == 2000


def test_settings_of_the_table_can_be_stored_without_rows() -> None:
    table = WrittenTable().create()
    table.upsert([row("a")])
    settings = {"hoodie.ttl.enabled": "true"}
    assert not WriteClient.create(table.storage, settings, table.clock).store_settings()
    assert load_properties(table.storage)["hoodie.ttl.enabled"] == "true"
    assert len(load_snapshot(table.storage).timeline) == 1
