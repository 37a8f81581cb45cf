"""Plans that wait and can never be executed: others have compacted their file groups since."""

from __future__ import annotations

from lakewright.core.instant import Instant
from lakewright.core.plans import ClusteringPlan, CompactionPlan
from lakewright.table.snapshot import Snapshot

Plan = CompactionPlan | ClusteringPlan

_OVERTAKEN = ("compaction", "logcompaction")


def overtaken(snapshot: Snapshot) -> dict[str, str]:
    """Why pending plans are void, by their requested time; reads plans only if some may be."""
    last = _last_compaction(snapshot)
    waiting = [i for i in snapshot.timeline.pending(*_OVERTAKEN) if i.requested_at < last]
    found = {}
    for instant in waiting:
        plan = snapshot.plan_of(instant.requested_at, instant.action)
        reason = why_void(snapshot, instant, plan) if plan is not None else None
        if reason is not None:
            found[instant.requested_at] = reason
    return found


def why_void(snapshot: Snapshot, instant: Instant, plan: Plan) -> str | None:
    """Why a plan cannot be executed any more; None if nothing like that is known of it.

    One file group is enough, as a plan is executed as a whole.
    """
    planned_at = plan.planned_at(instant.requested_at)
    if instant.action not in _OVERTAKEN or planned_at > _last_compaction(snapshot):
        return None
    done = snapshot.timeline.completed_services("compaction")
    later = [i for i in done if (i.completed_at or "") > planned_at]
    for other, commit in zip(later, snapshot.commits(later), strict=True):
        if not plan.file_groups.isdisjoint(commit.file_groups()):
            return (
                f"{instant.action} {instant.requested_at} is void, as compaction "
                f"{other.requested_at} has compacted its file groups since: roll it back"
            )
    return None


def _last_compaction(snapshot: Snapshot) -> str:
    done = snapshot.timeline.completed_services("compaction")
    return max((i.completed_at or "" for i in done), default="")
