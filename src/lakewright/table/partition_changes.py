"""Which partitions were written since a service completed, or were left by it.

Planning looks into these alone, and so does whoever asks for the log files that wait.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress

from lakewright.errors import CorruptError
from lakewright.model.commit_metadata import DELETE_PARTITION, CommitMetadata, is_log
from lakewright.model.instant import Action, Instant
from lakewright.model.plans import SERVICE_KEY, ClusteringPlan, CompactionPlan
from lakewright.model.table_config import TableType
from lakewright.table.snapshot import Snapshot

Plan = CompactionPlan | ClusteringPlan

_WRITES = {
    TableType.MERGE_ON_READ: (Action.DELTA_COMMIT, Action.REPLACE_COMMIT),
    TableType.COPY_ON_WRITE: (Action.COMMIT, Action.REPLACE_COMMIT),
}
_EVER = "9"


def last_service(
    snapshot: Snapshot, action: Action, service: str
) -> tuple[Instant | None, Plan | None]:
    """The completed execution with the greatest instant among those of a service; its plan.

    The plan is None where it is gone or damaged: what it left out is not known then.
    """
    for instant in sorted(snapshot.timeline.completed_services(action), reverse=True):
        plan = None
        with suppress(CorruptError):
            plan = snapshot.plan_of(instant.requested_at, action)
        if plan is None or plan.extra.get(SERVICE_KEY, action) == service:
            return instant, plan
    return None, None


def partitions_since(
    snapshot: Snapshot, last: Instant, plan: Plan, *, until: str = _EVER
) -> tuple[str, ...]:
    """The partitions written since a service was requested, and those that its plan has left.

    A plan at a past time may leave log files of its own, which the next one has to look at.
    """
    writes = _writes(snapshot, last.requested_at, until)
    commits = list(zip(writes, snapshot.commits(writes), strict=True))
    carried = {*(plan.missing_partitions or ()), *_left_in_logs(snapshot, last, plan)}
    return window_partitions(commits, carried, last.requested_at)


def window_partitions(
    commits: Iterable[tuple[Instant, CommitMetadata]], carried: Iterable[str], last: str
) -> tuple[str, ...]:
    """The partitions of a window: written in it, or carried over from the plan at `last`. Pure.

    `commits` completed in the window. A partition that was deleted is out, unless something wrote
    it that completed after the delete was requested: the delete need not have seen that.
    """
    written = dict.fromkeys(carried, last)
    deleted: dict[str, str] = {}
    for instant, commit in sorted(commits, key=lambda item: item[0].completed_at or ""):
        if instant.requested_at == last:
            continue
        if commit.operation == DELETE_PARTITION:
            for partition in commit.replaced:
                deleted[partition] = max(deleted.get(partition, ""), instant.requested_at)
        written.update(dict.fromkeys(commit.stats, instant.completed_at or ""))
    return tuple(sorted(p for p, when in written.items() if when > deleted.get(p, "")))


def partitions_with_logs(snapshot: Snapshot) -> tuple[str, ...] | None:
    """The partitions that can hold log files which no compaction has folded in; None: any can."""
    if snapshot.config.table_type is not TableType.MERGE_ON_READ:
        return ()
    last, plan = last_service(snapshot, Action.COMPACTION, "compaction")
    if last is None or plan is None or plan.missing_partitions is None:
        return None
    return partitions_since(snapshot, last, plan)


def _left_in_logs(snapshot: Snapshot, last: Instant, plan: Plan) -> set[str]:
    at_another_time = isinstance(plan, CompactionPlan) and any(
        operation.next_base_instant for operation in plan.operations
    )
    if not at_another_time:
        return set()
    (commit,) = snapshot.commits([last])
    return {path for path, stats in commit.stats.items() if any(map(is_log, stats))}


def _writes(snapshot: Snapshot, since: str, until: str) -> list[Instant]:
    actions = _WRITES[snapshot.config.table_type]
    known = snapshot.timeline.completed(*actions)
    # A write that began before the last service and completed after it may be archived already.
    late = [i for i in snapshot.archived_after(since) if i.action in actions]
    return [i for i in (*late, *known) if since <= (i.completed_at or "") < until]
