"""Partitions that have changed since a table service was planned, or that its plan left out.

A write changes a partition, and so does a rollback or restore: it brings back the file groups that
the removed instant had replaced, compacted or clustered. Incremental planning reads only these
partitions, and so does a search for uncompacted log files.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass

from lakewright.errors import CorruptError
from lakewright.format.timeline_metadata import parse_rollback
from lakewright.model.commit_metadata import (
    DELETE_PARTITION,
    CommitMetadata,
    RollbackMetadata,
    is_log,
)
from lakewright.model.instant import Action, Instant
from lakewright.model.plans import SERVICE_KEY, ClusteringPlan, CompactionPlan
from lakewright.model.table_config import TableType
from lakewright.storage.base import MissingFileError
from lakewright.table.archived_timeline import load_archived_metadata
from lakewright.table.preemption import parse_preempted
from lakewright.table.rollback import load_rollback
from lakewright.table.snapshot import Snapshot

Plan = CompactionPlan | ClusteringPlan

_WRITE_ACTIONS_OF = {
    TableType.MERGE_ON_READ: (Action.DELTA_COMMIT, Action.REPLACE_COMMIT),
    TableType.COPY_ON_WRITE: (Action.COMMIT, Action.REPLACE_COMMIT),
}
_UNDO_ACTIONS = (Action.ROLLBACK, Action.RESTORE)
_NO_END = "9"


@dataclass(frozen=True, slots=True)
class ChangedPartitions:
    """Some partitions, sorted; None if any partition may have changed, for the `reason`.

    `deleted` are the partitions that were deleted, and not written again.
    """

    partitions: tuple[str, ...] | None
    reason: str = ""
    deleted: frozenset[str] = frozenset()


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
) -> ChangedPartitions:
    """Return the partitions changed since a service was requested, and those its plan left out.

    A compaction whose base files get an instant of the past may also write log files, which the
    next plan has to consider.
    """
    since, actions = last.requested_at, _WRITE_ACTIONS_OF[snapshot.config.table_type]
    # A write that started before the last service and completed after it may be archived already.
    archived = snapshot.archived_after(since, {*actions, *_UNDO_ACTIONS})
    completed = [
        i
        for i in (*archived, *snapshot.timeline.completed(*actions, *_UNDO_ACTIONS))
        if since <= (i.completed_at or "")
    ]
    brought_back: dict[str, str] = {}
    for undo, metadata in _load_undone(snapshot, completed):
        partitions = partitions_brought_back(metadata)
        if partitions is None:
            return ChangedPartitions(
                None, f"{undo.action} {undo.requested_at} may have brought back file groups"
            )
        brought_back |= dict.fromkeys(partitions, undo.completed_at or "")
    writes = [i for i in completed if i.action in actions and (i.completed_at or "") < until]
    commits = list(zip(writes, snapshot.commits(writes), strict=True))
    carried_over = {
        **dict.fromkeys(plan.missing_partitions or (), since),
        **dict.fromkeys(_partitions_with_new_logs(snapshot, last, plan), since),
        # A write that has preempted the plan there may have failed since.
        **dict.fromkeys(
            parse_preempted(snapshot.commits([last])[0].extra) if plan.cancellable else (), since
        ),
        **brought_back,
    }
    return window_partitions(commits, carried_over, since)


def partitions_brought_back(rollback: RollbackMetadata | None) -> tuple[str, ...] | None:
    """Return the partitions in which a rollback may have brought back file groups. Pure.

    None if these may be any: a restore, for which `rollback` is None, removes many instants; and a
    rollback records only where it deleted files, while a replace commit need not have written to
    the partitions whose file groups it replaced. A plan that was rolled back with a cause was still
    pending.
    """
    if rollback is None:
        return None
    may_replace = any(ref.action == Action.REPLACE_COMMIT for ref in rollback.instants)
    if rollback.caused_by is None and (may_replace or not rollback.instants):
        return None
    return tuple(rollback.partitions)


def _load_undone(
    snapshot: Snapshot, completed: Iterable[Instant]
) -> list[tuple[Instant, RollbackMetadata | None]]:
    """Load what rollbacks have recorded; None for restores, and for files that cannot be read."""
    undone = [i for i in completed if i.action in _UNDO_ACTIONS]
    loaded: dict[str, RollbackMetadata] = {}
    active = snapshot.timeline.completed(Action.ROLLBACK)
    for instant in undone:
        if instant in active:
            with suppress(CorruptError, MissingFileError):
                loaded[instant.requested_at] = load_rollback(snapshot, instant)
    times = [i.requested_at for i in undone if i.action == Action.ROLLBACK and i not in active]
    if times:
        archived = load_archived_metadata(
            snapshot.storage,
            snapshot.config.history_folder,
            {Action.ROLLBACK},
            parse_rollback,
            first=min(times),
            last=max(times),
        )
        with suppress(CorruptError):
            loaded |= {instant.requested_at: metadata for instant, metadata in archived}
    return [
        (i, loaded.get(i.requested_at) if i.action == Action.ROLLBACK else None) for i in undone
    ]


def window_partitions(
    commits: Iterable[tuple[Instant, CommitMetadata]], carried_over: Mapping[str, str], last: str
) -> ChangedPartitions:
    """Return the partitions written since the plan at `last`, or carried over. Pure.

    `commits` completed in the window; `carried_over` are other partitions, each with the time since
    which it has to be considered. A deleted partition is left out, unless a write to it completed
    after the delete was requested: the delete need not have seen that write.
    """
    written = dict(carried_over)
    deleted: dict[str, str] = {}
    for instant, commit in sorted(commits, key=lambda item: item[0].completed_at or ""):
        if instant.requested_at == last:
            continue
        if commit.operation == DELETE_PARTITION:
            for partition in commit.replaced:
                deleted[partition] = max(deleted.get(partition, ""), instant.requested_at)
        written.update(dict.fromkeys(commit.stats, instant.completed_at or ""))
    remaining = sorted(p for p, when in written.items() if when > deleted.get(p, ""))
    return ChangedPartitions(tuple(remaining), deleted=frozenset(deleted) - frozenset(remaining))


def partitions_with_logs(snapshot: Snapshot) -> tuple[str, ...] | None:
    """Return the partitions that can contain uncompacted log files; None if any partition can."""
    if snapshot.config.table_type is not TableType.MERGE_ON_READ:
        return ()
    last, plan = last_service(snapshot, Action.COMPACTION, "compaction")
    if last is None or plan is None or plan.missing_partitions is None:
        return None
    return partitions_since(snapshot, last, plan).partitions


def _partitions_with_new_logs(snapshot: Snapshot, last: Instant, plan: Plan) -> set[str]:
    has_other_instant = isinstance(plan, CompactionPlan) and any(
        operation.next_base_instant for operation in plan.operations
    )
    if not has_other_instant:
        return set()
    (commit,) = snapshot.commits([last])
    return {path for path, stats in commit.stats.items() if any(map(is_log, stats))}
