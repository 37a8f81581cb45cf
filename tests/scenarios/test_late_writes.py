"""A write whose completed file lands after a plan was made, with an earlier time, is not lost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import pytest

from lakewright.errors import ConflictError
from lakewright.format.timeline_metadata import format_compaction_plan, parse_compaction_plan
from lakewright.model.instant import Instant
from lakewright.storage.base import Storage
from lakewright.storage.memory import MemoryStorage
from lakewright.testing.clock import ManualClock
from lakewright.testing.storage import Crash
from support.concurrency import InterruptedEngine, InterruptedStorage, another_process
from support.tables import NO_SERVICES, WrittenTable, row

QUIET = NO_SERVICES
EAGER = {
    "hoodie.compact.inline.max.delta.commits": "1",
    "hoodie.log.compaction.blocks.threshold": "2",
}
FILE_LOCK = {
    "hoodie.write.concurrency.mode": "OPTIMISTIC_CONCURRENCY_CONTROL",
    "hoodie.write.lock.provider": "file",
    "hoodie.write.lock.filesystem.expire": "1",
}
WRITERS: dict[str, Mapping[str, str]] = {
    "writers that each take themselves for the only one": {},
    "a lock that was taken over": FILE_LOCK,
}
COMPLETED_DELTA = r"/\d+_\d+\.deltacommit$"
each_writer = pytest.mark.parametrize("options", WRITERS.values(), ids=list(WRITERS))


@dataclass
class LateWrite:
    """A file group, a write of `b` whose commit lands late, and a compaction planned before."""

    options: Mapping[str, str]

    def __post_init__(self) -> None:
        self.clock = ManualClock()
        self.storage = MemoryStorage.fresh(now_ms=self.clock.now_ms)
        self.table = self.on(self.storage).create("MERGE_ON_READ")
        self.table.upsert([row("a"), row("b")])
        self.table.upsert([row("a", 2, "second")])
        self.planned = ""
        self.late: tuple[str, bytes] = ("", b"")

    def on(self, storage: Storage) -> WrittenTable:
        return WrittenTable(storage, self.clock, {**QUIET, **self.options})

    def write_late(self, *, dies: bool) -> None:
        """A plan is scheduled while the completed file is being created; the writer may crash."""

        def stall(storage: Storage, path: str, data: bytes) -> None:
            self.clock.advance(120_000)
            with another_process():
                instant = self.table.services(EAGER).schedule("compaction")
            assert isinstance(instant, Instant)
            self.planned = instant.requested_at
            self.late = path, data
            if dies:
                raise Crash("gone")
            self.land()

        self.on(InterruptedStorage(self.storage, COMPLETED_DELTA, stall)).upsert(
            [row("b", 5, "fifth")]
        )

    def land(self) -> None:
        self.storage.create(*self.late)

    def notes(self) -> dict[str, str]:
        return {record["id"]: record["note"] for record in self.table.rows()}


@each_writer
def test_a_live_writer_finds_the_plan_and_removes_its_commit(options: Mapping[str, str]) -> None:
    scenario = LateWrite(options)
    with pytest.raises(ConflictError, match="a compaction is pending"):
        scenario.write_late(dies=False)
    assert scenario.table.services().execute(scenario.planned)
    assert scenario.notes() == {"a": "second", "b": "first"}


@each_writer
def test_a_compaction_does_not_begin_over_a_log_file_that_it_does_not_know(
    options: Mapping[str, str],
) -> None:
    scenario = LateWrite(options)
    with pytest.raises(Crash), another_process():
        scenario.write_late(dies=True)
    scenario.land()
    with pytest.raises(ConflictError, match="roll the compaction back and plan it again"):
        scenario.table.services().execute(scenario.planned)
    scenario.table.writer().rollback(scenario.planned)
    assert scenario.table.services(EAGER).run("compaction")
    assert scenario.notes() == {"a": "second", "b": "fifth"}


def test_nor_does_it_complete_over_one_that_lands_while_it_works() -> None:
    # With this heartbeat interval the writer does not expire.
    scenario = LateWrite({**FILE_LOCK, "hoodie.client.heartbeat.interval_in_ms": "600000"})
    refused: list[str] = []

    def stall(storage: Storage, path: str, data: bytes) -> None:
        scenario.clock.advance(120_000)
        with another_process():
            instant = scenario.table.services(EAGER).schedule("compaction")
            assert isinstance(instant, Instant)
            land = InterruptedEngine(lambda: storage.create(path, data))
            runner = replace(scenario.table.services(), engine=lambda: land)
            with pytest.raises(ConflictError, match="a deltacommit completed"):
                runner.execute(instant.requested_at)
            with pytest.raises(ConflictError, match="roll the compaction back and plan it again"):
                scenario.table.services().execute(instant.requested_at)
            refused.append(instant.requested_at)
            assert scenario.notes() == {"a": "second", "b": "fifth"}

    late = scenario.on(InterruptedStorage(scenario.storage, COMPLETED_DELTA, stall))
    with pytest.raises(ConflictError, match="a compaction is pending"):
        late.upsert([row("b", 5, "fifth")])
    assert scenario.table.services().execute(*refused)
    assert scenario.notes() == {"a": "second", "b": "first"}


def test_a_log_compaction_does_not_begin_over_one_either() -> None:
    scenario = LateWrite({})
    forgotten = scenario.table.upsert([row("a", 3, "third")]).instant
    scenario.table.upsert([row("a", 4, "fourth")])
    instant = scenario.table.services(EAGER).schedule("logcompaction")
    assert isinstance(instant, Instant)
    forget(scenario.storage, f".hoodie/timeline/{instant.file_name}", forgotten)
    with pytest.raises(ConflictError, match="roll the logcompaction back and plan it again"):
        scenario.table.services().execute(instant.requested_at)
    assert scenario.notes() == {"a": "fourth", "b": "first"}


def forget(storage: MemoryStorage, path: str, instant: str) -> None:
    """Make a plan one that was made without the log file of a write."""
    plan = parse_compaction_plan(storage.read(path))
    (operation,) = plan.operations
    logs = tuple(log for log in operation.logs if instant not in log)
    assert len(logs) == len(operation.logs) - 1
    changed = replace(plan, operations=(replace(operation, logs=logs),))
    storage.replace(path, format_compaction_plan(changed))


@each_writer
def test_a_write_that_the_plan_names_is_no_conflict(options: Mapping[str, str]) -> None:
    """Its answer is late, not its file: others have planned with it."""
    scenario = LateWrite(options)

    def slow(storage: Storage, path: str, data: bytes) -> None:
        storage.create(path, data)
        scenario.clock.advance(120_000)
        with another_process():
            instant = scenario.table.services(EAGER).schedule("compaction")
            assert isinstance(instant, Instant)
            assert scenario.table.services().execute(instant.requested_at)

    commit = scenario.on(InterruptedStorage(scenario.storage, COMPLETED_DELTA, slow)).upsert(
        [row("b", 5, "fifth")]
    )
    assert commit.updated == 1
    assert scenario.notes() == {"a": "second", "b": "fifth"}
