"""Cleaning and archiving of a table in a plain loop, step by step as on the timeline."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from undone import Bench

from lakewright.engine.local import LocalEngine
from lakewright.format.timeline_metadata import format_clean, format_clean_plan, parse_clean_plan
from lakewright.model.commit_metadata import CleanMetadata
from lakewright.model.instant import Action, Instant, State
from lakewright.model.plans import CleanPlan, Skip
from lakewright.services.archiving.service import Archiving
from lakewright.services.base import ExecutionContext, PlanningContext
from lakewright.services.cleaning.service import Cleaning
from lakewright.storage.base import Storage
from lakewright.table.conflicts import max_timeline_time
from lakewright.table.snapshot import load_snapshot
from lakewright.table.transaction import TransactionManager
from lakewright.testing.clock import ManualClock
from lakewright.write.writer import Commit


@dataclass
class Upkeep:
    """Services on one table, with one set of options; `tick` gives new times for its timeline."""

    storage: Storage
    options: Mapping[str, str] = field(default_factory=dict)
    clock: ManualClock = field(default_factory=ManualClock)
    tick: Callable[[], str] | None = None

    def with_options(self, options: Mapping[str, str]) -> Upkeep:
        return replace(self, options={**self.options, **options})

    def sight(self) -> PlanningContext:
        snapshot = load_snapshot(self.storage)
        return PlanningContext(snapshot, self._next(), self.clock.now_ms(), self.options)

    def _next(self) -> str:
        latest = max_timeline_time(load_snapshot(self.storage).timeline) or "20260101000000000"
        return self.tick() if self.tick is not None else str(int(latest) + 1)

    def plan_clean(self) -> CleanPlan | Skip:
        return Cleaning().plan(self.sight())

    def schedule_clean(self) -> Instant | Skip:
        sight = self.sight()
        plan = Cleaning().plan(sight)
        if isinstance(plan, Skip):
            return plan
        requested = Instant(sight.instant, Action.CLEAN, State.REQUESTED)
        self.storage.create(self._path(requested), format_clean_plan(plan))
        return requested

    def execute_clean(self, requested_at: str) -> CleanMetadata:
        requested = Instant(requested_at, Action.CLEAN, State.REQUESTED)
        inflight = replace(requested, state=State.INFLIGHT)
        if not self.storage.exists(self._path(inflight)):
            self.storage.create(self._path(inflight), b"")
        plan = parse_clean_plan(self.storage.read(self._path(requested)))
        done = Cleaning().execute(self._job(requested_at), plan)
        completed = Instant(requested_at, Action.CLEAN, completed_at=self._next())
        self.storage.create(self._path(completed), format_clean(done))
        return done

    def clean(self) -> CleanMetadata | Skip:
        """Execute what is pending; else schedule a clean, and execute it."""
        for waiting in load_snapshot(self.storage).timeline.pending(Action.CLEAN):
            return self.execute_clean(waiting.requested_at)
        scheduled = self.schedule_clean()
        if isinstance(scheduled, Skip):
            return scheduled
        return self.execute_clean(scheduled.requested_at)

    def archive(self) -> Commit | Skip:
        service = Archiving()
        with self._writer().locked():
            plan = service.plan(self.sight())
            return plan if isinstance(plan, Skip) else service.execute(self._job(""), plan)

    def _writer(self) -> TransactionManager:
        return TransactionManager.from_options(self.storage, self.clock, self.options)

    def _job(self, instant: str) -> ExecutionContext:
        return ExecutionContext(
            load_snapshot(self.storage), instant, self.options, LocalEngine(), self._writer()
        )

    def _path(self, instant: Instant) -> str:
        return f".hoodie/timeline/{instant.file_name}"


def upkeep_of(
    bench: Bench, options: Mapping[str, str] | None = None, storage: Storage | None = None
) -> Upkeep:
    """Services on a table by hand, which goes on being written between them."""
    return Upkeep(storage or bench.storage, options or {}, tick=bench.tick)
