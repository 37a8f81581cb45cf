"""What planning needs to know about a table, for all services that rewrite file groups.

- Superseded plans: pending plans that can never be executed, as a later compaction has rewritten
  some of their file groups.
- The incremental window: the partitions in which something may have become due since the last plan
  of the same kind, so that planning need not list the whole table.
- Ranked partitions: the latest partitions of the table, which a plan records for filters that rank
  partitions, as the next window need not contain them.
- Skipped partitions: what a plan does not schedule completely, each with its reason. The reasons
  are stored with the plan, and the next window contains these partitions again.
- Locked file groups: those of pending plans, which a new plan must leave out.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from lakewright.clock import zone_of
from lakewright.errors import InvalidError
from lakewright.model.file_group import FileSlice, GroupKey
from lakewright.model.instant import Action, Instant, parse_time
from lakewright.model.plans import (
    LATEST_PARTITIONS,
    MISSING_REASONS,
    ClusteringPlan,
    CompactionPlan,
    Skip,
)
from lakewright.model.table_config import TableType
from lakewright.options import at_least, option, parse_bool, settings_from
from lakewright.services.base import PlanningContext
from lakewright.table.heartbeat import live_heartbeats
from lakewright.table.options import HeartbeatSettings, plan_settings
from lakewright.table.partition_changes import last_service, partitions_since
from lakewright.table.snapshot import FilesByPartition, Snapshot

Plan = CompactionPlan | ClusteringPlan

_SUPERSEDABLE = (Action.COMPACTION, Action.LOG_COMPACTION)


def superseded_plans(snapshot: Snapshot) -> dict[str, str]:
    """Return why pending plans are superseded, by their requested time.

    Plans are read only if a compaction has completed after they were requested.
    """
    last = _last_compaction(snapshot)
    older = [i for i in snapshot.timeline.pending(*_SUPERSEDABLE) if i.requested_at < last]
    reasons = {}
    for instant in older:
        plan = snapshot.plan_of(instant.requested_at, instant.action)
        reason = superseded_reason(snapshot, instant, plan) if plan is not None else None
        if reason is not None:
            reasons[instant.requested_at] = reason
    return reasons


def superseded_reason(snapshot: Snapshot, instant: Instant, plan: Plan) -> str | None:
    """Return why a plan can no longer be executed; None if it is not superseded.

    One file group that was compacted since is enough, as a plan is executed as a whole.
    """
    planned_at = plan.planned_at(instant.requested_at)
    if instant.action not in _SUPERSEDABLE or planned_at > _last_compaction(snapshot):
        return None
    completed = snapshot.timeline.completed_services(Action.COMPACTION)
    later = [i for i in completed if (i.completed_at or "") > planned_at]
    for other, commit in zip(later, snapshot.commits(later), strict=True):
        if not plan.file_groups.isdisjoint(commit.file_groups()):
            return (
                f"{instant.action} {instant.requested_at} is superseded, as compaction "
                f"{other.requested_at} has compacted its file groups since: roll it back"
            )
    return None


def _last_compaction(snapshot: Snapshot) -> str:
    completed = snapshot.timeline.completed_services(Action.COMPACTION)
    return max((i.completed_at or "" for i in completed), default="")


# Options that several services share


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanningSettings:
    """How much of the table planning reads."""

    incremental: bool = option(
        "hoodie.table.services.incremental.enabled",
        True,
        parse=parse_bool,
        doc="Whether planning reads only the partitions that were written since the last plan, or "
        "skipped by it; otherwise it reads the whole table.",
    )


def missing_seconds_option() -> Any:
    """Return the option that bounds how long skipped partitions wait; several settings have it."""
    return option(
        "lakewright.services.missing.max.seconds",
        3_600,
        parse=at_least(0),
        doc="After writes and in loops: how many seconds after the last plan has completed the "
        "partitions that it skipped make the next one due, whatever its trigger is; also if "
        "nothing was written since.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class LogPlanningSettings(PlanningSettings):
    """Options of plans whose costs depend on log files."""

    max_file_size: int = option(
        "hoodie.parquet.max.file.size",
        125_829_120,
        parse=at_least(1),
        doc="The assumed size of a base file that does not exist yet, for the costs of a plan.",
    )


# Skipped partitions

# How the reason begins where a pending plan has the file groups.
HELD_BY = "held by "


@dataclass
class SkippedPartitions:
    """The partitions that a plan does not schedule completely, each with the first reason."""

    reasons: dict[str, str] = field(default_factory=dict)

    def add(self, partition: str, reason: str) -> None:
        """Add a partition that is not scheduled completely; an earlier reason is kept."""
        self.reasons.setdefault(partition, reason)

    @property
    def partitions(self) -> tuple[str, ...]:
        """The skipped partitions, sorted."""
        return tuple(sorted(self.reasons))

    def to_extra_metadata(self) -> dict[str, str]:
        """Return the reasons as extra metadata of a plan, which `missing_reasons` parses."""
        if not self.reasons:
            return {}
        by_reason: dict[str, list[str]] = {}
        for partition, reason in sorted(self.reasons.items()):
            by_reason.setdefault(reason, []).append(partition)
        return {MISSING_REASONS: json.dumps(by_reason, separators=(",", ":"))}


# The incremental window: [requested time of the last completed service of the kind, instant of
# this plan), over the completion times of writes, rollbacks and restores. Only partitions that
# changed in it, and those that the last plan skipped, can have become due since.


@runtime_checkable
class IncrementalPartitionAwareStrategy(Protocol):
    """A strategy that can select from some of the partitions without knowing all of them."""

    def filter_partition_paths(
        self, settings: Any, partitions: Sequence[str]
    ) -> tuple[list[str], list[str]]:
        """Return the partitions to process, and those skipped, which the next plan reads again.

        A partition in neither list is recorded as skipped as well.
        """
        ...


@runtime_checkable
class RanksPartitions(Protocol):
    """A strategy that selects partitions by their rank among all partitions of the table."""

    def latest_partitions(self, settings: Any, partitions: Sequence[str]) -> Sequence[str]:
        """Return the partitions that decide which others are selected.

        Whatever partitions are added to these later, the strategy selects the same among them as
        it would among all partitions.
        """
        ...


@dataclass(frozen=True, slots=True)
class PartitionRanking:
    """The latest partitions of the table by some filters, which `filters` identifies.

    The next plan with the same filters ranks the partitions of its window among these.
    """

    filters: str
    partitions: tuple[str, ...] = ()

    def to_extra_metadata(self) -> dict[str, str]:
        """Return the ranking as extra metadata of a plan."""
        value = {"filters": self.filters, "partitions": self.partitions}
        return {LATEST_PARTITIONS: json.dumps(value, separators=(",", ":"))}

    @classmethod
    def from_extra_metadata(cls, extra: Mapping[str, str]) -> PartitionRanking | None:
        """Return the ranking that a plan has recorded; None if it has recorded none."""
        try:
            value = json.loads(extra[LATEST_PARTITIONS])
            return cls(str(value["filters"]), tuple(map(str, value["partitions"])))
        except (KeyError, TypeError, ValueError):
            return None


@dataclass(frozen=True, slots=True)
class IncrementalWindow:
    """The partitions that planning reads, sorted.

    `partitions` is None if the whole table has to be listed, for the `reason`. `records_missing` is
    whether the plan records the partitions it skips, which it does unless incremental planning is
    off. `latest` are the latest partitions of the table as the last plan has ranked them, and
    `deleted` those that were deleted since.
    """

    partitions: tuple[str, ...] | None
    reason: str = ""
    records_missing: bool = True
    latest: tuple[str, ...] = ()
    deleted: frozenset[str] = frozenset()

    @property
    def is_empty(self) -> bool:
        """Whether nothing can have become due, so that there is nothing to list."""
        return self.partitions == ()

    def missing(
        self, considered: Iterable[str], scheduled: Iterable[str]
    ) -> tuple[str, ...] | None:
        """Return the partitions that the plan records as missing; None if it records none.

        `considered` are the partitions of the window, or of the whole table; `scheduled` those that
        are scheduled completely.
        """
        return tuple(sorted(set(considered) - set(scheduled))) if self.records_missing else None


def find_window(
    context: PlanningContext,
    action: Action,
    *,
    enabled: bool = True,
    partition_aware: bool = True,
    ranked_by: str | None = None,
    widened: Callable[[Plan], str | None] = lambda _: None,
) -> IncrementalWindow:
    """Return the window of a plan of `action`: all partitions if the last plan does not bound it.

    `partition_aware` is whether the strategy can select from some of the partitions. `ranked_by`
    identifies filters that rank partitions among those of the whole table. `widened` returns why
    something can be due now that was not for the options of the last plan.
    """
    if not enabled:
        return IncrementalWindow(
            None, "incremental planning is switched off", records_missing=False
        )
    if not partition_aware:
        return IncrementalWindow(None, "the strategy needs all partitions")
    snapshot = context.snapshot
    last, plan = last_service(snapshot, action, action)
    if last is None:
        return IncrementalWindow(None, f"no {action} has completed on the active timeline")
    if plan is None:
        return IncrementalWindow(None, f"the plan of the last {action} no longer exists")
    if plan.missing_partitions is None:
        return IncrementalWindow(
            None, f"the plan of the last {action} does not record what it skipped"
        )
    reason = widened(plan)
    if reason is not None:
        return IncrementalWindow(None, reason)
    changed = partitions_since(snapshot, last, plan, until=context.instant)
    if not changed.partitions or ranked_by is None:
        return IncrementalWindow(changed.partitions, changed.reason)
    ranking = PartitionRanking.from_extra_metadata(plan.extra)
    if ranking is None or ranking.filters != ranked_by:
        reason = f"the last {action} did not rank partitions by these filters"
        return IncrementalWindow(None, reason, deleted=changed.deleted)
    if not changed.deleted.isdisjoint(ranking.partitions):
        reason = "some of the latest partitions were deleted"
        return IncrementalWindow(None, reason, deleted=changed.deleted)
    return IncrementalWindow(changed.partitions, latest=ranking.partitions)


def missing_partitions_are_due(
    context: PlanningContext, action: Action, max_seconds: int, *, enough_commits: bool
) -> bool:
    """Whether the partitions that the last plan of an action skipped make the next one due.

    They do after the number of commits of the trigger, or after some time. Before that nothing is
    read, and neither while a later plan is pending: that plan has considered them.
    """
    timeline = context.snapshot.timeline
    completed = max(timeline.completed_services(action), default=None)
    pending = max(timeline.pending(action), default=None)
    if completed is None or (pending is not None and pending > completed):
        return False
    zone = zone_of(context.snapshot.config.timeline_zone)
    try:
        completed_s = parse_time(completed.completed_at or "", zone).timestamp()
    except InvalidError:
        completed_s = 0
    if not enough_commits and context.now_ms / 1000 - completed_s < max_seconds:
        return False
    _, plan = last_service(context.snapshot, action, action)
    return plan is not None and bool(plan.missing_partitions)


# File slices to plan with, and the file groups that pending plans lock


@dataclass(frozen=True, slots=True)
class WindowListing:
    """The partitions to select from, and the files of all partitions if these were listed."""

    partitions: tuple[str, ...]
    files: FilesByPartition | None = None

    @classmethod
    def of(cls, snapshot: Snapshot, window: IncrementalWindow) -> WindowListing:
        """List all partitions if the window is the whole table."""
        if window.partitions is not None:
            return cls(window.partitions)
        files = snapshot.files()
        return cls(tuple(path for path in files if path not in window.deleted), files)

    def files_of(self, snapshot: Snapshot, partitions: Sequence[str]) -> FilesByPartition:
        """Return the files of some partitions, which are listed now if they were not before."""
        if self.files is None:
            return snapshot.files(partitions)
        return {path: self.files[path] for path in partitions if path in self.files}


@dataclass(frozen=True, slots=True)
class PlanningInput:
    """The newest slice of each file group, and the locked groups with the plan that locks each."""

    slices: list[FileSlice]
    locked: dict[GroupKey, str]


def load_planning_input(
    context: PlanningContext, listing: WindowListing, partitions: Sequence[str]
) -> PlanningInput:
    """Load the newest slices of some partitions of a window."""
    files = listing.files_of(context.snapshot, partitions)
    return PlanningInput(latest_slices(context, files), locked_file_groups(context))


def latest_slices(context: PlanningContext, files: FilesByPartition) -> list[FileSlice]:
    """Return the newest slice of each file group, from writes completed before the plan."""
    snapshot = context.snapshot
    needs_bound = any(
        (i.completed_at or "") >= context.instant for i in snapshot.timeline.completed_writes
    )
    # The bound needs the completion times of archived writes, so it reads the archived timeline.
    view = snapshot.view(completed_until=context.instant) if needs_bound else snapshot.view()
    return [group.latest_merged_slice() for group in snapshot.groups(view, files)]


@dataclass(frozen=True)
class CancellablePlans:
    """The pending plans that are cancellable, and which of them are being executed."""

    plans: Mapping[Instant, Plan]
    executing: frozenset[Instant]

    @classmethod
    def from_plans(
        cls, context: PlanningContext, plans: Iterable[tuple[Instant, Plan]]
    ) -> CancellablePlans:
        """Return the cancellable ones among some plans; lists heartbeats only if there are any."""
        cancellable = {instant: plan for instant, plan in plans if plan.cancellable}
        if not cancellable:
            return cls({}, frozenset())
        settings = settings_from(HeartbeatSettings, context.options)
        times = {instant.requested_at for instant in cancellable}
        live = live_heartbeats(context.snapshot.storage, times, settings, context.now_ms)
        return cls(cancellable, frozenset(i for i in cancellable if i.requested_at in live))

    def with_groups_of(self, plan: Plan) -> list[Instant]:
        """Return those that have file groups in common with a plan."""
        groups = plan.file_groups
        return [i for i, other in self.plans.items() if not groups.isdisjoint(other.file_groups)]


def locked_file_groups(context: PlanningContext) -> dict[GroupKey, str]:
    """Return the file groups that a new plan must leave out, each with the plan that locks it.

    A plan that is not cancellable may supersede cancellable ones, unless they are being executed.
    """
    plans = context.snapshot.pending_plans()
    locked = _locked_groups(context.snapshot, plans)
    if plan_settings(context.snapshot.config, context.options).cancellable:
        return locked
    cancellable = CancellablePlans.from_plans(context, plans)
    supersedable = {
        _label(instant) for instant in cancellable.plans if instant not in cancellable.executing
    }
    executing = {_label(i): f"{_label(i)}, which is being executed" for i in cancellable.executing}
    return {
        key: executing.get(label, label)
        for key, label in locked.items()
        if label not in supersedable
    }


def plans_to_supersede(context: PlanningContext, plan: Plan) -> tuple[Instant, ...] | Skip:
    """Return the cancellable plans to roll back before a plan is scheduled.

    Skip if one of them is being executed, or if the plan itself is cancellable. That happens if the
    planner, which may be a user's, has not left out the locked file groups.
    """
    cancellable = CancellablePlans.from_plans(context, context.snapshot.pending_plans())
    overlapping = cancellable.with_groups_of(plan)
    executable = [
        i
        for i in overlapping
        if superseded_reason(context.snapshot, i, cancellable.plans[i]) is None
    ]
    if plan.cancellable and executable:
        return Skip(f"{_label(executable[0])} has some of its file groups already")
    executing = [instant for instant in overlapping if instant in cancellable.executing]
    if executing:
        return Skip(f"{_label(executing[0])} has some of its file groups, and is being executed")
    return tuple(overlapping)


def file_groups_in_pending_plans(snapshot: Snapshot) -> dict[GroupKey, str]:
    """Return the file groups that pending plans will rewrite, each with the plan that locks it.

    A superseded plan locks nothing, as it can never be executed.
    """
    return _locked_groups(snapshot, snapshot.pending_plans())


def _locked_groups(
    snapshot: Snapshot, plans: Iterable[tuple[Instant, Plan]]
) -> dict[GroupKey, str]:
    return {
        key: _label(instant)
        for instant, plan in plans
        if superseded_reason(snapshot, instant, plan) is None
        for key in plan.file_groups
    }


def _label(instant: Instant) -> str:
    return f"{instant.action} {instant.requested_at}"


def require_merge_on_read(snapshot: Snapshot, service: str) -> None:
    """Raise InvalidError for a copy-on-write table, which never has log files."""
    if snapshot.config.table_type is not TableType.MERGE_ON_READ:
        raise InvalidError(
            "a copy-on-write table has no log files", service=service, table=snapshot.config.name
        )
