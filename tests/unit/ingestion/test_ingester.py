"""One round of ingestion: every row of the source is in the table once, whatever happens."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any, TypeVar

import pyarrow as pa
import pytest

from lakewright.engine.local import ArrowRows
from lakewright.errors import ConflictError, InvalidError, UnavailableError
from lakewright.ingestion.checkpoints import (
    BATCH,
    SOURCE,
    Checkpoint,
    CommittedCheckpoints,
    Version,
)
from lakewright.ingestion.ingester import IncomingBatch, IngestResult
from lakewright.ingestion.source import Batch
from lakewright.model.plans import Skip
from lakewright.storage.base import Storage
from lakewright.storage.memory import MemoryStorage
from lakewright.table.snapshot import load_snapshot
from lakewright.testing.clock import ManualClock
from lakewright.testing.storage import CountingStorage
from lakewright.write.task import Operation
from lakewright.write.writer import Commit
from support.concurrency import InterruptedRows, another_process
from support.faults import CommitAnswerLost
from support.ingestion import CountingSource, arrow_rows, first_keys, ingester, stored_keys
from support.tables import SCHEMA, WrittenTable, row

Result = TypeVar("Result")

SEVERAL = {
    "hoodie.write.concurrency.mode": "OPTIMISTIC_CONCURRENCY_CONTROL",
    "hoodie.write.lock.provider": "in_process",
}
V1_KEY = "deltastreamer.checkpoint.key"


def newest_extra(storage: Storage) -> Mapping[str, str]:
    snapshot = load_snapshot(storage)
    (commit,) = snapshot.commits(snapshot.timeline.by_completion[-1:])
    return commit.extra


def test_rounds_go_on_where_the_table_is() -> None:
    storage, clock = MemoryStorage.fresh(), ManualClock()
    for expected in (4, 8, 10):
        # Each round is a process of its own: nothing is remembered but in the table.
        source = CountingSource()
        result = ingester(storage, source, clock).run()
        assert isinstance(result.outcome, Commit)
        assert stored_keys(storage) == first_keys(expected)
        assert result.after == Checkpoint(str(expected))
        assert newest_extra(storage)[V1_KEY] == str(expected)
        assert source.acknowledged == [expected]
    result = ingester(storage, CountingSource(), clock).run()
    assert isinstance(result.outcome, Skip)
    assert result.before == result.after == Checkpoint("10")
    assert len(load_snapshot(storage).timeline) == 3


def test_a_round_reports_its_metrics() -> None:
    storage, clock = MemoryStorage.fresh(), ManualClock()
    result = ingester(
        storage, CountingSource(), clock, {"hoodie.datasource.write.operation": "upsert"}
    ).run(3)
    assert (result.number, result.source, result.rows) == (3, "counting", 4)
    assert (result.inserted, result.updated, result.deleted) == (4, 0, 0)
    assert (result.bytes, result.lag_ms, result.waiting) == (40, 7, 6)
    assert (result.before, result.after) == (None, Checkpoint("4"))
    assert result.error is None
    assert result.is_retryable
    assert not result.troubles
    # Read again from the beginning, all of them are there already.
    again = ingester(
        storage,
        CountingSource(),
        clock,
        {"hoodie.datasource.write.operation": "upsert"},
        override="0",
    ).run()
    assert (again.rows, again.inserted, again.updated) == (4, 0, 4)


def test_commits_of_others_are_passed_over() -> None:
    storage, clock = MemoryStorage.fresh(), ManualClock()
    table = WrittenTable(storage, clock)
    made = ingester(storage, CountingSource(), clock)
    made.run()
    for number in range(20):
        table.upsert([row(f"other{number}", day="d5")])
    made.run()
    ingester(storage, CountingSource(), clock).run()
    assert [key for key in stored_keys(storage) if key.startswith("k")] == first_keys(10)


def test_a_position_in_history_is_found() -> None:
    storage, clock = MemoryStorage.fresh(), ManualClock()
    made = ingester(storage, CountingSource(), clock)
    made.run()
    quiet = {"hoodie.clean.automatic": "false", "hoodie.archive.automatic": "false"}
    table = WrittenTable(storage, clock, quiet)
    for number in range(6):
        table.upsert([row(f"other{number}", day="d5")])
    few = {
        "hoodie.keep.min.commits": "2",
        "hoodie.keep.max.commits": "3",
        "hoodie.clean.commits.retained": "1",
    }
    table.services(few).run("archive")
    first = load_snapshot(storage).archived[0]
    assert first.requested_at not in load_snapshot(storage).timeline.by_time
    # One that saw the commit before it was archived, and one that did not.
    assert made.run().before == Checkpoint("4")
    assert ingester(storage, CountingSource(), clock).run().before == Checkpoint("8")
    assert [key for key in stored_keys(storage) if key.startswith("k")] == first_keys(10)


def test_hudis_own_position_is_taken_over() -> None:
    table = WrittenTable().create()
    for extra in ({V1_KEY: "4"}, {V1_KEY: ""}):
        rows = ArrowRows(pa.Table.from_pylist([row("first")], SCHEMA))
        table.writer().write(Operation.INSERT, rows, extra=extra)
    source = CountingSource()
    options = {"hoodie.table.name": "written"}
    ingester(table.storage, source, table.clock, options).run()
    assert source.asked == ["4"]


def test_no_rows_but_a_position_that_moved_are_a_commit_without_files() -> None:
    storage, clock = MemoryStorage.fresh(), ManualClock()
    source = CountingSource(hidden=frozenset(range(4, 8)))
    made = ingester(storage, source, clock)
    made.run()
    before = load_snapshot(storage).avro_schema()
    result = made.run()
    assert result.commit is not None
    assert result.commit.files == 0
    assert (result.rows, result.after) == (0, Checkpoint("8"))
    assert load_snapshot(storage).avro_schema() == before
    made.run()
    assert len(stored_keys(storage)) == 6
    assert source.asked == [None, "4", "8"]


@pytest.mark.parametrize("operation", ["insert_overwrite_table", "insert_overwrite", "delete"])
def test_a_round_without_rows_deletes_nothing(operation: str) -> None:
    storage, clock = MemoryStorage.fresh(), ManualClock()
    ingester(storage, CountingSource(), clock).run()
    source = CountingSource(hidden=frozenset(range(4, 8)))
    options = {"hoodie.datasource.write.operation": operation}
    result = ingester(storage, source, clock, options).run()
    assert result.after == Checkpoint("8")
    assert stored_keys(storage) == first_keys(4)


def test_a_position_without_table_or_columns_stays() -> None:
    storage, clock = MemoryStorage.fresh(), ManualClock()
    source = CountingSource(hidden=frozenset(range(100)))
    result = ingester(storage, source, clock).run()
    assert isinstance(result.outcome, Skip)
    assert result.after is None
    assert not list(storage.list_tree(""))
    table = WrittenTable(clock=clock).create(name="t")
    result = ingester(table.storage, source, clock).run()
    assert isinstance(result.outcome, Skip)
    assert result.after is None


def test_batches_without_rows_do_not_hide_those_behind_them() -> None:
    storage, clock = MemoryStorage.fresh(), ManualClock()
    source = CountingSource(total=12, size=4, hidden=frozenset(range(8)))
    result = ingester(storage, source, clock).run()
    assert result.after == Checkpoint("12")
    assert stored_keys(storage) == first_keys(12)[8:]


def test_a_frame_without_columns_has_no_rows() -> None:
    storage, clock = MemoryStorage.fresh(), ManualClock()
    made = ingester(storage, CountingSource(), clock)
    made.transform = lambda rows: rows.select([])
    assert isinstance(made.run().outcome, Skip)


@pytest.mark.parametrize("more", [{}, SEVERAL], ids=["one writer", "several writers"])
def test_of_two_at_once_one_loses_and_leaves_nothing(more: Mapping[str, str]) -> None:
    storage, clock = MemoryStorage.fresh(), ManualClock()
    ingester(storage, CountingSource(), clock, more).run()
    slow = CountingSource()
    slow.on_read = lambda: _round(storage, clock, more)
    with pytest.raises(ConflictError, match="another process committed"):
        ingester(storage, slow, clock, more).run()
    assert stored_keys(storage) == first_keys(8)
    assert slow.acknowledged == []
    assert not load_snapshot(storage).timeline.pending()


def _round(storage: Storage, clock: ManualClock, more: Mapping[str, str]) -> IngestResult:
    return ingester(storage, CountingSource(), clock, more).run()


@pytest.mark.parametrize("more", [{}, SEVERAL], ids=["one writer", "several writers"])
def test_an_ingestion_that_is_overtaken_while_writing_fails(more: Mapping[str, str]) -> None:
    storage, clock = MemoryStorage.fresh(), ManualClock()
    _round(storage, clock, more)
    made = ingester(storage, CountingSource(), clock, more)
    made.incoming = lambda rows: IncomingBatch(
        InterruptedRows(rows, lambda: _round(storage, clock, more)), lambda: len(rows)
    )
    with pytest.raises(ConflictError):
        made.run()
    assert stored_keys(storage) == first_keys(8)
    made.incoming = arrow_rows
    made.run()
    assert stored_keys(storage) == first_keys(10)


@pytest.mark.parametrize("size", [4, 2], ids=["the same batch", "another one"])
def test_two_ingesters_that_both_expect_to_be_alone_write_rows_once(size: int) -> None:
    clock = ManualClock()
    storage = MemoryStorage.fresh(now_ms=clock.now_ms)
    _round(storage, clock, {})

    def other() -> None:
        with another_process(), suppress(ConflictError):
            ingester(storage, CountingSource(size=size), clock).run()

    made = ingester(storage, CountingSource(), clock)
    made.incoming = lambda rows: IncomingBatch(InterruptedRows(rows, other), lambda: len(rows))
    with suppress(ConflictError):
        made.run()
    made.incoming = arrow_rows
    for _ in range(4):
        made.run()
    assert stored_keys(storage) == first_keys(10)


def test_two_that_make_the_table_at_once_bring_rows_once() -> None:
    storage, clock = MemoryStorage.fresh(), ManualClock()
    slow = CountingSource()
    slow.on_read = lambda: _round(storage, clock, SEVERAL)
    with pytest.raises(ConflictError):
        ingester(storage, slow, clock, SEVERAL).run()
    assert stored_keys(storage) == first_keys(4)


def test_rows_whose_commit_is_rolled_back_are_read_again() -> None:
    storage, clock = MemoryStorage.fresh(), ManualClock()
    made = ingester(storage, CountingSource(), clock)
    made.run()
    second = made.run().commit
    assert second is not None
    WrittenTable(storage, clock).writer().rollback(second.instant)
    assert made.run().before == Checkpoint("4")
    assert stored_keys(storage) == first_keys(8)


def test_a_batch_read_after_a_commit_that_was_rolled_back_is_refused() -> None:
    storage, clock = MemoryStorage.fresh(), ManualClock()
    _round(storage, clock, {})
    second = _round(storage, clock, {}).commit
    assert second is not None
    third = CountingSource()
    third.on_read = lambda: WrittenTable(storage, clock).writer().rollback(second.instant)
    with pytest.raises(ConflictError, match="rolled back"):
        ingester(storage, third, clock).run()
    assert stored_keys(storage) == first_keys(4)


@pytest.mark.parametrize("down", range(12))
def test_a_commit_whose_answer_was_lost_is_recognised(down: int) -> None:
    storage, clock = CommitAnswerLost(MemoryStorage.fresh(), down), ManualClock()
    source = CountingSource()
    made = ingester(storage, source, clock)
    made.run()
    storage.armed = True
    rounds = 0
    while len(stored_keys(storage.inner)) < 10:
        rounds += 1
        assert rounds < 20
        try:
            made.run()
        except UnavailableError:
            continue
    assert stored_keys(storage.inner) == first_keys(10)


def test_a_lost_answer_is_reported_and_the_source_is_acknowledged() -> None:
    storage, clock = CommitAnswerLost(MemoryStorage.fresh(), 3), ManualClock()
    source = CountingSource()
    made = ingester(storage, source, clock)
    made.run()
    # The commit and the questions whether it is there are not answered; what comes after is.
    storage.armed = True
    result = made.run()
    assert result.commit is not None
    assert result.after == Checkpoint("8")
    assert source.acknowledged == [4, 8]
    assert stored_keys(storage) == first_keys(8)


def test_a_source_that_cannot_be_acknowledged_is_only_a_warning() -> None:
    storage, clock = MemoryStorage.fresh(), ManualClock()

    class Deaf(CountingSource):
        def next_batch(self, spark: Any, after: Checkpoint | None) -> Batch:
            batch = super().next_batch(spark, after)

            def fail() -> None:
                raise UnavailableError("the queue is away")

            return Batch(batch.rows, batch.checkpoint, batch.facts, fail)

    with pytest.warns(RuntimeWarning, match="the queue is away"):
        result = ingester(storage, Deaf(), clock).run()
    assert result.commit is not None
    (trouble,) = result.troubles
    assert "the queue is away" in trouble
    assert stored_keys(storage) == first_keys(4)


def test_an_override_is_followed_once() -> None:
    storage, clock = MemoryStorage.fresh(), ManualClock()
    source = CountingSource(total=100)
    ingester(storage, source, clock).run()
    ingester(storage, source, clock, override="50").run()
    assert newest_extra(storage)["deltastreamer.checkpoint.reset_key"] == "50"
    ingester(storage, source, clock, override="50").run()
    ingester(storage, source, clock, override="60").run()
    ingester(storage, source, clock).run()
    assert source.asked == [None, "50", "54", "60", "64"]
    assert "deltastreamer.checkpoint.reset_key" not in newest_extra(storage)


def test_an_override_without_rows_is_kept() -> None:
    storage, clock = MemoryStorage.fresh(), ManualClock()
    source = CountingSource()
    ingester(storage, source, clock).run()
    result = ingester(storage, source, clock, override="10").run()
    assert result.commit is not None
    assert ingester(storage, source, clock).run().before == Checkpoint("10", reset="10")


def test_sources_that_share_a_table_have_their_own_positions() -> None:
    storage, clock = MemoryStorage.fresh(), ManualClock()
    unnamed, one, other = CountingSource(), CountingSource(), CountingSource()
    for _ in range(2):
        ingester(storage, unnamed, clock).run()
        ingester(storage, one, clock, source_name="one").run()
        ingester(storage, other, clock, source_name="other").run()
    assert unnamed.asked == one.asked == other.asked == [None, "4"]
    assert newest_extra(storage)[SOURCE] == "other"
    assert stored_keys(storage) == sorted(first_keys(8) * 3)


def test_rows_without_checkpoint_keep_the_one_before() -> None:
    storage, clock = MemoryStorage.fresh(), ManualClock()

    class Queue(CountingSource):
        def next_batch(self, spark: Any, after: Checkpoint | None) -> Batch:
            batch = super().next_batch(spark, after)
            return Batch(batch.rows, None, batch.facts, batch.committed)

    first = ingester(storage, Queue(), clock).run()
    assert (first.before, first.after) == (None, None)
    assert BATCH in newest_extra(storage)
    ingester(storage, CountingSource(), clock).run()
    second = ingester(storage, Queue(), clock).run()
    assert second.after == Checkpoint("4")
    assert newest_extra(storage)[V1_KEY] == "4"


def test_each_commit_is_read_once() -> None:
    inner, clock = MemoryStorage.fresh(), ManualClock()
    storage = CountingStorage(inner)
    made = ingester(storage, CountingSource(total=100), clock)
    for _ in range(5):
        made.run()
    positions = CommittedCheckpoints()
    positions.newest(load_snapshot(storage))
    ingester(inner, CountingSource(total=100), clock).run()
    storage.reset()
    newest = positions.newest(load_snapshot(storage))
    assert newest is not None
    assert newest.checkpoint == Checkpoint("24")
    assert len([path for name, path in storage.touched if name == "read_many"]) == 1
    storage.reset()
    assert positions.newest(load_snapshot(storage)) == newest
    assert not [path for name, path in storage.touched if name == "read_many"]


def test_a_service_that_fails_for_good_raises_after_the_source_was_acknowledged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    storage, clock = MemoryStorage.fresh(), ManualClock()
    source = CountingSource()

    def fail(*arguments: object) -> object:
        raise InvalidError("no such strategy")

    monkeypatch.setattr("lakewright.client.write_client.run_inline", fail)
    with pytest.raises(InvalidError, match="no such strategy"):
        ingester(storage, source, clock).run()
    assert source.acknowledged == [4]
    assert stored_keys(storage) == first_keys(4)


def test_completion_times_are_kept_under_their_own_key() -> None:
    storage, clock = MemoryStorage.fresh(), ManualClock()

    class Timed(CountingSource):
        def next_batch(self, spark: Any, after: Checkpoint | None) -> Batch:
            batch = super().next_batch(spark, after)
            text = batch.checkpoint.text if batch.checkpoint is not None else ""
            return Batch(batch.rows, Checkpoint(text, Version.V2), batch.facts)

    ingester(storage, Timed(), clock).run()
    assert newest_extra(storage)["streamer.checkpoint.key.v2"] == "4"
    assert ingester(storage, Timed(), clock).run().before == Checkpoint("4", Version.V2)


def test_a_table_without_a_name_is_not_created() -> None:
    storage, clock = MemoryStorage.fresh(), ManualClock()
    with pytest.raises(InvalidError, match="name"):
        ingester(storage, CountingSource(), clock, {"hoodie.table.name": ""}).run()
    assert not list(storage.list_tree(""))


def test_a_position_that_a_listing_missed_does_not_count_again() -> None:
    storage, clock = MemoryStorage.fresh(), ManualClock()
    made = ingester(storage, CountingSource(total=40), clock)
    commits = [made.run().commit for _ in range(3)]
    whole = load_snapshot(storage)
    assert commits[1] is not None
    missed = [i for i in whole.timeline if i.requested_at != commits[1].instant]
    positions = CommittedCheckpoints()
    torn = replace(whole, timeline=replace(whole.timeline, instants=tuple(missed)))
    last = positions.newest(torn)
    assert last is not None
    assert positions.newest(whole) == last
