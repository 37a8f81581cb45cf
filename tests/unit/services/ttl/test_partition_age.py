"""From when the age of a partition is counted: the line, the timeline, history, names of files."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Any

import pytest

from lakewright.format.partition_metadata import (
    PartitionMetadata,
    format_partition_metadata,
    parse_partition_metadata,
)
from lakewright.format.timeline_metadata import format_commit
from lakewright.model.commit_metadata import CommitMetadata, WriteStat
from lakewright.model.file_group import PARTITION_METADATA, BaseFile
from lakewright.model.instant import Action, Instant
from lakewright.model.plans import Skip
from lakewright.services.base import PlanningContext
from lakewright.services.ttl.hooks import update_partitions
from lakewright.services.ttl.planner import ReferenceSource, TtlDecision, TtlPlan
from lakewright.services.ttl.service import PartitionTtl, explain
from lakewright.storage.memory import MemoryStorage
from lakewright.table.properties import touch_last_update_time
from lakewright.table.snapshot import load_snapshot
from lakewright.testing.clock import ManualClock
from lakewright.testing.storage import CountingStorage, Crash, CrashingStorage
from lakewright.testing.table_builder import TableBuilder
from lakewright.write.writer import Commit
from support.tables import NO_SERVICES, WrittenTable, row

DAY_MS = 86_400_000
TEN_DAYS = {
    "hoodie.ttl.enabled": "true",
    "hoodie.ttl.policies": json.dumps([{"spec": "p*", "units": "DAYS", "value": 10}]),
}
BY_CREATION = {
    "hoodie.partition.ttl.strategy.days.retain": "10",
    "hoodie.partition.ttl.management.strategy.type": "KEEP_BY_CREATION_TIME",
}
SHORT = {
    "hoodie.keep.min.commits": "2",
    "hoodie.keep.max.commits": "3",
    "hoodie.clean.commits.retained": "1",
    "hoodie.compact.inline.max.delta.commits": "1",
    "hoodie.archive.beyond.savepoint": "true",
}


@dataclass
class AgingTable:
    """A table with TTL on: writes and services on given days, and the decision on a partition."""

    table: WrittenTable
    clock: ManualClock

    def day(self, number: float) -> None:
        begin = ManualClock().now_ms()
        self.clock.advance(begin + round(number * DAY_MS) - self.clock.now_ms())

    def put(self, partition: str, ts: int = 1) -> Commit:
        """Write a row as writers do that know nothing of TTL: they renew no line."""
        path = f"{partition}/{PARTITION_METADATA}"
        before = self.last_update_time_of(partition) if self.table.storage.exists(path) else None
        commit = self.table.upsert([row(f"k-{partition}", ts, day=partition)])
        self.line(partition, before)
        return commit

    def serve(self, name: str) -> Any:
        return self.table.services(SHORT).run(name)

    def archive(self, *, compacting: bool = False) -> None:
        """Write elsewhere until all that was there is in history, the last compaction as well."""
        before = load_snapshot(self.table.storage).timeline
        old = {i.requested_at for i in before.completed_writes} - before.savepointed
        for ts in range(10):
            self.put("other", 100 + ts)
            for name in ("compaction", "clean", "archive") if compacting else ("clean", "archive"):
                self.serve(name)
            timeline = load_snapshot(self.table.storage).timeline
            if not old & timeline.by_time.keys():
                return
        raise AssertionError("not archived")

    def line(self, partition: str, time: str | None) -> None:
        path = f"{partition}/{PARTITION_METADATA}"
        metadata = parse_partition_metadata(self.table.storage.read(path))
        changed = replace(metadata, last_update_time=time)
        self.table.storage.replace(path, format_partition_metadata(changed))

    def last_update_time_of(self, partition: str) -> str | None:
        data = self.table.storage.read(f"{partition}/{PARTITION_METADATA}")
        return parse_partition_metadata(data).last_update_time

    def decision(self, partition: str = "p", options: dict[str, str] | None = None) -> TtlDecision:
        runner = self.table.services(options)
        decisions = explain(runner.planning_context(load_snapshot(self.table.storage)))
        return next(decision for decision in decisions if decision.partition == partition)


@pytest.fixture
def aging() -> AgingTable:
    clock = ManualClock()
    table = WrittenTable(options=NO_SERVICES, clock=clock)
    return AgingTable(table.create("MERGE_ON_READ", options=TEN_DAYS), clock)


def test_without_a_line_the_timeline_has_the_update_time(aging: AgingTable) -> None:
    commit = aging.put("p")
    decision = aging.decision()
    assert (decision.reference, decision.source) == (commit.completed_at, ReferenceSource.TIMELINE)


def test_a_newer_line_is_believed(aging: AgingTable) -> None:
    aging.put("p")
    aging.line("p", "20260105000000000")
    aging.day(12)
    decision = aging.decision()
    assert (decision.reference, decision.source) == ("20260105000000000", ReferenceSource.LINE)
    assert not decision.expired


def test_no_line_is_read_where_the_timeline_is_reason_enough_to_live(aging: AgingTable) -> None:
    commit = aging.put("p")
    aging.line("p", "20260105000000000")
    decision = aging.decision()
    assert (decision.reference, decision.source) == (commit.completed_at, ReferenceSource.TIMELINE)
    assert not decision.expired


def test_an_older_line_is_ignored(aging: AgingTable) -> None:
    aging.day(5)
    commit = aging.put("p")
    aging.line("p", "20260101000000000")
    for day in (6, 20):
        aging.day(day)
        decision = aging.decision()
        assert (decision.reference, decision.source) == (
            commit.completed_at,
            ReferenceSource.TIMELINE,
        )


@pytest.mark.parametrize("line", ["", "yesterday", "2026"])
def test_a_line_that_is_no_time_is_ignored(line: str, aging: AgingTable) -> None:
    aging.put("p")
    aging.line("p", line)
    aging.day(20)
    assert aging.decision().source is ReferenceSource.TIMELINE


def test_a_broken_metadata_file_is_ignored(aging: AgingTable) -> None:
    aging.put("p")
    aging.put("p2")
    aging.table.storage.replace(f"p/{PARTITION_METADATA}", b"commitTime")
    assert aging.decision().source is ReferenceSource.TIMELINE
    assert aging.decision("p2").source is ReferenceSource.TIMELINE


def test_the_archived_timeline_has_the_update_time_where_the_line_is_missing(
    aging: AgingTable,
) -> None:
    commit = aging.put("p")
    aging.archive()
    decision = aging.decision()
    assert (decision.reference, decision.source) == (commit.completed_at, ReferenceSource.HISTORY)
    aging.day(11)
    assert aging.decision().expired


def test_a_write_that_did_not_renew_the_line_keeps_the_partition_from_history(
    aging: AgingTable,
) -> None:
    aging.put("p")
    aging.line("p", "20260101000000000")
    aging.day(9)
    commit = aging.put("p", 2)
    aging.archive()
    aging.day(12)
    decision = aging.decision()
    assert (decision.reference, decision.source) == (commit.completed_at, ReferenceSource.HISTORY)
    assert not decision.expired
    aging.day(20)
    assert aging.decision().expired


def test_a_savepoint_does_not_hide_what_was_written_after_it(aging: AgingTable) -> None:
    saved = aging.put("p")
    aging.table.writer().savepoint(saved.instant, user="u", comment="c")
    aging.day(9)
    commit = aging.put("p", 2)
    aging.archive()
    assert saved.instant in load_snapshot(aging.table.storage).timeline.by_time
    aging.day(12)
    decision = aging.decision()
    assert (decision.reference, decision.source) == (commit.completed_at, ReferenceSource.HISTORY)
    assert not decision.expired


def test_pending_work_in_a_partition_is_named(aging: AgingTable) -> None:
    aging.put("p1")
    aging.put("p2")
    aging.day(11)
    pending: dict[str, str] = {}

    def look() -> None:
        (writer,) = load_snapshot(aging.table.storage).timeline.pending()
        pending.update(writer=f"{writer.action} {writer.requested_at}")
        pending.update({p: aging.decision(p).blocked_by for p in ("p1", "p2")})

    aging.table.upsert([row("k", 5, day="p1")], before_commit=look)
    assert pending == {"writer": pending["writer"], "p1": pending["writer"], "p2": ""}


@pytest.mark.parametrize("archived", [False, True], ids=["still active", "archived too"])
def test_not_even_a_compaction_hides_such_a_write(archived: bool, aging: AgingTable) -> None:
    aging.put("p")
    aging.line("p", "20260101000000000")
    aging.day(9)
    commit = aging.put("p", 2)
    aging.archive()
    aging.day(10)
    assert isinstance(aging.serve("compaction"), Commit)
    aging.put("other", 200)
    aging.serve("clean")
    if archived:
        aging.archive(compacting=True)
    names = [file.name for file in aging.table.storage.list_files("p")]
    assert not any(".log." in name or commit.instant in name for name in names)
    aging.day(12)
    decision = aging.decision()
    assert (decision.reference, decision.source) == (commit.completed_at, ReferenceSource.HISTORY)
    assert not decision.expired


def test_a_compaction_that_is_archived_renews_nothing(aging: AgingTable) -> None:
    aging.put("p")
    commit = aging.put("p", 2)
    aging.line("p", commit.completed_at)
    aging.day(9)
    assert isinstance(aging.serve("compaction"), Commit)
    aging.archive(compacting=True)
    aging.day(12)
    decision = aging.decision()
    assert (decision.reference, decision.expired) == (commit.completed_at, True)


def test_files_are_believed_where_history_is_lost(aging: AgingTable) -> None:
    aging.put("p")
    aging.day(9)
    commit = aging.put("p", 2)
    aging.archive()
    aging.table.storage.delete_folder(".hoodie/timeline/history")
    decision = aging.decision()
    assert (decision.reference, decision.source) == (commit.instant, ReferenceSource.FILES)
    aging.day(12)
    assert not aging.decision().expired


def test_birth_is_looked_up_in_history_too(aging: AgingTable) -> None:
    aging.put("p")
    aging.table.delete_partitions("p")
    aging.day(9)
    born = aging.put("p", 2)
    decision = aging.decision(options=BY_CREATION)
    assert decision.reference == born.completed_at or decision.source is not ReferenceSource.CREATED
    aging.line("p", "20260101000000000")
    aging.day(12)
    only = {**BY_CREATION, "hoodie.ttl.enabled": "false"}
    assert not aging.decision(options=only).expired
    aging.archive()
    decision = aging.decision(options=only)
    assert (decision.reference, decision.source, decision.expired) == (
        born.completed_at,
        ReferenceSource.CREATED,
        False,
    )
    aging.day(20)
    assert aging.decision(options=only).expired


def counted(aging: AgingTable) -> tuple[CountingStorage, TtlPlan | Skip]:
    counting = CountingStorage(aging.table.storage)
    return counting, replace(aging.table, storage=counting).services().preview("ttl")


def history_reads(counting: CountingStorage) -> list[str]:
    return [path for _, path in counting.touched if "history" in path]


def test_with_a_line_history_is_not_read(aging: AgingTable) -> None:
    aging.put("p")
    aging.archive()
    counting, plan = counted(aging)
    assert isinstance(plan, Skip)
    assert history_reads(counting)
    assert update_partitions(load_snapshot(aging.table.storage)) == 2
    aging.day(11)
    counting, plan = counted(aging)
    assert isinstance(plan, TtlPlan)
    assert plan.partitions == ("p",)
    assert not history_reads(counting)


def test_lines_are_filled_in_with_the_last_write(aging: AgingTable) -> None:
    first = aging.put("p")
    aging.archive()
    second = aging.put("p2")
    assert aging.last_update_time_of("p") is None
    progress: list[tuple[int, int]] = []
    snapshot = load_snapshot(aging.table.storage)
    assert (
        update_partitions(snapshot, lambda completed, total: progress.append((completed, total)))
        == 3
    )
    assert (aging.last_update_time_of("p"), aging.last_update_time_of("p2")) == (
        first.completed_at,
        second.completed_at,
    )
    assert progress == [(3, 3)]
    assert update_partitions(load_snapshot(aging.table.storage)) == 0


def test_what_else_a_metadata_file_says_stays(aging: AgingTable) -> None:
    aging.put("p")
    path = f"p/{PARTITION_METADATA}"
    aging.table.storage.replace(
        path, b"#a comment\ncommitTime=20260101000000000\npartitionDepth=1\nx=y\n"
    )
    assert touch_last_update_time(aging.table.storage, "p", "20260102000000000")
    assert not touch_last_update_time(aging.table.storage, "p", "20260101000000000")
    assert parse_partition_metadata(aging.table.storage.read(path)) == PartitionMetadata(
        commit_time="20260101000000000",
        depth=1,
        last_update_time="20260102000000000",
        extra={"x": "y"},
    )


def test_no_line_is_written_where_there_is_no_partition(aging: AgingTable) -> None:
    assert not touch_last_update_time(aging.table.storage, "nowhere", "20260102000000000")
    assert not aging.table.storage.exists(f"nowhere/{PARTITION_METADATA}")


def test_filling_in_may_be_interrupted_at_any_moment(aging: AgingTable) -> None:
    for partition in ("p1", "p2", "p3"):
        aging.put(partition)
    for survive in range(4):
        storage = MemoryStorage.fresh(aging.table.storage.files())  # type: ignore[attr-defined]
        dying = CrashingStorage(storage, survive)
        if survive < 3:
            with pytest.raises(Crash):
                update_partitions(load_snapshot(dying))
        for partition in ("p1", "p2", "p3"):
            parse_partition_metadata(storage.read(f"{partition}/{PARTITION_METADATA}"))
        update_partitions(load_snapshot(storage))
        assert update_partitions(load_snapshot(storage)) == 0


def many(count: int) -> MemoryStorage:
    """A table of many partitions of one base file each, half of them old, without rows."""
    storage = MemoryStorage.fresh()
    builder = TableBuilder(storage, WrittenTable().schema, properties=TEN_DAYS).create()
    for number, at in enumerate(("20260101000000000", "20260201000000000")):
        stats = {}
        for n in range(number, count, 2):
            partition, file = f"p={n:05d}", BaseFile(f"f{n}", "0-0-0", at)
            storage.replace(f"{partition}/{file.name}", b"")
            metadata = PartitionMetadata(commit_time=at, depth=1)
            storage.replace(
                f"{partition}/{PARTITION_METADATA}", format_partition_metadata(metadata)
            )
            stats[partition] = (WriteStat(file_id=file.file_id, path=f"{partition}/{file.name}"),)
        commit = CommitMetadata(
            stats=stats, operation="UPSERT", extra={"schema": builder.avro_schema}
        )
        completed = Instant(at, Action.COMMIT, completed_at=at)
        storage.replace(f".hoodie/timeline/{completed.file_name}", format_commit(commit))
    return storage


def test_ten_thousand_partitions_are_judged_in_a_few_calls() -> None:
    storage = many(10_000)
    counting = CountingStorage(storage)
    context = PlanningContext(load_snapshot(counting), "", 1_770_500_000_000)  # 2026-02-07
    plan = PartitionTtl().plan(context)
    assert isinstance(plan, TtlPlan)
    assert (len(plan.partitions), len(plan.missing_partitions)) == (1000, 4000)
    assert counting.calls["read_many"] == 2
    assert counting.calls["list_tree"] == 0, "the timeline has all"
    assert len(counting.touched) < 5_000 + 100, "the lines of those that would go"
