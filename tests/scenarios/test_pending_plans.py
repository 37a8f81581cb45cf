"""Plans that wait: one that cannot be executed stops no other, and says why."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

import pytest

from lakewright.errors import ConflictError, CorruptError, InvalidError, UnavailableError
from lakewright.format.timeline_metadata import format_compaction_plan, parse_compaction_plan
from lakewright.model.instant import Action, Instant, State
from lakewright.model.plans import Skip
from lakewright.services.compaction_debt import PartitionDebt, load_debt
from lakewright.services.maintenance_loop import run_round
from lakewright.services.registry import service_of_plan
from lakewright.storage.base import FileStatus, Storage
from lakewright.table.snapshot import load_snapshot
from lakewright.testing.storage import CountingStorage
from lakewright.write.writer import Commit
from support.concurrency import InterruptedStorage, another_process
from support.tables import NO_SERVICES, WrittenTable, row

QUIET = NO_SERVICES
AT_ONCE = {"hoodie.compact.inline.max.delta.commits": "1"}
INLINE = {**AT_ONCE, "hoodie.compact.inline": "true"}
LENIENT = {**INLINE, "hoodie.fail.writes.on.inline.table.service.exception": "false"}
PLAN_FILE = r"compaction\.requested$"
DAYS = ("2026-01-01", "2026-01-02")
TIMELINE = ".hoodie/timeline"


def with_logs() -> WrittenTable:
    table = WrittenTable(options=QUIET).create("MERGE_ON_READ")
    table.upsert([row("a"), row("b", day=DAYS[1])])
    table.upsert([row("a", 2, "second"), row("b", 2, "second", DAYS[1])])
    return table


def on(table: WrittenTable, storage: Storage) -> WrittenTable:
    return WrittenTable(storage, table.clock, table.options)


def scheduled(table: WrittenTable, options: Mapping[str, str] | None = None) -> str:
    instant = table.services({**AT_ONCE, **(options or {})}).schedule("compaction")
    assert isinstance(instant, Instant)
    return instant.requested_at


def pending(table: WrittenTable) -> list[str]:
    timeline = load_snapshot(table.storage).timeline
    return [i.requested_at for i in timeline.pending(Action.COMPACTION)]


def only(day: str) -> dict[str, str]:
    return {
        "hoodie.compaction.strategy": "partition_regex",
        "hoodie.compaction.partition.path.regex": day,
    }


def plan_twice(table: WrittenTable) -> tuple[str, str]:
    """The older and the newer of two plans for the same file groups, as other writers make them."""
    older = scheduled(table)
    path = f"{TIMELINE}/{Instant(older, Action('compaction'), State.REQUESTED).file_name}"
    data = table.storage.read(path)
    table.storage.delete(path)
    newer = scheduled(table)
    table.storage.create(path, data)
    return older, newer


def test_of_two_plans_made_at_once_one_stays() -> None:
    table = with_logs()
    other: list[str] = []

    def other_process(storage: Storage, path: str, data: bytes) -> None:
        with another_process():
            other.append(scheduled(table))
        storage.create(path, data)

    slow = on(table, InterruptedStorage(table.storage, PLAN_FILE, other_process))
    skip = slow.services(AT_ONCE).schedule("compaction")
    assert isinstance(skip, Skip)
    assert "held by compaction" in skip.reason
    assert pending(table) == other


def test_plans_made_at_once_for_different_groups_both_stay() -> None:
    table = with_logs()

    def other_process(storage: Storage, path: str, data: bytes) -> None:
        with another_process():
            scheduled(table, only(DAYS[0]))
        storage.create(path, data)

    slow = on(table, InterruptedStorage(table.storage, PLAN_FILE, other_process))
    assert scheduled(slow, only(DAYS[1])) in pending(table)
    assert len(pending(table)) == 2


def test_a_plan_whose_answer_was_lost_is_there_once() -> None:
    table = with_logs()

    def answered_twice(storage: Storage, path: str, data: bytes) -> None:
        storage.create(path, data)
        raise ConflictError("the file exists already", path=path)

    at = scheduled(on(table, InterruptedStorage(table.storage, PLAN_FILE, answered_twice)))
    assert pending(table) == [at]


def test_where_a_time_is_taken_the_table_is_looked_at_again() -> None:
    table = with_logs()
    written: list[str] = []

    def taken(storage: Storage, path: str, data: bytes) -> None:
        with another_process():
            written.append(table.upsert([row("a", 3, "third")]).instant)
        raise ConflictError("the file exists already", path=path)

    at = scheduled(on(table, InterruptedStorage(table.storage, PLAN_FILE, taken)))
    plan = load_snapshot(table.storage).plan_of(at, Action.COMPACTION)
    assert plan is not None
    assert any(written[0] in log for operation in plan.operations for log in operation.logs)


def test_a_write_succeeds_if_the_plan_it_scheduled_is_cancelled_concurrently() -> None:
    table = with_logs()
    at = scheduled(table, {"hoodie.table.service.plan.cancellable": "true"})

    def other_process(storage: Storage, path: str, data: bytes) -> None:
        storage.create(path, data)
        with another_process():
            table.services().cancel(at)

    slow = on(
        table, InterruptedStorage(table.storage, r"\d{17}_\d{17}\.deltacommit$", other_process)
    )
    commit = slow.upsert([row("c")], {"hoodie.compact.inline": "true"})
    assert any(
        isinstance(outcome, Skip) and "rolled back" in outcome.reason for outcome in commit.services
    )
    assert pending(table) == []


def test_a_plan_that_cannot_be_executed_does_not_stop_the_next() -> None:
    table = with_logs()
    bad, good = scheduled(table, only(DAYS[0])), scheduled(table)
    path = f"{TIMELINE}/{Instant(bad, Action('compaction'), State.REQUESTED).file_name}"
    plan = parse_compaction_plan(table.storage.read(path))
    twice = replace(plan, operations=plan.operations * 2)
    table.storage.replace(path, format_compaction_plan(twice))
    with pytest.raises(CorruptError, match="names a file group twice"):
        table.upsert([row("c")], {"hoodie.compact.inline": "true"})
    timeline = load_snapshot(table.storage).timeline
    assert timeline.is_committed(good)
    assert not timeline.is_committed(bad)


def test_a_void_plan_is_named_and_nothing_waits_for_it() -> None:
    table = with_logs()
    older, newer = plan_twice(table)
    table.services().execute(newer)
    table.upsert([row("a", 3, "third")])
    reason = (
        f"compaction {older} is superseded, as compaction {newer} has compacted its file groups "
        "since"
    )
    reasons = {entry.partition: entry.reason for entry in debt(table)}
    assert reasons == {DAYS[0]: f"{reason}: roll it back"}
    with pytest.raises(ConflictError, match=f"{reason}: roll it back"):
        table.services().execute(older)
    (step, executed) = run_round(table.services(AT_ONCE), ["compaction"])
    assert step.outcome == Skip(f"{reason}: roll it back")
    assert isinstance(executed.outcome, Commit)
    assert debt(table) == ()
    table.writer().rollback(older)
    assert pending(table) == []


def test_a_write_skips_the_superseded_plan_and_compacts() -> None:
    table = with_logs()
    older, newer = plan_twice(table)
    table.services().execute(newer)
    skip, commit = table.upsert([row("a", 3, "third")], INLINE).services
    assert isinstance(skip, Skip)
    assert f"compaction {older} is superseded" in skip.reason
    assert isinstance(commit, Commit)
    assert {record["id"]: record["note"] for record in table.rows()} == {
        "a": "third",
        "b": "second",
    }


def test_of_two_plans_for_the_same_groups_the_newer_is_executed() -> None:
    table = with_logs()
    older, newer = plan_twice(table)
    conflict, commit, *_ = table.upsert([row("a", 3, "third")], INLINE).services
    assert isinstance(conflict, Skip)
    assert "a compaction is pending" in conflict.reason
    assert isinstance(commit, Commit)
    assert commit.instant == newer
    assert pending(table) == [older]


class Unanswering(CountingStorage):
    """Does not answer when the timeline is listed for the second time after a compaction."""

    listings: int | None = None

    def create(self, path: str, data: bytes) -> None:
        super().create(path, data)
        if re.search(r"_\d+\.commit$", path):
            self.listings = 0

    def list_files(self, folder: str) -> list[FileStatus]:
        if self.listings is not None and folder == TIMELINE:
            self.listings += 1
            if self.listings == 2:
                raise UnavailableError("no answer")
        return super().list_files(folder)


def test_a_look_at_the_table_between_services_may_fail_like_a_service() -> None:
    table = with_logs()
    flaky = on(table, Unanswering(table.storage))
    with pytest.warns(RuntimeWarning, match="compaction after a write failed: no answer"):
        commit, failed = flaky.upsert([row("a", 3, "third")], LENIENT).services
    assert isinstance(commit, Commit)
    assert failed == Skip("compaction: no answer")


def test_an_action_that_no_service_has_is_refused() -> None:
    with pytest.raises(InvalidError, match="no service executes plans of this action"):
        service_of_plan(Action.INDEXING, {})


def debt(table: WrittenTable) -> tuple[PartitionDebt, ...]:
    context = table.services().planning_context(load_snapshot(table.storage))
    return load_debt(context).partitions
