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
class Scene:
    """A table with TTL on, by the day: what is done to it, and what happens to a partition."""

    table: WrittenTable
    clock: ManualClock

    def day(self, number: float) -> None:
        begin = ManualClock().now_ms()
        self.clock.advance(begin + round(number * DAY_MS) - self.clock.now_ms())

    def put(self, partition: str, ts: int = 1) -> Commit:
        """Write a row as writers do that know nothing of TTL: they renew no line."""
        path = f"{partition}/{PARTITION_METADATA}"
        before = self.told(partition) if self.table.storage.exists(path) else None
        done = self.table.upsert([row(f"k-{partition}", ts, day=partition)])
        self.line(partition, before)
        return done

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
        known = parse_partition_metadata(self.table.storage.read(path))
        changed = replace(known, last_update_time=time)
        self.table.storage.replace(path, format_partition_metadata(changed))

    def told(self, partition: str) -> str | None:
        data = self.table.storage.read(f"{partition}/{PARTITION_METADATA}")
        return parse_partition_metadata(data).last_update_time

    def verdict(self, partition: str = "p", options: dict[str, str] | None = None) -> TtlDecision:
        runner = self.table.services(options)
        verdicts = explain(runner.planning_context(load_snapshot(self.table.storage)))
        return next(each for each in verdicts if each.partition == partition)


@pytest.fixture
def scene() -> Scene:
    clock = ManualClock()
    table = WrittenTable(options=NO_SERVICES, clock=clock)
    return Scene(table.create("MERGE_ON_READ", options=TEN_DAYS), clock)


def test_without_a_line_the_timeline_has_the_update_time(scene: Scene) -> None:
    done = scene.put("p")
    found = scene.verdict()
    assert (found.reference, found.source) == (done.completed_at, ReferenceSource.TIMELINE)


def test_a_newer_line_is_believed(scene: Scene) -> None:
    scene.put("p")
    scene.line("p", "20260105000000000")
    scene.day(12)
    found = scene.verdict()
    assert (found.reference, found.source) == ("20260105000000000", ReferenceSource.LINE)
    assert not found.expired


def test_no_line_is_read_where_the_timeline_is_reason_enough_to_live(scene: Scene) -> None:
    done = scene.put("p")
    scene.line("p", "20260105000000000")
    found = scene.verdict()
    assert (found.reference, found.source) == (done.completed_at, ReferenceSource.TIMELINE)
    assert not found.expired


def test_an_older_line_is_not(scene: Scene) -> None:
    scene.day(5)
    done = scene.put("p")
    scene.line("p", "20260101000000000")
    for day in (6, 20):
        scene.day(day)
        found = scene.verdict()
        assert (found.reference, found.source) == (done.completed_at, ReferenceSource.TIMELINE)


@pytest.mark.parametrize("line", ["", "yesterday", "2026"])
def test_a_line_that_is_no_time_is_ignored(line: str, scene: Scene) -> None:
    scene.put("p")
    scene.line("p", line)
    scene.day(20)
    assert scene.verdict().source is ReferenceSource.TIMELINE


def test_a_broken_metadata_file_is_ignored(scene: Scene) -> None:
    scene.put("p")
    scene.put("p2")
    scene.table.storage.replace(f"p/{PARTITION_METADATA}", b"commitTime")
    assert scene.verdict().source is ReferenceSource.TIMELINE
    assert scene.verdict("p2").source is ReferenceSource.TIMELINE


def test_the_archived_timeline_has_the_update_time_where_the_line_is_missing(scene: Scene) -> None:
    done = scene.put("p")
    scene.archive()
    found = scene.verdict()
    assert (found.reference, found.source) == (done.completed_at, ReferenceSource.HISTORY)
    scene.day(11)
    assert scene.verdict().expired


def test_a_write_that_did_not_renew_the_line_keeps_the_partition_from_history(scene: Scene) -> None:
    scene.put("p")
    scene.line("p", "20260101000000000")
    scene.day(9)
    done = scene.put("p", 2)
    scene.archive()
    scene.day(12)
    found = scene.verdict()
    assert (found.reference, found.source) == (done.completed_at, ReferenceSource.HISTORY)
    assert not found.expired
    scene.day(20)
    assert scene.verdict().expired


def test_a_savepoint_does_not_hide_what_was_written_after_it(scene: Scene) -> None:
    saved = scene.put("p")
    scene.table.writer().savepoint(saved.instant, user="u", comment="c")
    scene.day(9)
    done = scene.put("p", 2)
    scene.archive()
    assert saved.instant in load_snapshot(scene.table.storage).timeline.by_time
    scene.day(12)
    found = scene.verdict()
    assert (found.reference, found.source) == (done.completed_at, ReferenceSource.HISTORY)
    assert not found.expired


def test_pending_work_in_a_partition_is_named(scene: Scene) -> None:
    scene.put("p1")
    scene.put("p2")
    scene.day(11)
    seen: dict[str, str] = {}

    def look() -> None:
        (writer,) = load_snapshot(scene.table.storage).timeline.pending()
        seen.update(writer=f"{writer.action} {writer.requested_at}")
        seen.update({p: scene.verdict(p).blocked_by for p in ("p1", "p2")})

    scene.table.upsert([row("k", 5, day="p1")], before_commit=look)
    assert seen == {"writer": seen["writer"], "p1": seen["writer"], "p2": ""}


