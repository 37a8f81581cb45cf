"""Save modes: what happens to an existing table, and to one that a failed write has created."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from itertools import count

import pyarrow as pa
import pytest

from lakewright.client.save import SaveOperation, parse_mode
from lakewright.client.write_client import OPERATION, WriteClient
from lakewright.engine.local import ArrowRows
from lakewright.errors import ConflictError, InvalidError, LakewrightError
from lakewright.model.plans import Skip
from lakewright.storage.base import Storage
from lakewright.storage.memory import MemoryStorage
from lakewright.table.properties import PROPERTIES
from lakewright.table.snapshot import load_snapshot
from lakewright.testing.clock import ManualClock
from lakewright.testing.storage import CountingStorage, Crash, CrashingStorage
from lakewright.write.writer import Commit, EmptyRows
from support.faults import each_crash
from support.tables import SCHEMA, Row, WrittenTable, row

OPTIONS = {
    "hoodie.table.name": "t",
    "hoodie.datasource.write.recordkey.field": "id",
    "hoodie.datasource.write.partitionpath.field": "day",
    "hoodie.datasource.write.precombine.field": "ts",
}
MERGE_ON_READ = {"hoodie.datasource.write.table.type": "MERGE_ON_READ"}
# One for all: a second one would return the same ids again.
CLOCK = ManualClock()
TO_DELETE = "hoodie.datasource.write.partitions.to.delete"


def save(
    storage: Storage,
    rows: Iterable[Row],
    mode: str = "append",
    more: Mapping[str, str] | None = None,
    by: tuple[str, ...] = (),
) -> Commit | Skip:
    writer = WriteClient.create(storage, {**OPTIONS, **(more or {})}, CLOCK)
    table = pa.Table.from_pylist(list(rows), SCHEMA)
    return SaveOperation(writer, parse_mode(mode), by).write(ArrowRows(table))


def saved(*rows: Row) -> WrittenTable:
    table = WrittenTable()
    save(table.storage, rows)
    return table


def ids(table: WrittenTable) -> list[str]:
    return sorted(record["id"] for record in table.rows())


def files(storage: Storage) -> list[str]:
    return sorted(file.path for file in storage.list_tree(""))


def operations(storage: Storage) -> list[str | None]:
    snapshot = load_snapshot(storage)
    commits = snapshot.commits(snapshot.timeline.completed_writes)
    return [commit.operation for commit in commits]


REFUSED_OVERWRITES: dict[str, tuple[Mapping[str, str], str]] = {
    "a value that does not parse": ({"hoodie.bucket.index.num.buckets": "abc"}, "does not parse"),
    "a value of another table that does not parse": (
        {"hoodie.parquet.page.size": "abc", **MERGE_ON_READ},
        "does not parse",
    ),
    "a key that the rows lack": (
        {"hoodie.datasource.write.recordkey.field": "nope"},
        "lacks a column",
    ),
    "a partition column that the rows lack": (
        {"hoodie.datasource.write.partitionpath.field": "nope"},
        "lacks a column",
    ),
    "an ordering column that the rows lack": (
        {"hoodie.datasource.write.precombine.field": "nope"},
        "lacks a column",
    ),
    "an event-time column that the rows lack": (
        {
            "hoodie.payload.event.time.field": "nope",
            "hoodie.write.track.event.time.watermark": "true",
            **MERGE_ON_READ,
        },
        "lacks a column",
    ),
    "no such table": ({"hoodie.datasource.write.table.type": "SOME"}, "SOME"),
    "a bucket index without buckets": (
        {"hoodie.index.type": "BUCKET", "hoodie.bucket.index.num.buckets": "0", **MERGE_ON_READ},
        "bucket",
    ),
    "an upsert without key": (
        {"hoodie.datasource.write.recordkey.field": "", "hoodie.table.name": "other"},
        "without key fields",
    ),
    "concurrency that the table is not made for": (
        {
            "hoodie.write.concurrency.mode": "NON_BLOCKING_CONCURRENCY_CONTROL",
            "hoodie.table.name": "other",
        },
        "non-blocking",
    ),
    "no such lock": (
        {"hoodie.write.lock.provider": "nothing", "hoodie.table.name": "other"},
        "lock provider",
    ),
    "rows to delete": ({OPERATION: "delete"}, "cannot replace"),
}


@pytest.mark.parametrize(
    ("options", "message"), REFUSED_OVERWRITES.values(), ids=REFUSED_OVERWRITES.keys()
)
def test_an_overwrite_that_is_refused_leaves_the_table(
    options: Mapping[str, str], message: str
) -> None:
    table = saved(row("a"), row("b"))
    before = files(table.storage)
    with pytest.raises(LakewrightError, match=message):
        save(table.storage, [row("c")], "overwrite", options)
    assert files(table.storage) == before
    assert ids(table) == ["a", "b"]


def test_an_overwrite_of_the_same_table_keeps_its_history_and_one_row_of_each_key() -> None:
    table = saved(row("a"), row("b"))
    save(table.storage, [row("c", 1), row("c", 2, "newer")], "overwrite")
    assert table.rows() == [row("c", 2, "newer")]
    assert operations(table.storage) == ["UPSERT", "INSERT_OVERWRITE_TABLE"]


def test_an_overwrite_by_inserts_keeps_duplicates() -> None:
    table = saved(row("a"))
    save(table.storage, [row("c", 1), row("c", 2)], "overwrite", {OPERATION: "insert"})
    assert ids(table) == ["c", "c"]


def test_an_overwrite_of_rows_without_key_keeps_them_all() -> None:
    table = WrittenTable()
    keyless = {"hoodie.datasource.write.recordkey.field": "", OPERATION: "insert"}
    save(table.storage, [row("a")], "append", keyless)
    again = {"hoodie.datasource.write.recordkey.field": ""}
    save(table.storage, [row("c"), row("c")], "overwrite", again)
    assert ids(table) == ["c", "c"]


def test_an_overwrite_by_another_table_makes_it_anew() -> None:
    table = saved(row("a", day="d1"))
    save(table.storage, [row("c", day="d2")], "overwrite", MERGE_ON_READ)
    assert load_snapshot(table.storage).config.table_type == "MERGE_ON_READ"
    assert table.rows() == [row("c", day="d2")]
    assert operations(table.storage) == ["UPSERT"]
    assert not table.storage.list_files("d1")


def test_an_overwrite_of_some_partitions_leaves_the_others() -> None:
    table = saved(row("a", day="d1"), row("b", day="d2"))
    save(table.storage, [row("c", day="d1")], "overwrite", {OPERATION: "insert_overwrite"})
    assert ids(table) == ["b", "c"]


@pytest.mark.parametrize("mode", ["append", "overwrite"])
def test_partitions_are_deleted_in_every_mode_that_changes_a_table(mode: str) -> None:
    table = saved(row("a", day="d1"), row("b", day="d2"))
    save(table.storage, [], mode, {OPERATION: "delete_partition", TO_DELETE: "d1"})
    assert ids(table) == ["b"]


@each_crash
def test_an_overwrite_that_crashes_can_be_repeated(*, after_effect: bool) -> None:
    for survive in count():
        table = saved(row("a", day="d1"), row("b", day="d2"))
        dying = CrashingStorage(table.storage, survive, after_effect=after_effect)
        with suppress(Crash):
            save(dying, [row("c", day="d2")], "overwrite", MERGE_ON_READ)
        save(table.storage, [row("c", day="d2")], "overwrite", MERGE_ON_READ)
        assert table.rows() == [row("c", day="d2")]
        if not dying.crashed:
            break
    assert survive > 10


FAILING: dict[str, tuple[Mapping[str, str], list[Row], str]] = {
    "a row has no key": ({}, [row("a"), {**row("b"), "id": None}], "no record key"),
    "the rows lack a column": (
        {"hoodie.datasource.write.recordkey.field": "nope"},
        [row("a")],
        "lacks a column",
    ),
    "there is nothing to delete": ({OPERATION: "delete"}, [row("a")], "no table"),
    "there is no partition to delete": (
        {OPERATION: "delete_partition", TO_DELETE: "d1"},
        [],
        "no table",
    ),
    "a setting does not parse": ({"hoodie.parquet.page.size": "x"}, [row("a")], "does not parse"),
}


@pytest.mark.parametrize("mode", ["append", "overwrite", "ignore", "error"])
@pytest.mark.parametrize(("options", "rows", "message"), FAILING.values(), ids=FAILING.keys())
def test_a_first_write_that_fails_leaves_no_table(
    options: Mapping[str, str], rows: list[Row], message: str, mode: str
) -> None:
    storage = MemoryStorage.fresh({"notes.txt": b"of somebody else"})
    with pytest.raises(InvalidError, match=message):
        save(storage, rows, mode, options)
    assert files(storage) == ["notes.txt"]
    save(storage, [row("a")], mode)
    assert ids(WrittenTable(storage)) == ["a"]


class RowsOfALoser(ArrowRows):
    """Another writer finds the new table and writes to it before these rows are refused."""

    def __init__(self, other: WrittenTable) -> None:
        super().__init__(pa.Table.from_pylist([row("a")], SCHEMA))
        self._other = other

    @contextmanager
    def open(self) -> Iterator[pa.Table]:
        with super().open() as table:
            self._other.upsert([row("theirs")])
            yield table
        raise ConflictError("lost")


def test_a_table_that_another_process_uses_is_not_removed() -> None:
    several = {"hoodie.write.concurrency.mode": "OPTIMISTIC_CONCURRENCY_CONTROL"}
    several["hoodie.write.lock.provider"] = "in_process"
    other = WrittenTable(options=several)
    writer = WriteClient.create(other.storage, {**OPTIONS, **several}, other.clock)
    with pytest.raises(ConflictError, match="lost"):
        SaveOperation(writer, parse_mode("append")).write(RowsOfALoser(other))
    assert ids(other) == ["theirs"]


def test_an_insert_overwrite_may_be_the_first_write() -> None:
    storage = MemoryStorage.fresh()
    save(storage, [row("a")], "append", {OPERATION: "insert_overwrite"})
    assert ids(WrittenTable(storage)) == ["a"]


def test_modes_for_a_table_that_is_there() -> None:
    table = saved(row("a"))
    assert save(table.storage, [row("b")], "ignore") == Skip("there is a table already")
    with pytest.raises(InvalidError, match="already"):
        save(table.storage, [row("b")], "errorifexists")
    with pytest.raises(InvalidError, match="no such save mode"):
        save(table.storage, [row("b")], "upsert")
    assert ids(table) == ["a"]


def test_columns_to_partition_by_must_be_those_of_the_table() -> None:
    table = saved(row("a"))
    save(table.storage, [row("b")], by=("day",))
    with pytest.raises(InvalidError, match=r"Config conflict.*partitionBy"):
        save(table.storage, [row("c")], by=("note",))
    assert ids(table) == ["a", "b"]


def test_a_table_that_is_there_is_looked_at_when_the_write_begins_and_when_it_completes() -> None:
    for mode, looks in (("append", 2), ("overwrite", 3)):
        table = saved(row("a"))
        storage = CountingStorage(table.storage)
        save(storage, [row("b")], mode, by=("day",))
        assert storage.touched.count(("read", PROPERTIES)) == looks


def test_a_partition_is_not_deleted_by_a_write_that_contradicts_the_table() -> None:
    table = saved(row("a", day="d1"))
    options = {OPERATION: "delete_partition", TO_DELETE: "d1"}
    with pytest.raises(InvalidError, match=r"Config conflict.*partitionBy"):
        save(table.storage, [], "append", options, by=("note",))
    settings = SaveOperation(
        WriteClient.create(table.storage, OPTIONS, table.clock), parse_mode("append"), ("note",)
    )
    with pytest.raises(InvalidError, match=r"Config conflict.*partitionBy"):
        settings.write(EmptyRows())
    assert ids(table) == ["a"]


def test_keys_of_hudi_have_no_case_and_keys_of_a_commit_keep_theirs() -> None:
    table = saved(row("a"))
    save(table.storage, [row("a", 2)], more={OPERATION.upper(): "insert", "_MyKey": "Value"})
    assert ids(table) == ["a", "a"]
    snapshot = load_snapshot(table.storage)
    (commit,) = snapshot.commits(snapshot.timeline.completed_writes[-1:])
    assert commit.extra["_MyKey"] == "Value"


def test_an_option_must_not_name_another_operation_than_the_call() -> None:
    table = saved(row("a"))
    table.upsert([row("b")], {OPERATION: "UPSERT"})
    with pytest.raises(InvalidError, match="another operation"):
        table.upsert([row("c")], {OPERATION: "delete"})
    writer = WriteClient.create(table.storage, {OPERATION: "upsert"}, table.clock)
    with pytest.raises(InvalidError, match="another operation"):
        writer.delete_partitions(["2026-01-01"])
    assert ids(table) == ["a", "b"]


def test_a_text_is_one_pattern_for_partitions() -> None:
    table = saved(row("a", day="2025-01-01"), row("b", day="2026-01-01"))
    WriteClient.create(table.storage, {}, table.clock).delete_partitions("2026-*")
    assert ids(table) == ["a"]


def test_deleting_no_partition_is_an_empty_commit() -> None:
    table = saved(row("a"))
    commit = WriteClient.create(table.storage, {}, table.clock).delete_partitions("1999-*")
    assert (commit.operation, commit.partitions, commit.deleted) == ("DELETE_PARTITION", (), 0)
    assert ids(table) == ["a"]


def test_brackets_are_not_wild() -> None:
    table = saved(row("a", day="a[1]"), row("b", day="a1"))
    table.delete_partitions("a[1]")
    assert ids(table) == ["b"]


def test_a_frame_without_columns_stores_settings() -> None:
    table = saved(row("a"))
    options = {
        **OPTIONS,
        "hoodie.partition.ttl.inline": "false",
        "hoodie.ttl.policies": "[]",
        "hoodie.parquet.page.size": "7",
    }
    writer = WriteClient.create(table.storage, options, table.clock)
    with pytest.warns(UserWarning, match=r"no effect: hoodie\.parquet\.page\.size$"):
        result = SaveOperation(writer, parse_mode("append")).write(EmptyRows())
    assert isinstance(result, Skip)
    stored = load_snapshot(table.storage).config.properties
    assert stored["hoodie.partition.ttl.inline"] == "false"
    assert stored["hoodie.ttl.policies"] == "[]"
    assert "hoodie.parquet.page.size" not in stored
    assert ids(table) == ["a"]
