"""Streams: every batch of a query is in the table once, and none is taken for another's."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar, cast

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from lakewright.api.table import Table
from lakewright.client.save import SaveMode, SaveOperation
from lakewright.client.stream_sink import (
    BATCHES,
    IDENTIFIER,
    BatchValidator,
    BatchWrittenError,
    Stream,
    StreamSink,
    _batches,
    query_of,
)
from lakewright.client.write_client import OPERATION, WriteClient
from lakewright.engine.local import ArrowRows
from lakewright.errors import CorruptError, InvalidError, UnavailableError
from lakewright.installation import _checkpoint
from lakewright.model.plans import Skip
from lakewright.storage.base import Storage
from lakewright.storage.memory import MemoryStorage
from lakewright.table.snapshot import Snapshot, load_snapshot
from lakewright.testing.clock import ManualClock
from lakewright.testing.storage import CountingStorage
from lakewright.write.task import Operation
from lakewright.write.writer import Commit
from support.concurrency import InterruptedRows
from support.faults import CommitAnswerLost
from support.tables import SCHEMA, Row, WrittenTable, row

Result = TypeVar("Result")

OPTIONS = {
    "hoodie.table.name": "t",
    "hoodie.datasource.write.recordkey.field": "id",
    "hoodie.datasource.write.partitionpath.field": "day",
    "hoodie.datasource.write.precombine.field": "ts",
    OPERATION: "insert",
}
# One for all: a second one would return the same ids again.
CLOCK = ManualClock()
SEVERAL = {
    "hoodie.write.concurrency.mode": "OPTIMISTIC_CONCURRENCY_CONTROL",
    "hoodie.write.lock.provider": "in_process",
}


def rows_of(*rows: Row) -> ArrowRows:
    return ArrowRows(pa.Table.from_pylist(list(rows), SCHEMA))


def interrupted_rows(rows: Sequence[Row], act: Callable[[], object]) -> InterruptedRows:
    return InterruptedRows(pa.Table.from_pylist(list(rows), SCHEMA), act)


def sink(storage: Storage, more: Mapping[str, str] | None = None, **facts: Any) -> StreamSink:
    return StreamSink(storage, {**OPTIONS, **(more or {})}, clock=CLOCK, **facts)


def of_query(storage: Storage, query: str, more: Mapping[str, str] | None = None) -> StreamSink:
    made = sink(storage, more)
    made._query = query
    return made


def skips(made: StreamSink, rows: ArrowRows, batch_id: int) -> None:
    with pytest.warns(RuntimeWarning, match=f"left out.*batch={batch_id}, .*instant="):
        made.write(rows, batch_id)
    assert [type(result) for result in made.commits] == [Skip]


def ids(storage: Storage) -> list[str]:
    return sorted(record["id"] for record in WrittenTable(storage).rows())


def last_batch(snapshot: Snapshot, stream: Stream) -> int | None:
    return next((number for _, number in _batches(snapshot, stream)), None)


def test_a_replayed_batch_is_left_out_with_a_warning() -> None:
    storage = MemoryStorage.fresh()
    made = sink(storage)
    made.write(rows_of(row("a")), 0)
    made.write(rows_of(row("b")), 1)
    skips(sink(storage), rows_of(row("b")), 1)
    assert ids(storage) == ["a", "b"]


def test_batches_of_other_queries_are_passed_over() -> None:
    storage = MemoryStorage.fresh()
    one, other = of_query(storage, "one"), of_query(storage, "other")
    one.write(rows_of(row("a")), 0)
    other.write(rows_of(row("b")), 0)
    skips(of_query(storage, "one"), rows_of(row("a")), 0)
    of_query(storage, "third").write(rows_of(row("c")), 0)
    assert ids(storage) == ["a", "b", "c"]


def test_a_fresh_query_takes_no_batch_for_its_own() -> None:
    storage = MemoryStorage.fresh()
    sink(storage).write(rows_of(row("a")), 0)
    fresh = sink(storage, fresh=True)
    fresh.write(rows_of(row("b")), 0)
    skips(fresh, rows_of(row("b")), 0)
    fresh.write(rows_of(row("c")), 1)
    assert ids(storage) == ["a", "b", "c"]


def test_identifiers_distinguish_streams() -> None:
    storage = MemoryStorage.fresh()
    sink(storage, {IDENTIFIER: "x"}).write(rows_of(row("a")), 0)
    sink(storage, {IDENTIFIER.upper(): "y"}).write(rows_of(row("b")), 0)
    skips(sink(storage, {IDENTIFIER: "y"}), rows_of(row("b")), 0)
    assert ids(storage) == ["a", "b"]


@pytest.mark.parametrize("down", range(12))
def test_a_retry_checks_again_whether_the_batch_is_committed(down: int) -> None:
    storage = CommitAnswerLost(MemoryStorage.fresh(), down)
    made = sink(storage, {"hoodie.datasource.write.streaming.retry.count": "12"})
    made.write(rows_of(row("a")), 0)
    storage.armed = True
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        made.write(rows_of(row("b")), 1)
    assert ids(storage) == ["a", "b"]


@pytest.mark.parametrize("day", ["2026-01-01", "another"])
@pytest.mark.parametrize("more", [{}, SEVERAL], ids=["one writer", "several writers"])
def test_a_replaced_driver_and_its_successor_write_a_batch_once(
    more: Mapping[str, str], day: str
) -> None:
    storage = MemoryStorage.fresh()
    old, new = sink(storage, more), sink(storage, more)
    old.write(rows_of(row("z")), 0)
    batch = [row("a", day=day)]
    skips(old, interrupted_rows(batch, lambda: new.write(rows_of(*batch), 1)), 1)
    assert [type(result) for result in new.commits] == [Commit]
    assert ids(storage) == ["a", "z"]


def test_a_batch_is_looked_for_where_nothing_else_conflicts() -> None:
    storage = MemoryStorage.fresh()
    more = {**SEVERAL, "hoodie.datasource.write.streaming.retry.count": "0"}
    old, new = sink(storage, more), sink(storage, more)
    old.write(rows_of(row("z")), 0)
    mine = interrupted_rows([row("a", day="d1")], lambda: new.write(rows_of(row("b", day="d2")), 1))
    skips(old, mine, 1)
    assert ids(storage) == ["b", "z"]
    assert not [file for file in storage.list_files("d1") if file.name.endswith(".parquet")]


def test_a_first_batch_that_fails_leaves_no_table() -> None:
    storage = MemoryStorage.fresh()
    with pytest.raises(InvalidError, match="no record key"):
        sink(storage).write(rows_of({**row("a"), "id": None}), 0)
    assert not list(storage.list_tree(""))


def test_a_batch_that_fails_is_tried_again_and_then_raised_or_left_out() -> None:
    storage = MemoryStorage.fresh()
    made = sink(storage)
    made.write(rows_of(row("a")), 0)
    tries: list[int] = []

    def fail() -> None:
        tries.append(1)
        raise UnavailableError("away")

    before = CLOCK.monotonic_ms()
    with pytest.raises(UnavailableError, match="away"):
        made.write(interrupted_rows([row("b")], fail), 1)
    assert len(tries) == 4
    assert CLOCK.monotonic_ms() - before >= 6000
    careless = {"hoodie.datasource.write.streaming.ignore.failed.batch": "true"}
    made = sink(storage, careless)
    with pytest.warns(RuntimeWarning, match="rows are lost"):
        made.write(interrupted_rows([row("b")], fail), 1)
    assert [type(result) for result in made.commits] == [Skip]
    assert ids(storage) == ["a"]


def test_a_complete_batch_replaces_the_rows() -> None:
    storage = MemoryStorage.fresh()
    made = sink(storage, {OPERATION: "upsert"}, complete=True)
    made.write(rows_of(row("a"), row("b")), 0)
    made.write(rows_of(row("b", 1), row("b", 2), row("c")), 1)
    assert ids(storage) == ["b", "c"]
    skips(sink(storage, complete=True), rows_of(row("d")), 1)
    with pytest.raises(InvalidError, match="Config conflict"):
        sink(storage, {"hoodie.table.name": "other"}, complete=True).write(rows_of(row("d")), 2)
    assert ids(storage) == ["b", "c"]


def test_a_batch_of_deleted_partitions_is_noted_too() -> None:
    storage = MemoryStorage.fresh()
    sink(storage).write(rows_of(row("a"), row("b", day="d2")), 0)
    deleting = {OPERATION: "delete_partition"}
    deleting["hoodie.datasource.write.partitions.to.delete"] = "d*"
    sink(storage, deleting).write(rows_of(), 1)
    assert ids(storage) == ["a"]
    assert last_batch(load_snapshot(storage), Stream("default_single_writer")) == 1


def written(storage: Storage, batches: int, others: int) -> None:
    made = of_query(storage, "q")
    for number in range(batches):
        made.write(rows_of(), number)
    table = WrittenTable(storage, CLOCK, {"hoodie.archive.automatic": "false"})
    for _ in range(others):
        table.write("INSERT", [])


def test_commits_are_read_several_at_once_until_one_is_found() -> None:
    storage = CountingStorage(MemoryStorage.fresh())
    written(storage, 3, 30)
    storage.reset()
    snapshot = load_snapshot(storage)
    assert last_batch(snapshot, Stream("default_single_writer", "q")) == 2
    assert storage.calls["read_many"] == 2
    reads = [path for name, path in storage.touched if name == "read_many"]
    assert len(reads) == 32
    history = [path for _, path in storage.touched if "history" in path]
    assert not history


def test_a_check_reads_each_commit_once() -> None:
    storage = CountingStorage(MemoryStorage.fresh())
    written(storage, 1, 5)
    check = BatchValidator(Stream("default_single_writer", "new"), 0)
    check.validate(load_snapshot(storage))
    of_query(storage, "other").write(rows_of(), 0)
    storage.reset()
    check.validate(load_snapshot(storage))
    assert len([path for name, path in storage.touched if name == "read_many"]) == 1
    of_query(storage, "new").write(rows_of(), 0)
    with pytest.raises(BatchWrittenError, match="batch=0"):
        check.validate(load_snapshot(storage))


def test_a_saved_batch_is_older_than_those_that_were_archived_behind_it() -> None:
    quiet = {"hoodie.clean.automatic": "false", "hoodie.archive.automatic": "false"}
    table = WrittenTable(options=quiet).create()
    stream = Stream("s")

    def write(number: int) -> Commit:
        return table.writer().write(Operation.INSERT, rows_of(), extra=stream.note(number))

    batches = [write(number) for number in range(4)]
    table.writer().savepoint(batches[1].instant, user="", comment="")
    for _ in range(4):
        table.write("INSERT", [])
    options = {
        "hoodie.archive.beyond.savepoint": "true",
        "hoodie.keep.min.commits": "2",
        "hoodie.keep.max.commits": "3",
        "hoodie.clean.commits.retained": "1",
    }
    table.services(options).run("archive")
    snapshot = load_snapshot(table.storage)
    assert batches[3].instant not in snapshot.timeline.by_time
    assert last_batch(snapshot, stream) == 3
    with pytest.raises(BatchWrittenError, match="batch=3"):
        BatchValidator(stream, 3).validate(snapshot)


NOTES: dict[str, tuple[str, Stream, int | None]] = {
    "another identifier is another stream": ('{"x": "3"}', Stream("y"), None),
    "real Hudi names no query": ('{"x": "3"}', Stream("x", "q"), 3),
    "a fresh query was not there before": ('{"x": "3"}', Stream("x", "q", fresh=True), None),
    "several streams in one note": ('{"x": "3", "y": "4"}', Stream("y"), 4),
}


@pytest.mark.parametrize(("text", "stream", "number"), NOTES.values(), ids=NOTES.keys())
def test_the_batch_of_a_note(text: str, stream: Stream, number: int | None) -> None:
    assert stream.batch_in({BATCHES: text}) == number


@pytest.mark.parametrize("text", ["junk", "[1]", '{"x": "one"}'])
def test_a_note_that_cannot_be_read_is_an_error(text: str) -> None:
    with pytest.raises(CorruptError):
        Stream("x").batch_in({BATCHES: text})


def test_a_note_is_read_by_its_own_stream_only() -> None:
    note = Stream("x", "q").note(7)
    assert Stream("x", "q").batch_in(note) == 7
    assert Stream("x").batch_in(note) == 7
    assert Stream("x", "other").batch_in(note) is None


def test_a_checkpoint_determines_the_query(tmp_path: Path) -> None:
    assert query_of(str(tmp_path)) is None
    (tmp_path / "metadata").write_text(json.dumps({"id": "some-query"}))
    assert query_of(str(tmp_path), {"fs.s3a.endpoint": "unused"}) == "some-query"
    storage = MemoryStorage.fresh()
    of_query(storage, "another").write(rows_of(row("a")), 0)
    made = sink(storage, checkpoint=str(tmp_path))
    made.write(rows_of(row("b")), 0)
    skips(made, rows_of(row("b")), 0)
    assert ids(storage) == ["a", "b"]
    (tmp_path / "metadata").write_text("[]")
    with pytest.raises(CorruptError):
        query_of(str(tmp_path))


def test_a_place_without_checkpoint_is_refused_unless_the_stream_has_a_name(tmp_path: Path) -> None:
    storage = MemoryStorage.fresh()
    with pytest.raises(InvalidError, match="checkpoint"):
        sink(storage, checkpoint=str(tmp_path)).write(rows_of(row("a")), 0)
    assert not list(storage.list_tree(""))
    named = sink(storage, {IDENTIFIER: "mine"}, checkpoint=str(tmp_path))
    named.write(rows_of(row("a")), 0)
    assert ids(storage) == ["a"]


def test_a_sink_needs_a_checkpoint_or_an_identifier() -> None:
    table = Table(MemoryStorage.fresh(), storage_options={"fs.s3a.endpoint": "there"})
    with pytest.raises(InvalidError, match="checkpoint="):
        table.stream_sink()
    assert table.stream_sink({IDENTIFIER: "mine"}).checkpoint is None
    made = table.stream_sink(checkpoint="s3a://bucket/place")
    assert made.storage_options == {"fs.s3a.endpoint": "there"}


def test_a_save_without_note_is_not_a_batch() -> None:
    storage = MemoryStorage.fresh()
    SaveOperation(WriteClient.create(storage, OPTIONS, CLOCK), SaveMode.APPEND).write(
        rows_of(row("a"))
    )
    assert last_batch(load_snapshot(storage), Stream("default_single_writer")) is None


CHECKPOINTS: dict[str, tuple[str, str | None, str | None, str | None]] = {
    "the option of the query": ("/all", "/own", "name", "/own"),
    "a named query has its folder in the session's": ("/all/", None, "name", "/all/name"),
    "without name it is at random": ("/all", None, None, None),
    "without any it is temporary": ("", None, "name", None),
}


@pytest.mark.parametrize(
    ("folder", "option", "name", "place"), CHECKPOINTS.values(), ids=CHECKPOINTS.keys()
)
def test_where_spark_keeps_the_checkpoint(
    folder: str, option: str | None, name: str | None, place: str | None
) -> None:
    conf = {"spark.sql.streaming.checkpointLocation": folder} if folder else {}
    session = cast("SparkSession", SimpleNamespace(conf=conf))
    assert _checkpoint(session, option, name) == place