@pytest.mark.parametrize("archived", [False, True], ids=["still active", "archived too"])
def test_not_even_a_compaction_hides_such_a_write(archived: bool, scene: Scene) -> None:
    scene.put("p")
    scene.line("p", "20260101000000000")
    scene.day(9)
    done = scene.put("p", 2)
    scene.archive()
    scene.day(10)
    assert isinstance(scene.serve("compaction"), Commit)
    scene.put("other", 200)
    scene.serve("clean")
    if archived:
        scene.archive(compacting=True)
    names = [file.name for file in scene.table.storage.list_files("p")]
    assert not any(".log." in name or done.instant in name for name in names)
    scene.day(12)
    found = scene.verdict()
    assert (found.reference, found.source) == (done.completed_at, ReferenceSource.HISTORY)
    assert not found.expired


def test_a_compaction_that_is_archived_renews_nothing(scene: Scene) -> None:
    scene.put("p")
    done = scene.put("p", 2)
    scene.line("p", done.completed_at)
    scene.day(9)
    assert isinstance(scene.serve("compaction"), Commit)
    scene.archive(compacting=True)
    scene.day(12)
    found = scene.verdict()
    assert (found.reference, found.expired) == (done.completed_at, True)


def test_files_are_believed_where_history_is_lost(scene: Scene) -> None:
    scene.put("p")
    scene.day(9)
    done = scene.put("p", 2)
    scene.archive()
    scene.table.storage.delete_folder(".hoodie/timeline/history")
    found = scene.verdict()
    assert (found.reference, found.source) == (done.instant, ReferenceSource.FILES)
    scene.day(12)
    assert not scene.verdict().expired


def test_birth_is_looked_up_in_history_too(scene: Scene) -> None:
    scene.put("p")
    scene.table.delete_partitions("p")
    scene.day(9)
    born = scene.put("p", 2)
    found = scene.verdict(options=BY_CREATION)
    assert found.reference == born.completed_at or found.source is not ReferenceSource.CREATED
    scene.line("p", "20260101000000000")
    scene.day(12)
    only = {**BY_CREATION, "hoodie.ttl.enabled": "false"}
    assert not scene.verdict(options=only).expired
    scene.archive()
    found = scene.verdict(options=only)
    assert (found.reference, found.source, found.expired) == (
        born.completed_at,
        ReferenceSource.CREATED,
        False,
    )
    scene.day(20)
    assert scene.verdict(options=only).expired


def counted(scene: Scene) -> tuple[CountingStorage, TtlPlan | Skip]:
    counting = CountingStorage(scene.table.storage)
    return counting, replace(scene.table, storage=counting).services().preview("ttl")


def history_reads(counting: CountingStorage) -> list[str]:
    return [path for _, path in counting.touched if "history" in path]


def test_with_a_line_history_is_not_read(scene: Scene) -> None:
    scene.put("p")
    scene.archive()
    counting, found = counted(scene)
    assert isinstance(found, Skip)
    assert history_reads(counting)
    assert update_partitions(load_snapshot(scene.table.storage)) == 2
    scene.day(11)
    counting, found = counted(scene)
    assert isinstance(found, TtlPlan)
    assert found.partitions == ("p",)
    assert not history_reads(counting)


def test_lines_are_filled_in_with_the_last_write(scene: Scene) -> None:
    first = scene.put("p")
    scene.archive()
    second = scene.put("p2")
    assert scene.told("p") is None
    seen: list[tuple[int, int]] = []
    snapshot = load_snapshot(scene.table.storage)
    assert update_partitions(snapshot, lambda done, total: seen.append((done, total))) == 3
    assert (scene.told("p"), scene.told("p2")) == (first.completed_at, second.completed_at)
    assert seen == [(3, 3)]
    assert update_partitions(load_snapshot(scene.table.storage)) == 0


def test_what_else_a_metadata_file_says_stays(scene: Scene) -> None:
    scene.put("p")
    path = f"p/{PARTITION_METADATA}"
    scene.table.storage.replace(
        path, b"#a comment\ncommitTime=20260101000000000\npartitionDepth=1\nx=y\n"
    )
    assert touch_last_update_time(scene.table.storage, "p", "20260102000000000")
    assert not touch_last_update_time(scene.table.storage, "p", "20260101000000000")
    assert parse_partition_metadata(scene.table.storage.read(path)) == PartitionMetadata(
        commit_time="20260101000000000",
        depth=1,
        last_update_time="20260102000000000",
        extra={"x": "y"},
    )


def test_no_line_is_written_where_there_is_no_partition(scene: Scene) -> None:
    assert not touch_last_update_time(scene.table.storage, "nowhere", "20260102000000000")
    assert not scene.table.storage.exists(f"nowhere/{PARTITION_METADATA}")


def test_filling_in_may_be_interrupted_at_any_moment(scene: Scene) -> None:
    for partition in ("p1", "p2", "p3"):
        scene.put(partition)
    for survive in range(4):
        storage = MemoryStorage.fresh(scene.table.storage.files())  # type: ignore[attr-defined]
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
        done = Instant(at, Action.COMMIT, completed_at=at)
        storage.replace(f".hoodie/timeline/{done.file_name}", format_commit(commit))
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
