"""What a table owes: log files that no compaction has folded in yet, partition by partition."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from lakewright.model.file_group import FileSlice, GroupKey, TimelineView
from lakewright.model.instant import Action
from lakewright.model.plans import ClusteringPlan, CompactionPlan
from lakewright.services.base import PlanningContext
from lakewright.services.planning import (
    file_groups_in_pending_plans,
    find_window,
    require_merge_on_read,
    superseded_plans,
)
from lakewright.table.snapshot import Snapshot

_NEW = "written since the last plan"
_NEVER = "no compaction was planned yet"


@dataclass(frozen=True, slots=True)
class PartitionDebt:
    """The log files of one partition that wait for a compaction.

    `oldest` is the completion time of the write that has waited longest. `reason` tells why the
    last plan left the partition, which pending plan holds it, or that a plan for it is void.
    """

    partition: str
    log_files: int
    log_bytes: int
    oldest: str
    reason: str


@dataclass(frozen=True, slots=True)
class CompactionDebt:
    """The partitions that owe work, the oldest debt first."""

    partitions: tuple[PartitionDebt, ...] = ()

    @property
    def log_files(self) -> int:
        """Log files of all partitions."""
        return sum(each.log_files for each in self.partitions)

    @property
    def log_bytes(self) -> int:
        """Bytes of these."""
        return sum(each.log_bytes for each in self.partitions)

    @property
    def oldest(self) -> str | None:
        """The completion time of the write that has waited longest."""
        return min((each.oldest for each in self.partitions), default=None)

    def __bool__(self) -> bool:
        """Whether anything is owed."""
        return bool(self.partitions)


def load_debt(sight: PlanningContext) -> CompactionDebt:
    """What the table owes now; looks only into partitions that can owe something."""
    snapshot = sight.snapshot
    require_merge_on_read(snapshot, "debt")
    window = find_window(sight, Action.COMPACTION)
    if window.is_empty:
        return CompactionDebt()
    view = snapshot.view()
    files = snapshot.files(window.partitions)
    slices = [group.latest_merged_slice() for group in snapshot.groups(view, files)]
    held = file_groups_in_pending_plans(snapshot)
    reasons = _reasons(snapshot)
    return debt_of(
        slices, snapshot.with_completion_times(view, files), held, reasons, _void(snapshot)
    )


def debt_of(
    slices: Iterable[FileSlice],
    view: TimelineView,
    held: Mapping[GroupKey, str],
    reasons: Mapping[str, str] | None,
    void: Mapping[str, str] | None = None,
) -> CompactionDebt:
    """The debt of these slices; `reasons` are those of the last plan, None if there is none.

    `void` tells, by partition, of plans that can never be executed.
    """
    by_partition: dict[str, list[FileSlice]] = {}
    for item in slices:
        if item.logs:
            by_partition.setdefault(item.partition, []).append(item)
    found = []
    for partition, items in by_partition.items():
        holders = sorted({h for i in items if (h := held.get((partition, i.file_id)))})
        logs = [log for item in items for log in item.logs]
        if holders:
            reason = f"held by {', '.join(holders)}"
        else:
            known = _NEVER if reasons is None else reasons.get(partition, _NEW)
            reason = (void or {}).get(partition, known)
        oldest = min(view.completion(log.instant) or log.instant for log in logs)
        size = sum(log.size for log in logs)
        found.append(PartitionDebt(partition, len(logs), size, oldest, reason))
    return CompactionDebt(tuple(sorted(found, key=lambda each: (each.oldest, each.partition))))


def _reasons(snapshot: Snapshot) -> dict[str, str] | None:
    """Why the last plan, executed or not, left partitions; None if there is none."""
    plans = [at for at, action in snapshot.timeline.plans.items() if action == "compaction"]
    if not plans:
        return None
    plan: CompactionPlan | ClusteringPlan | None = snapshot.plan_of(max(plans), Action.COMPACTION)
    return plan.missing_reasons if plan is not None else None


def _void(snapshot: Snapshot) -> dict[str, str]:
    """Why plans are void, by the partitions that they were for."""
    reasons = superseded_plans(snapshot)
    return {
        partition: reasons[instant.requested_at]
        for instant, plan in (snapshot.pending_plans() if reasons else ())
        if instant.requested_at in reasons
        for partition in plan.partitions
    }
