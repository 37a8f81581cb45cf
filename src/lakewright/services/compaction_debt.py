"""Compaction debt: the uncompacted log files of a table, by partition, with the reason."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from lakewright.model.file_group import FileSlice, GroupKey, TimelineView
from lakewright.model.instant import Action
from lakewright.model.plans import ClusteringPlan, CompactionPlan
from lakewright.services.base import PlanningContext
from lakewright.services.planning import (
    HELD_BY,
    file_groups_in_pending_plans,
    find_window,
    require_merge_on_read,
    superseded_plans,
)
from lakewright.table.snapshot import Snapshot

_WRITTEN_SINCE = "written since the last plan"
_NEVER_PLANNED = "no compaction was planned yet"


@dataclass(frozen=True, slots=True)
class PartitionDebt:
    """The uncompacted log files of one partition.

    `oldest` is the completion time of the oldest write among them. `reason` says why the last plan
    skipped the partition, which pending plan locks its file groups, or that a plan for it is
    superseded.
    """

    partition: str
    log_files: int
    log_bytes: int
    oldest: str
    reason: str


@dataclass(frozen=True, slots=True)
class CompactionDebt:
    """The partitions with uncompacted log files, the oldest debt first."""

    partitions: tuple[PartitionDebt, ...] = ()

    @property
    def log_files(self) -> int:
        """The number of uncompacted log files."""
        return sum(debt.log_files for debt in self.partitions)

    @property
    def log_bytes(self) -> int:
        """The bytes of these log files."""
        return sum(debt.log_bytes for debt in self.partitions)

    @property
    def oldest(self) -> str | None:
        """The completion time of the oldest of these writes; None without debt."""
        return min((debt.oldest for debt in self.partitions), default=None)

    def __bool__(self) -> bool:
        """Whether there is any debt."""
        return bool(self.partitions)


def load_debt(context: PlanningContext) -> CompactionDebt:
    """Return the debt of a table; lists only partitions that can have uncompacted log files."""
    snapshot = context.snapshot
    require_merge_on_read(snapshot, "debt")
    window = find_window(context, Action.COMPACTION)
    if window.is_empty:
        return CompactionDebt()
    view = snapshot.view()
    files = snapshot.files(window.partitions)
    slices = [group.latest_merged_slice() for group in snapshot.groups(view, files)]
    locked = file_groups_in_pending_plans(snapshot)
    reasons = _last_plan_reasons(snapshot)
    return debt_of(
        slices,
        snapshot.with_completion_times(view, files),
        locked,
        reasons,
        _superseded_reasons(snapshot),
    )


def debt_of(
    slices: Iterable[FileSlice],
    view: TimelineView,
    locked: Mapping[GroupKey, str],
    reasons: Mapping[str, str] | None,
    superseded: Mapping[str, str] | None = None,
) -> CompactionDebt:
    """Return the debt of these slices.

    `locked` are the file groups of pending plans. `reasons` are those of the last plan, by
    partition; None if there is no plan. `superseded` are the reasons of superseded plans, by
    partition.
    """
    by_partition: dict[str, list[FileSlice]] = {}
    for item in slices:
        if item.logs:
            by_partition.setdefault(item.partition, []).append(item)
    debts = []
    for partition, items in by_partition.items():
        holders = sorted({h for i in items if (h := locked.get((partition, i.file_id)))})
        logs = [log for item in items for log in item.logs]
        if holders:
            reason = f"{HELD_BY}{', '.join(holders)}"
        else:
            default = _NEVER_PLANNED if reasons is None else reasons.get(partition, _WRITTEN_SINCE)
            reason = (superseded or {}).get(partition, _in_the_past(default))
        oldest = min(view.completion(log.instant) or log.instant for log in logs)
        size = sum(log.size for log in logs)
        debts.append(PartitionDebt(partition, len(logs), size, oldest, reason))
    return CompactionDebt(tuple(sorted(debts, key=lambda debt: (debt.oldest, debt.partition))))


def _in_the_past(reason: str) -> str:
    """Return the reason of the last plan; the plan that it names as holder is not pending now."""
    if not reason.startswith(HELD_BY):
        return reason
    holder = reason.removeprefix(HELD_BY).partition(",")[0]
    return f"skipped by the last plan, when {holder} was pending"


def _last_plan_reasons(snapshot: Snapshot) -> dict[str, str] | None:
    """Return why the last plan, pending or completed, skipped partitions; None without a plan."""
    plans = [at for at, action in snapshot.timeline.plans.items() if action == Action.COMPACTION]
    if not plans:
        return None
    plan: CompactionPlan | ClusteringPlan | None = snapshot.plan_of(max(plans), Action.COMPACTION)
    return plan.missing_reasons if plan is not None else None


def _superseded_reasons(snapshot: Snapshot) -> dict[str, str]:
    """Return why pending plans are superseded, by the partitions of these plans."""
    reasons = superseded_plans(snapshot)
    return {
        partition: reasons[instant.requested_at]
        for instant, plan in (snapshot.pending_plans() if reasons else ())
        if instant.requested_at in reasons
        for partition in plan.partitions
    }
