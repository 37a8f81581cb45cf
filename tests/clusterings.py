"""Clusterings of tables in memory: planned, put on the timeline and executed in a plain loop."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from written import Row, WrittenTable

from lakewright.engine.local import LocalEngine
from lakewright.format.timeline_metadata import format_requested_replace
from lakewright.model.commit_metadata import CommitMetadata
from lakewright.model.file_group import BaseFile, FileSlice, LogFile
from lakewright.model.instant import Action, Instant, State
from lakewright.model.plans import ClusteringPlan, RequestedReplace, Skip
from lakewright.services.base import ExecutionContext, PlanningContext
from lakewright.services.clustering.options import ClusteringSettings, clustering_settings
from lakewright.services.clustering.service import Clustering
from lakewright.table.plan_scheduling import PlanRequest, begin_execution, schedule_plan
from lakewright.table.snapshot import Snapshot, load_snapshot
from lakewright.table.transaction import TransactionManager
from lakewright.testing.timeline_drawing import at

MB = 1 << 20
_PREFIX = "hoodie.clustering.plan.strategy."


def named(**options: object) -> dict[str, str]:
    """Options by the end of their keys, with underscores for dots: `sort_columns="a"`."""
    return {_PREFIX + key.replace("_", "."): str(value) for key, value in options.items()}


def settings(**options: object) -> ClusteringSettings:
    return clustering_settings(named(**options))


def by_hand(partition: str, file_id: str, base: int | None = 1, logs: int = 0) -> FileSlice:
    """A slice by the sizes of its files in megabytes; log files have one each."""
    base_file = None if base is None else BaseFile(file_id, "0-0-0", at(0), size=base * MB)
    made = [LogFile(file_id, at(1 + number), size=MB) for number in range(logs)]
    return FileSlice(partition, file_id, at(0), base_file, tuple(made))


@dataclass
class Clustered:
    """A table that is clustered with some options."""

    table: WrittenTable
    options: Mapping[str, str] = field(default_factory=dict)
    service: Clustering = field(default_factory=Clustering)

    @property
    def writer(self) -> TransactionManager:
        return TransactionManager.from_options(self.table.storage, self.table.clock, self.options)

    def sight(self, snapshot: Snapshot | None = None, instant: str = at(0)) -> PlanningContext:
        now = self.table.clock.now_ms()
        return PlanningContext(
            snapshot or load_snapshot(self.table.storage), instant, now, self.options
        )

    def plan(self, instant: str = "9" * 17) -> ClusteringPlan | Skip:
        sight = self.sight(instant=instant)
        early = self.service.check_trigger(sight)
        return self.service.plan(sight) if early is None else early

    def planned(self) -> ClusteringPlan:
        plan = self.plan()
        assert isinstance(plan, ClusteringPlan), plan
        return plan

    def schedule(self) -> Instant:
        """Put a plan on the timeline."""

        def decide(snapshot: Snapshot, next_time: object) -> PlanRequest | Skip:
            assert callable(next_time)
            instant = next_time()
            plan = self.service.plan(self.sight(snapshot, instant))
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
        plans = {found.requested_at: plan for found, plan in snapshot.pending_plans()}
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


def without_file(rows: list[Row]) -> list[Row]:
    """Rows with all meta columns but the one that names their file."""
    return [{k: v for k, v in row.items() if k != "_hoodie_file_name"} for row in rows]


def pending(snapshot: Snapshot) -> list[State]:
    return [instant.state for instant in snapshot.timeline.pending(Action.CLUSTERING)]
