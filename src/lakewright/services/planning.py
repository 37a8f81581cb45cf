"""Plans that wait and can never be executed: others have compacted their file groups since."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from lakewright.errors import InvalidError
from lakewright.model.file_group import FileSlice, GroupKey
from lakewright.model.instant import Action, Instant
from lakewright.model.plans import MISSING_REASONS, ClusteringPlan, CompactionPlan, Skip
from lakewright.model.table_config import TableType
from lakewright.options import at_least, option, parse_bool, settings_from
from lakewright.services.base import PlanningContext
from lakewright.table.heartbeat import live_heartbeats
from lakewright.table.options import HeartbeatSettings, plan_settings
from lakewright.table.partition_changes import last_service, partitions_since
from lakewright.table.snapshot import FilesByPartition, Snapshot

Plan = CompactionPlan | ClusteringPlan

_OVERTAKEN = (Action.COMPACTION, Action.LOG_COMPACTION)


def superseded_plans(snapshot: Snapshot) -> dict[str, str]:
    """Why pending plans are void, by their requested time; reads plans only if some may be."""
    last = _last_compaction(snapshot)
    waiting = [i for i in snapshot.timeline.pending(*_OVERTAKEN) if i.requested_at < last]
    found = {}
    for instant in waiting:
        plan = snapshot.plan_of(instant.requested_at, instant.action)
        reason = superseded_reason(snapshot, instant, plan) if plan is not None else None
        if reason is not None:
            found[instant.requested_at] = reason
    return found


def superseded_reason(snapshot: Snapshot, instant: Instant, plan: Plan) -> str | None:
    """Why a plan cannot be executed any more; None if nothing like that is known of it.

    One file group is enough, as a plan is executed as a whole.
    """
    planned_at = plan.planned_at(instant.requested_at)
    if instant.action not in _OVERTAKEN or planned_at > _last_compaction(snapshot):
        return None
    done = snapshot.timeline.completed_services(Action.COMPACTION)
    later = [i for i in done if (i.completed_at or "") > planned_at]
    for other, commit in zip(later, snapshot.commits(later), strict=True):
        if not plan.file_groups.isdisjoint(commit.file_groups()):
            return (
                f"{instant.action} {instant.requested_at} is void, as compaction "
                f"{other.requested_at} has compacted its file groups since: roll it back"
            )
    return None


def _last_compaction(snapshot: Snapshot) -> str:
    done = snapshot.timeline.completed_services(Action.COMPACTION)
    return max((i.completed_at or "" for i in done), default="")


# ------------------------------------------------------------------------------------------------
# The options that services which rewrite file groups have in common.


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanningSettings:
    """How much of the table planning looks at."""

    incremental: bool = option(
        "hoodie.table.services.incremental.enabled",
        True,
        parse=parse_bool,
        doc="Whether planning looks only at partitions that were written, or left out, since the "
        "last plan; else at all of the table.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class LogPlanningSettings(PlanningSettings):
    """The same, where plans weigh log files."""

    max_file_size: int = option(
        "hoodie.parquet.max.file.size",
        125_829_120,
        parse=at_least(1),
        doc="What writing a base file is taken to cost where there is none yet.",
    )


# ------------------------------------------------------------------------------------------------
# Why a plan left partitions out: kept with the plan, so that anybody can ask later.


@dataclass
class SkippedPartitions:
    """The partitions that a plan does not schedule completely, each with the first reason met."""

    reasons: dict[str, str] = field(default_factory=dict)

    def add(self, partition: str, reason: str) -> None:
        """Note that something in a partition is left; an earlier reason stands."""
        self.reasons.setdefault(partition, reason)

    @property
    def partitions(self) -> tuple[str, ...]:
        """The partitions, sorted."""
        return tuple(sorted(self.reasons))

    def to_extra_metadata(self) -> dict[str, str]:
        """What is stored in the plan, for `missing_reasons`; nothing if nothing is left."""
        if not self.reasons:
            return {}
        by_reason: dict[str, list[str]] = {}
        for partition, reason in sorted(self.reasons.items()):
            by_reason.setdefault(reason, []).append(partition)
        return {MISSING_REASONS: json.dumps(by_reason, separators=(",", ":"))}


# ------------------------------------------------------------------------------------------------
# Which partitions planning has to look at: the one place that finds them for all services.
#
# The window is [requested time of the last completed service of the kind, instant of this plan),
# over
# the completion times of writes. The partitions written in it, together with those that the last
# plan
# could not schedule, are all that may have become due since.


@runtime_checkable
class IncrementalPartitionAwareStrategy(Protocol):
    """A strategy that can be asked about some partitions without seeing all of the table."""

    def filter_partition_paths(
        self, settings: Any, partitions: Sequence[str]
    ) -> tuple[list[str], list[str]]:
        """Those to process, and those left out, which the next plan looks at again.

        What a strategy leaves out is recorded in the plan whether it is in the second list or not.
        """
        ...


@dataclass(frozen=True, slots=True)
class IncrementalWindow:
    """The partitions that planning looks at, sorted.

    `partitions` is None where all of the table are to be listed, `reason` tells why. `is_recorded`
    tells whether the plan records what it leaves out: not where incremental planning is off.
    """

    partitions: tuple[str, ...] | None
    reason: str = ""
    is_recorded: bool = True

    @property
    def is_empty(self) -> bool:
        """Whether nothing can have become due."""
        return self.partitions == ()

    def missing(self, looked_at: Iterable[str], done: Iterable[str]) -> tuple[str, ...] | None:
        """The partitions that a plan must name as not scheduled completely; None if it names none.

        `looked_at` are all that were considered (those of the window, or of the whole table), and
        `done` those in which nothing is left.
        """
        return tuple(sorted(set(looked_at) - set(done))) if self.is_recorded else None


def find_window(
    sight: PlanningContext,
    action: Action,
    *,
    enabled: bool = True,
    aware: bool = True,
    service: str | None = None,
) -> IncrementalWindow:
    """The window of a plan of `action`; all partitions where there is nothing to begin it with.

    `aware` tells whether the strategy can do with some of the partitions. `service` is the name of
    a service that shares the action of another: each has its own last plan.
    """
    if not enabled:
        return IncrementalWindow(None, "incremental planning is switched off", is_recorded=False)
    if not aware:
        return IncrementalWindow(None, "the strategy wants to see all partitions")
    snapshot = sight.snapshot
    last, plan = last_service(snapshot, action, service or action)
    if last is None:
        return IncrementalWindow(None, f"no {action} has completed on the active timeline")
    if plan is None:
        return IncrementalWindow(None, f"the plan of the last {action} is not there any more")
    if plan.missing_partitions is None:
        return IncrementalWindow(None, f"the plan of the last {action} does not tell what it left")
    return IncrementalWindow(partitions_since(snapshot, last, plan, until=sight.instant))


# ------------------------------------------------------------------------------------------------
# What planning reads of a table: the slices of some partitions, and who holds them.


KeepPartitions = Callable[[Sequence[str]], Sequence[str]]


@dataclass(frozen=True, slots=True)
class PlanningInput:
    """The newest slice of each file group, by partition and file id; groups that are spoken for."""

    slices: list[FileSlice]
    held: dict[GroupKey, str]


def load_planning_input(
    sight: PlanningContext, window: IncrementalWindow, keep: KeepPartitions
) -> PlanningInput:
    """List the partitions of a window that `keep` leaves in, and no others if it names any."""
    if window.partitions is not None:
        files = sight.snapshot.files(keep(window.partitions))
    else:
        listed = sight.snapshot.files()
        files = {path: listed[path] for path in keep(list(listed))}
    return PlanningInput(latest_slices(sight, files), locked_file_groups(sight))


def latest_slices(sight: PlanningContext, files: FilesByPartition) -> list[FileSlice]:
    """The slices as they are at the instant of the plan: what completes later is not in them."""
    snapshot = sight.snapshot
    late = any((i.completed_at or "") >= sight.instant for i in snapshot.timeline.completed_writes)
    # The bound needs the completion times of archived writes, which cost a look into history.
    view = snapshot.view(completed_until=sight.instant) if late else snapshot.view()
    return [group.latest_merged_slice() for group in snapshot.groups(view, files)]


@dataclass(frozen=True)
class CancellablePlans:
    """The pending plans that others need not wait for, and which of them are being executed."""

    plans: Mapping[Instant, Plan]
    executing: frozenset[Instant]

    @classmethod
    def of(cls, sight: PlanningContext, plans: Iterable[tuple[Instant, Plan]]) -> CancellablePlans:
        """Those among some plans; asks for heartbeats only if there are any."""
        found = {instant: plan for instant, plan in plans if plan.cancellable}
        if not found:
            return cls({}, frozenset())
        settings = settings_from(HeartbeatSettings, sight.options)
        times = {instant.requested_at for instant in found}
        living = live_heartbeats(sight.snapshot.storage, times, settings, sight.now_ms)
        return cls(found, frozenset(i for i in found if i.requested_at in living))

    def with_groups_of(self, plan: Plan) -> list[Instant]:
        """Those that have file groups in common with a plan."""
        mine = plan.file_groups
        return [i for i, other in self.plans.items() if not mine.isdisjoint(other.file_groups)]


def locked_file_groups(sight: PlanningContext) -> dict[GroupKey, str]:
    """The file groups that a plan must leave to others, each with what it waits for.

    A plan that is not cancellable goes over those that are, unless they are being executed.
    """
    plans = sight.snapshot.pending_plans()
    held = _held(sight.snapshot, plans)
    if plan_settings(sight.snapshot.config, sight.options).cancellable:
        return held
    passed = CancellablePlans.of(sight, plans)
    over = {_named(instant) for instant in passed.plans if instant not in passed.executing}
    busy = {_named(i): f"{_named(i)}, which is being executed" for i in passed.executing}
    return {key: busy.get(holder, holder) for key, holder in held.items() if holder not in over}


def plans_to_supersede(sight: PlanningContext, plan: Plan) -> tuple[Instant, ...] | Skip:
    """The cancellable plans that have to go before a plan appears; Skip if one is being executed.

    Whoever made the plan may not have asked for the groups to leave.
    """
    found = CancellablePlans.of(sight, sight.snapshot.pending_plans())
    below = found.with_groups_of(plan)
    firm = [i for i in below if superseded_reason(sight.snapshot, i, found.plans[i]) is None]
    if plan.cancellable and firm:
        return Skip(f"{_named(firm[0])} has some of its file groups already")
    busy = [instant for instant in below if instant in found.executing]
    if busy:
        return Skip(f"{_named(busy[0])} has some of its file groups, and is being executed")
    return tuple(below)


def file_groups_in_pending_plans(snapshot: Snapshot) -> dict[GroupKey, str]:
    """The file groups that pending plans are going to rewrite, each with what it waits for.

    A plan that can never be executed holds nothing.
    """
    return _held(snapshot, snapshot.pending_plans())


def _held(snapshot: Snapshot, plans: Iterable[tuple[Instant, Plan]]) -> dict[GroupKey, str]:
    return {
        key: _named(instant)
        for instant, plan in plans
        if superseded_reason(snapshot, instant, plan) is None
        for key in plan.file_groups
    }


def _named(instant: Instant) -> str:
    return f"{instant.action} {instant.requested_at}"


def require_merge_on_read(snapshot: Snapshot, service: str) -> None:
    """Raise InvalidError for a table that never has log files."""
    if snapshot.config.table_type is not TableType.MERGE_ON_READ:
        raise InvalidError(
            "a copy-on-write table has no log files", service=service, table=snapshot.config.name
        )
