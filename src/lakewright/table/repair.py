"""What a writer puts right before it begins: the writes and rollbacks of writers that died."""

from __future__ import annotations

from contextlib import suppress

from lakewright.clock import Clock
from lakewright.core.instant import WRITE_ACTIONS
from lakewright.table.heartbeat import alive
from lakewright.table.rollback import (
    CompletedMeanwhileError,
    failed_writes,
    load_rollback,
    resume_rollbacks,
    run_rollback,
)
from lakewright.table.settings import HeartbeatSettings, TransactionSettings
from lakewright.table.snapshot import Snapshot, load_snapshot
from lakewright.table.strays import sweep_strays
from lakewright.table.times import TimeSource


def repaired(
    snapshot: Snapshot,
    transaction: TransactionSettings,
    heartbeat: HeartbeatSettings,
    times: TimeSource,
    clock: Clock,
) -> Snapshot:
    """The table after what dead writers left is rolled back; the caller holds the table's lock.

    One listing of the folder of markers while nothing is pending and nothing was rolled back.
    """
    snapshot = _rolled_back(snapshot, transaction, heartbeat, times, clock)
    # Task attempts may have gone on after their write was completed, aborted or rolled back.
    return snapshot.passing_over(sweep_strays(snapshot, heartbeat, clock.now_ms()))


def _rolled_back(
    snapshot: Snapshot,
    transaction: TransactionSettings,
    heartbeat: HeartbeatSettings,
    times: TimeSource,
    clock: Clock,
) -> Snapshot:
    if any(i.action == "rollback" for i in snapshot.timeline) and hide_late(snapshot):
        snapshot = load_snapshot(snapshot.storage)
    pending = snapshot.timeline.pending("rollback", *WRITE_ACTIONS)
    if not pending:
        return snapshot
    storage, by_markers = snapshot.storage, transaction.rollback_by_markers
    # A plan that is being executed may have been asked to stop, by a rollback.
    begun = {i.requested_at for i in snapshot.timeline.pending()}
    living = alive(storage, begun, heartbeat, clock.now_ms())
    if any(i.action == "rollback" and i.requested_at not in living for i in pending):
        resume_rollbacks(snapshot, times, clock, by_markers=by_markers, alive=living)
        snapshot = load_snapshot(storage)
    failed = failed_writes(snapshot.timeline, transaction.failed_writes, living)
    for target in failed:
        with suppress(CompletedMeanwhileError):
            run_rollback(snapshot, target, times, clock, by_markers=by_markers)
    return load_snapshot(storage) if failed else snapshot


def hide_late(snapshot: Snapshot) -> bool:
    """Delete completed files that appeared after their write was rolled back for good.

    Who holds still right before its last step, for longer than its lock and heartbeat are valid,
    takes such a file back itself when it goes on; unless it dies then. The files that it tells of
    are deleted, and the file groups that it replaces would be missing.
    """
    timeline = snapshot.timeline
    bare = [i for i in timeline.completed_writes if i.requested_at in timeline.bare]
    if not bare:
        return False
    gone = {
        (ref.requested_at, ref.action)
        for rollback in timeline.completed("rollback")
        if rollback.requested_at > bare[0].requested_at
        for ref in load_rollback(snapshot, rollback).instants
    }
    late = [i for i in bare if (i.requested_at, i.action) in gone]
    snapshot.storage.delete_many(snapshot.timeline_path(instant) for instant in late)
    return bool(late)
