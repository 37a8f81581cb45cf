"""Partitions that were written since a table service completed, or that its plan left out.

Incremental planning reads only these partitions, and so does a search for uncompacted log files.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress

from lakewright.errors import CorruptError
from lakewright.model.commit_metadata import DELETE_PARTITION, CommitMetadata, is_log
from lakewright.model.instant import Action, Instant
from lakewright.model.plans import SERVICE_KEY, ClusteringPlan, CompactionPlan
from lakewright.model.table_config import TableType
from lakewright.table.preemption import parse_preempted
from lakewright.table.snapshot import Snapshot

Plan = CompactionPlan | ClusteringPlan

_WRITE_ACTIONS_OF = {
    TableType.MERGE_ON_READ: (Action.DELTA_COMMIT, Action.REPLACE_COMMIT),
    TableType.COPY_ON_WRITE: (Action.COMMIT, Action.REPLACE_COMMIT),
}
_NO_END = "9"


def last_service(
    snapshot: Snapshot, action: Action, service: str
) -> tuple[Instant | None, Plan | None]:
    """Return the completed execution of a service with the greatest instant, and its plan.

    The plan is None where it is missing or damaged: then it is unknown which partitions it left
    out.
    """
    for instant in sorted(snapshot.timeline.completed_services(action), reverse=True):
        plan = None
        with suppress(CorruptError):
            plan = snapshot.plan_of(instant.requested_at, action)
        if plan is None or plan.extra.get(SERVICE_KEY, action) == service:
            return instant, plan
    return None, None


def partitions_since(
    snapshot: Snapshot, last: Instant, plan: Plan, *, until: str = _NO_END
) -> tuple[str, ...]:
    """Return the partitions written since a service was requested, and those its plan left out.

    A compaction whose base files get an instant of the past may also write log files, which the
    next plan has to consider.
    """
    writes = _writes_in_window(snapshot, last.requested_at, until)
    commits = list(zip(writes, snapshot.commits(writes), strict=True))
    carried_over = {
        *(plan.missing_partitions or ()),
        *_partitions_with_new_logs(snapshot, last, plan),
        # A write that has preempted the plan there may have failed since.
        *(parse_preempted(snapshot.commits([last])[0].extra) if plan.cancellable else ()),
    }
    return window_partitions(commits, carried_over, last.requested_at)


def window_partitions(
    commits: Iterable[tuple[Instant, CommitMetadata]], carried_over: Iterable[str], last: str
) -> tuple[str, ...]:
    """Return the partitions written in a window, or carried over from the plan at `last`. Pure.

    `commits` completed in the window. A deleted partition is left out, unless a write to it
    completed after the delete was requested: the delete need not have seen that write.
    """
    written = dict.fromkeys(carried_over, last)
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
    """Return the partitions that can contain uncompacted log files; None if any partition can."""
    if snapshot.config.table_type is not TableType.MERGE_ON_READ:
        return ()
    last, plan = last_service(snapshot, Action.COMPACTION, "compaction")
    if last is None or plan is None or plan.missing_partitions is None:
        return None
    return partitions_since(snapshot, last, plan)


def _partitions_with_new_logs(snapshot: Snapshot, last: Instant, plan: Plan) -> set[str]:
    has_other_instant = isinstance(plan, CompactionPlan) and any(
        operation.next_base_instant for operation in plan.operations
    )
    if not has_other_instant:
        return set()
    (commit,) = snapshot.commits([last])
    return {path for path, stats in commit.stats.items() if any(map(is_log, stats))}


def _writes_in_window(snapshot: Snapshot, since: str, until: str) -> list[Instant]:
    actions = _WRITE_ACTIONS_OF[snapshot.config.table_type]
    active = snapshot.timeline.completed(*actions)
    # A write that started before the last service and completed after it may be archived already.
    archived = [i for i in snapshot.archived_after(since) if i.action in actions]
    return [i for i in (*archived, *active) if since <= (i.completed_at or "") < until]
