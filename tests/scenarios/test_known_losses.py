"""Losses that are known of other writers of the format; none of them may happen here.

Each class is named by the issue in which users of apache/hudi reported the loss.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import count
from typing import Any

import pytest

from lakewright.errors import ConflictError, UnavailableError
from lakewright.model.instant import Action, Instant
from lakewright.model.plans import Skip
from lakewright.storage.base import Storage
from lakewright.table.snapshot import load_snapshot
from lakewright.testing.clock import ManualClock
from lakewright.testing.storage import CountingStorage
from lakewright.write.writer import Commit
from support.concurrency import another_process
from support.soak import sized
from support.tables import NO_SERVICES, TIMELINE, WrittenTable, row

SEVERAL = {
    **NO_SERVICES,
    "hoodie.write.concurrency.mode": "OPTIMISTIC_CONCURRENCY_CONTROL",
    "hoodie.write.lock.wait_time_ms": "1000",
}
COMPACT = {"hoodie.compact.inline.max.delta.commits": "1"}
ARCHIVE = {
    "hoodie.clean.commits.retained": "1",
    "hoodie.keep.min.commits": "2",
    "hoodie.keep.max.commits": "3",
}
CLUSTER = {
    "hoodie.clustering.inline.max.commits": "1",
    "hoodie.clustering.plan.strategy.single.group.clustering.enabled": "true",
}
# After which calls of a process another one acts.
STEP = sized(4, 1)
PARTITION, ELSEWHERE = "2026-01-01", "2026-03-01"


class ActsAfter(CountingStorage):
    """Another process acts once: after so many calls, or so many listings of the timeline."""

    def __init__(
        self, inner: Storage, number: int, act: Callable[[], object], *, listings: bool
    ) -> None:
        super().__init__(inner)
        self.left, self.act, self.listings, self.acted = number, act, listings, False

    def _call(self, method: Callable[..., Any], *arguments: Any) -> Any:
        result = super()._call(method, *arguments)
        counts = not self.listings or (method.__name__, *arguments[:1]) == ("list_files", TIMELINE)
        if counts and self.left == 0 and not self.acted:
            self.acted = True
            # Where the lock is held, the other process does not get to act.
            with another_process(), suppress(UnavailableError):
                self.act()
        self.left -= counts
        return result


def interrupted(
    build: Callable[[], WrittenTable],
    act: Callable[[WrittenTable], object],
    *,
    listings: bool = False,
) -> Iterator[tuple[WrittenTable, WrittenTable]]:
    """New tables, as two processes see them: the second is interrupted later and later."""
    for number in count(0, 1 if listings else STEP):
        table = build()
        storage = ActsAfter(table.storage, number, partial(act, table), listings=listings)
        yield table, replace(table, storage=storage)
        if not storage.acted:
            return


class TestLogOfAnArchivedDeltaCommit14365:
    """apache/hudi 14365: a plan left out a log file whose delta commit was archived by then.

    The completion time of an archived commit was not found, so the log file counted as one that
    completed after the compaction, and the base file lacked its rows.
    """

    @staticmethod
    def written() -> WrittenTable:
        table = WrittenTable(options=NO_SERVICES, clock=ManualClock()).create("MERGE_ON_READ")
        table.upsert([row("a"), row("b")])
        table.upsert([row("a", 2, "second")])
        return table

    @staticmethod
    def archive(table: WrittenTable, delta_commit: str) -> None:
        for number in range(8):
            table.upsert([row("x", number, day=ELSEWHERE)])
            table.services(ARCHIVE).run("clean")
            table.services(ARCHIVE).run("archive")
            if delta_commit not in load_snapshot(table.storage).timeline.by_time:
                return
        raise AssertionError("not archived")

    def test_the_plan_has_the_log_and_the_base_file_its_rows(self) -> None:
        table = self.written()
        delta_commit = load_snapshot(table.storage).timeline.by_completion[-1].requested_at
        self.archive(table, delta_commit)
        plan = table.services(COMPACT).preview("compaction")
        logs = [log for o in plan.operations if o.partition == PARTITION for log in o.logs]
        assert [log for log in logs if delta_commit in log]
        assert isinstance(table.services(COMPACT).run("compaction"), Commit)
        assert row("a", 2, "second") in table.rows(optimized=True)
        assert row("a", 2, "second") in table.rows()

    def test_archiving_at_any_call_of_planning_takes_no_log_from_the_plan(self) -> None:
        def build() -> WrittenTable:
            table = self.written()
            for number in range(4):
                table.upsert([row("x", number, day=ELSEWHERE)])
            table.services(ARCHIVE).run("clean")
            return table

        def act(table: WrittenTable) -> object:
            return table.services(ARCHIVE).run("archive")

        for table, planner in interrupted(build, act, listings=True):
            planner.services(COMPACT).run("compaction")
            table.services(COMPACT).run("compaction")
            assert row("a", 2, "second") in table.rows(optimized=True)

    def test_the_next_plan_has_the_log_of_a_write_that_completed_after_a_compaction(self) -> None:
        """Its delta commit began before that compaction, and is archived by then.

        Without its completion time the log file would belong to the base file before.
        """
        table = self.written()
        table = replace(table, options={**SEVERAL, **table.options})

        def compact() -> None:
            assert isinstance(table.services(COMPACT).run("compaction"), Commit)

        commit = table.upsert([row("a", 3, "third")], before_commit=compact)
        (compaction,) = load_snapshot(table.storage).timeline.completed_services(Action.COMPACTION)
        assert commit.instant < compaction.requested_at < commit.completed_at
        self.archive(table, commit.instant)
        assert row("a", 3, "third") in table.rows()
        plan = table.services(COMPACT).preview("compaction")
        logs = [log for o in plan.operations if o.partition == PARTITION for log in o.logs]
        assert [log for log in logs if commit.instant in log]
        assert isinstance(table.services(COMPACT).run("compaction"), Commit)
        assert row("a", 3, "third") in table.rows(optimized=True)


class TestOverwriteBesideAPendingClustering18830:
    """apache/hudi 18830: an overwrite replaced file groups that a pending clustering was to move.

    Where the clustering was executed afterwards, rows that were overwritten came back.
    """

    OPERATIONS = ("INSERT_OVERWRITE", "INSERT_OVERWRITE_TABLE", "DELETE_PARTITION")

    @staticmethod
    def written() -> WrittenTable:
        table = WrittenTable(options=SEVERAL, clock=ManualClock()).create()
        table.upsert([row("a"), row("b")])
        return table

    @staticmethod
    def overwrite(table: WrittenTable, operation: str) -> None:
        if operation == "DELETE_PARTITION":
            table.delete_partitions(PARTITION)
        else:
            table.write(operation, [row("new")])

    @staticmethod
    def rows_after(operation: str) -> list[dict[str, Any]]:
        return [] if operation == "DELETE_PARTITION" else [row("new")]

    @pytest.mark.parametrize("operation", OPERATIONS)
    def test_the_overwrite_is_refused(self, operation: str) -> None:
        table = self.written()
        plan = table.services(CLUSTER).schedule("clustering")
        assert isinstance(plan, Instant)
        with pytest.raises(ConflictError, match="clustering"):
            self.overwrite(table, operation)
        assert table.rows() == [row("a"), row("b")]
        assert table.services(CLUSTER).execute(plan.requested_at)
        assert table.rows() == [row("a"), row("b")]
        self.overwrite(table, operation)
        assert table.rows() == self.rows_after(operation)

    @pytest.mark.parametrize("operation", OPERATIONS)
    def test_a_clustering_scheduled_at_any_call_of_it_brings_nothing_back(
        self, operation: str
    ) -> None:
        plans: list[Instant | Skip] = []

        def act(table: WrittenTable) -> None:
            try:
                plans.append(table.services(CLUSTER).schedule("clustering"))
            except ConflictError as error:
                plans.append(Skip(str(error)))

        for table, overwriter in interrupted(self.written, act):
            plans.clear()
            try:
                self.overwrite(overwriter, operation)
                expected = self.rows_after(operation)
            except ConflictError:
                expected = [row("a"), row("b")]
            assert table.rows() == expected
            for plan in plans:
                if isinstance(plan, Instant):
                    with suppress(ConflictError):
                        table.services(CLUSTER).execute(plan.requested_at)
            assert table.rows() == expected


ACTIONS: dict[str, Callable[[WrittenTable], object]] = {
    "a read": lambda table: table.rows(),
    "an upsert": lambda table: table.upsert([row("c")]),
    "an overwrite": lambda table: table.write("INSERT_OVERWRITE", [row("c")]),
    "scheduling a clustering": lambda table: table.services(CLUSTER).schedule("clustering"),
    "a clean": lambda table: table.services(ARCHIVE).run("clean"),
    "TTL": lambda table: table.services({"hoodie.partition.ttl.strategy.days.retain": "1"}).run(
        "ttl"
    ),
}


class TestReadingAPendingClusteringThatEnds7057:
    """apache/hudi 7057: a writer failed since a clustering that it read about was rolled back.

    The timeline listed a pending clustering; when its plan was read, another process had removed
    it. What another process takes away is no error of the reader, and holds nothing any more.
    """

    @staticmethod
    def pending() -> WrittenTable:
        table = WrittenTable(options=SEVERAL, clock=ManualClock()).create()
        table.upsert([row("a"), row("b", day=ELSEWHERE)])
        assert isinstance(table.services(CLUSTER).schedule("clustering"), Instant)
        table.clock.sleep(2 * 86_400)
        return table

    @staticmethod
    def remove(table: WrittenTable) -> None:
        """As a writer does that rolls back failed clusterings, whatever lock others hold."""
        for instant in load_snapshot(table.storage).timeline.pending(Action.CLUSTERING):
            table.storage.delete(f"{TIMELINE}/{instant.file_name}")

    @pytest.mark.parametrize("action", ACTIONS.values(), ids=list(ACTIONS))
    def test_whoever_reads_it_goes_on(self, action: Callable[[WrittenTable], object]) -> None:
        for table, reader in interrupted(self.pending, self.remove, listings=True):
            with suppress(ConflictError):
                action(reader)
            self.remove(table)
            table.upsert([row("a", 5, "fifth")])
            assert row("a", 5, "fifth") in table.rows()
