"""Compaction, clustering, cleaning and archiving, one step at a time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date
from itertools import count
from pathlib import Path

from lakewright.engine.local import LocalEngine
from lakewright.format.timeline_metadata import (
    format_clean,
    format_clean_plan,
    format_requested_replace,
    parse_clean_plan,
    parse_compaction_plan,
)
from lakewright.model.commit_metadata import CleanMetadata, CommitMetadata
from lakewright.model.file_group import BaseFile, FileSlice, LogFile
from lakewright.model.instant import Action, Instant, State
from lakewright.model.plans import CleanPlan, ClusteringPlan, CompactionPlan, RequestedReplace, Skip
from lakewright.model.timeline import Timeline
from lakewright.options import settings_from
from lakewright.services.archiving.service import Archiving
from lakewright.services.base import ExecutionContext, PlanningContext
from lakewright.services.cleaning.service import Cleaning
from lakewright.services.clustering.options import ClusteringSettings, clustering_settings
from lakewright.services.clustering.service import Clustering
from lakewright.services.compaction.options import CompactionSettings
from lakewright.services.compaction.planner import StrategyChain, strategy_for
from lakewright.services.compaction.strategies import MB, StrategyContext
from lakewright.storage.base import Storage
from lakewright.storage.memory import MemoryStorage
from lakewright.table.conflicts import max_timeline_time
from lakewright.table.plan_scheduling import PlanRequest, begin_execution, schedule_plan
from lakewright.table.snapshot import Snapshot, load_snapshot
from lakewright.table.transaction import TransactionManager
from lakewright.testing.clock import ManualClock
from lakewright.testing.timeline_drawing import at
from lakewright.write.writer import Commit
from support.golden import upload
from support.tables import BuiltTable, Row, WrittenTable

TODAY = date(2026, 3, 10)
_ids = count()


def compaction_slice(
    partition: str,
    base: int | None,
    logs: Sequence[int] = (),
    *,
    file_id: str | None = None,
    first_tick: int = 10,
) -> FileSlice:
    """A slice with a base file and log files of these sizes, one log file for each tick."""
    name = file_id or f"f{next(_ids)}"
    made = [
        LogFile(name, at(first_tick + number), size=size * MB) for number, size in enumerate(logs)
    ]
    base_file = None if base is None else BaseFile(name, "0-0-0", at(0), size=base * MB)
    return FileSlice(
        partition, name, at(0) if base_file else at(first_tick), base_file, tuple(made)
    )


def compaction_settings(**options: object) -> CompactionSettings:
    """Settings by the end of their keys, with underscores: `target_io=400`."""
    ends = {
        "strategy": "hoodie.compaction.strategy",
        "target_io": "hoodie.compaction.target.io",
        "size_threshold": "hoodie.compaction.logfile.size.threshold",
        "num_threshold": "hoodie.compaction.logfile.num.threshold",
        "target_partitions": "hoodie.compaction.daybased.target.partitions",
        "regex": "hoodie.compaction.partition.path.regex",
        "order": "lakewright.compaction.order",
        "trigger": "hoodie.compact.inline.trigger.strategy",
        "max_commits": "hoodie.compact.inline.max.delta.commits",
        "max_seconds": "hoodie.compact.inline.max.delta.seconds",
    }
    return settings_from(CompactionSettings, {ends[k]: str(v) for k, v in options.items()})


def strategy_chain(settings: CompactionSettings) -> StrategyChain:
    """The compaction strategies of settings, on `TODAY`."""
    return strategy_for(settings, StrategyContext(Timeline(), at(99), TODAY))


def hudi_compaction_plan(table: Path, instant: str, action: str) -> tuple[CompactionPlan, Snapshot]:
    """A plan on a table of real Hudi, and the table as it was when that plan was made."""
    storage = upload(table, MemoryStorage.fresh())
    folder = ".hoodie/timeline"
    plan = parse_compaction_plan(storage.read(f"{folder}/{instant}.{action}.requested"))
    later = [file.path for file in storage.list_files(folder) if file.name >= instant]
    storage.delete_many(later)
    return plan, load_snapshot(storage)


_STRATEGY_KEYS = "hoodie.clustering.plan.strategy."


def clustering_options(**options: object) -> dict[str, str]:
    """Options by the end of their keys, with underscores for dots: `sort_columns="a"`."""
    return {_STRATEGY_KEYS + key.replace("_", "."): str(value) for key, value in options.items()}


def clustering_settings_of(**options: object) -> ClusteringSettings:
    return clustering_settings(clustering_options(**options))


def clustering_slice(
    partition: str, file_id: str, base: int | None = 1, logs: int = 0
) -> FileSlice:
    """A slice by the sizes of its files in megabytes; log files have one each."""
    base_file = None if base is None else BaseFile(file_id, "0-0-0", at(0), size=base * MB)
    made = [LogFile(file_id, at(1 + number), size=MB) for number in range(logs)]
    return FileSlice(partition, file_id, at(0), base_file, tuple(made))


@dataclass
class ClusteredTable:
    """A table that is clustered with some options."""

    table: WrittenTable
    options: Mapping[str, str] = field(default_factory=dict)
    service: Clustering = field(default_factory=Clustering)

    @property
    def writer(self) -> TransactionManager:
        return TransactionManager.from_options(self.table.storage, self.table.clock, self.options)

    def planning_context(
        self, snapshot: Snapshot | None = None, instant: str = at(0)
    ) -> PlanningContext:
        now = self.table.clock.now_ms()
        return PlanningContext(
            snapshot or load_snapshot(self.table.storage), instant, now, self.options
        )

    def plan(self, instant: str = "9" * 17) -> ClusteringPlan | Skip:
        context = self.planning_context(instant=instant)
        early = self.service.check_trigger(context)
        return self.service.plan(context) if early is None else early

    def planned(self) -> ClusteringPlan:
        plan = self.plan()
        assert isinstance(plan, ClusteringPlan), plan
        return plan

    def schedule(self) -> Instant:
        """Put a plan on the timeline."""

        def decide(snapshot: Snapshot, next_time: object) -> PlanRequest | Skip:
            assert callable(next_time)
            instant = next_time()
            plan = self.service.plan(self.planning_context(snapshot, instant))
            if isinstance(plan, Skip):
                return plan
            requested = RequestedReplace(operation="CLUSTER", plan=plan)
            return PlanRequest(instant, plan, format_requested_replace(requested))

        scheduled = schedule_plan(self.writer, Action.CLUSTERING, decide)
        assert not isinstance(scheduled, Skip), scheduled
        return scheduled[0]

    def execute(self, instant: Instant) -> CommitMetadata:
        """Execute a plan of the timeline, and complete it."""
        snapshot = load_snapshot(self.table.storage)
        plans = {pending.requested_at: plan for pending, plan in snapshot.pending_plans()}
        plan = plans[instant.requested_at]
        assert isinstance(plan, ClusteringPlan)
        with begin_execution(self.writer, instant) as transaction:
            job = ExecutionContext(
                transaction.snapshot,
                instant.requested_at,
                self.options,
                LocalEngine(),
                self.writer,
            )
            metadata = self.service.execute(job, plan)
            transaction.commit(metadata)
            return metadata

    def run(self) -> CommitMetadata:
        return self.execute(self.schedule())


def without_file_names(rows: list[Row]) -> list[Row]:
    """Rows with all meta columns but the one that names their file."""
    return [{k: v for k, v in row.items() if k != "_hoodie_file_name"} for row in rows]


def pending_clusterings(snapshot: Snapshot) -> list[State]:
    return [instant.state for instant in snapshot.timeline.pending(Action.CLUSTERING)]


@dataclass
class CleanAndArchive:
    """Services on one table, with one set of options; `tick` returns new times for its timeline."""

    storage: Storage
    options: Mapping[str, str] = field(default_factory=dict)
    clock: ManualClock = field(default_factory=ManualClock)
    tick: Callable[[], str] | None = None

    def with_options(self, options: Mapping[str, str]) -> CleanAndArchive:
        return replace(self, options={**self.options, **options})

    def planning_context(self) -> PlanningContext:
        snapshot = load_snapshot(self.storage)
        return PlanningContext(snapshot, self._next(), self.clock.now_ms(), self.options)

    def _next(self) -> str:
        latest = max_timeline_time(load_snapshot(self.storage).timeline) or "20260101000000000"
        return self.tick() if self.tick is not None else str(int(latest) + 1)

    def plan_clean(self) -> CleanPlan | Skip:
        return Cleaning().plan(self.planning_context())

    def schedule_clean(self) -> Instant | Skip:
        context = self.planning_context()
        plan = Cleaning().plan(context)
        if isinstance(plan, Skip):
            return plan
        requested = Instant(context.instant, Action.CLEAN, State.REQUESTED)
        self.storage.create(self._path(requested), format_clean_plan(plan))
        return requested

    def execute_clean(self, requested_at: str) -> CleanMetadata:
        requested = Instant(requested_at, Action.CLEAN, State.REQUESTED)
        inflight = replace(requested, state=State.INFLIGHT)
        if not self.storage.exists(self._path(inflight)):
            self.storage.create(self._path(inflight), b"")
        plan = parse_clean_plan(self.storage.read(self._path(requested)))
        metadata = Cleaning().execute(self._job(requested_at), plan)
        completed = Instant(requested_at, Action.CLEAN, completed_at=self._next())
        self.storage.create(self._path(completed), format_clean(metadata))
        return metadata

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
            plan = service.plan(self.planning_context())
            if isinstance(plan, Skip):
                return plan
            context = self._job("")
            commit = service.execute(context, plan)
        service.finish(context)
        return commit

    def _writer(self) -> TransactionManager:
        return TransactionManager.from_options(self.storage, self.clock, self.options)

    def _job(self, instant: str) -> ExecutionContext:
        return ExecutionContext(
            load_snapshot(self.storage), instant, self.options, LocalEngine(), self._writer()
        )

    def _path(self, instant: Instant) -> str:
        return f".hoodie/timeline/{instant.file_name}"


def clean_and_archive(
    built: BuiltTable, options: Mapping[str, str] | None = None, storage: Storage | None = None
) -> CleanAndArchive:
    """Services on a built table that is written between them."""
    return CleanAndArchive(storage or built.storage, options or {}, tick=built.tick)
