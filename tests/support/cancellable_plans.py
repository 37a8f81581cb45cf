"""Tables with cancellable plans of every service, and processes that act on them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeVar

import pytest

from lakewright.engine.local import LocalEngine
from lakewright.model.file_group import parse_data_file
from lakewright.model.instant import Instant
from lakewright.model.plans import CANCELLABLE, Skip
from lakewright.services.runner import ServiceRunner
from lakewright.storage.memory import MemoryStorage
from lakewright.table.rollback import RollbackInfo, load_rollbacks
from lakewright.table.snapshot import load_snapshot
from lakewright.testing.clock import ManualClock
from lakewright.testing.storage import Crash
from lakewright.write.writer import Commit
from support.concurrency import InterruptedEngine
from support.faults import MortalStorage
from support.tables import NO_SERVICES, WrittenTable, row

Result = TypeVar("Result")

MULTI_WRITER = {
    "hoodie.write.concurrency.mode": "OPTIMISTIC_CONCURRENCY_CONTROL",
    "hoodie.write.lock.provider": "in_process",
}
ALWAYS_DUE = {
    "hoodie.compact.inline.max.delta.commits": "1",
    "hoodie.log.compaction.blocks.threshold": "2",
}
CANCELLABLE_PLAN = {CANCELLABLE: "true"}
HEARTBEAT_EXPIRES_MS = 120_000
DAYS = ("2026-01-01", "2026-01-02")


def with_logs(table: WrittenTable) -> None:
    """Two file groups with two log files each."""
    table.create("MERGE_ON_READ")
    table.upsert([row("a"), row("b", day=DAYS[1])])
    for ts in (2, 3):
        table.upsert([row("a", ts, f"at {ts}"), row("b", ts, f"at {ts}", DAYS[1])])


def with_small_files(table: WrittenTable) -> None:
    """Two partitions with two small file groups each."""
    table.create("COPY_ON_WRITE")
    for keys in ("ab", "cd"):
        table.write("BULK_INSERT", [row(keys[0]), row(keys[1], day=DAYS[1])])


SERVICE_TABLES: dict[str, Callable[[WrittenTable], None]] = {
    "compaction": with_logs,
    "logcompaction": with_logs,
    "clustering": with_small_files,
}
each_service = pytest.mark.parametrize("service", SERVICE_TABLES)


@dataclass
class PlanFixture:
    """A table with several writers, and a service whose trigger is met."""

    service: str
    options: Mapping[str, str] = field(default_factory=lambda: MULTI_WRITER)

    def __post_init__(self) -> None:
        self.clock = ManualClock()
        self.storage = MemoryStorage.fresh(now_ms=self.clock.now_ms)
        self.table = WrittenTable(self.storage, self.clock, {**NO_SERVICES, **self.options})
        SERVICE_TABLES[self.service](self.table)
        self.rows_before = self.table.rows()

    def copy(self) -> PlanFixture:
        """A copy of the table for other processes; its files are new."""
        other = object.__new__(PlanFixture)
        other.service, other.options, other.rows_before = (
            self.service,
            self.options,
            self.rows_before,
        )
        # Another process never draws the ids of the processes before it.
        other.clock = ManualClock(self.clock.now_ms(), first_id=1000)
        other.storage = MemoryStorage.fresh(self.storage.files(), now_ms=other.clock.now_ms)
        other.table = WrittenTable(other.storage, other.clock, self.table.options)
        return other

    def runner(
        self, options: Mapping[str, str] | None = None, engine: LocalEngine | None = None
    ) -> ServiceRunner:
        runner = self.table.services({**ALWAYS_DUE, **(options or {})})
        return runner if engine is None else replace(runner, engine=lambda: engine)

    def schedule(self, options: Mapping[str, str] = CANCELLABLE_PLAN) -> str:
        """Schedule a plan of the service; cancellable by default."""
        instant = self.runner(options).schedule(self.service)
        assert isinstance(instant, Instant), instant
        return instant.requested_at

    def execute(self, at: str, engine: LocalEngine | None = None) -> Commit:
        return self.runner(engine=engine).execute(at)

    def crash_executing(self, at: str) -> None:
        """Crash an execution that has written its files."""
        mortal = MortalStorage(self.storage)

        def die() -> None:
            mortal.dead = True
            raise Crash

        runner = replace(self.runner(engine=InterruptedEngine(die)), storage=mortal)
        with pytest.raises(Crash):
            runner.execute(at)
        assert self.state(at) == "INFLIGHT"
        assert self.files_of(at)

    def clean(self, options: Mapping[str, str] | None = None) -> Commit | Skip:
        return self.runner(options).run("clean")

    def expire_heartbeats(self) -> None:
        """Advance the clock until every heartbeat has expired."""
        self.clock.advance(HEARTBEAT_EXPIRES_MS + 1)

    def state(self, at: str) -> str:
        """The state of an instant on the timeline, or GONE."""
        instants = [i for i in load_snapshot(self.storage).timeline if i.requested_at == at]
        return instants[0].state.value if instants else "GONE"

    def rollbacks(self) -> list[RollbackInfo]:
        return list(load_rollbacks(load_snapshot(self.storage)))

    def files_of(self, at: str) -> list[str]:
        """All data files that carry an instant."""
        paths = [f for f in self.storage.list_tree("") if not f.path.startswith(".hoodie")]
        named = [(f.path, parse_data_file(f.name)) for f in paths]
        return [path for path, file in named if file is not None and file.instant == at]

    def files_naming(self, at: str) -> list[str]:
        """All files whose path contains an instant, but markers: a task may still be running."""
        files = [f.path for f in self.storage.list_tree("") if at in f.path]
        return [path for path in files if not path.startswith(".hoodie/.temp/")]

    def assert_rolled_back(self, at: str) -> None:
        """A plan was rolled back with its files, for a recorded reason."""
        assert self.state(at) == "GONE"
        assert self.files_naming(at) == []
        assert not load_snapshot(self.storage).timeline.pending()
        (rollback,) = [info for info in self.rollbacks() if info.target.requested_at == at]
        assert rollback.caused_by
        assert rollback.reason
        assert rollback.target.action == self.service

    def assert_still_pending(self, at: str, state: str = "REQUESTED") -> None:
        """A plan is still in its state, and nothing was rolled back."""
        assert self.state(at) == state
        assert self.rollbacks() == []
