"""What killed processes leave and no rollback takes away: which of it is surely dead, and deleted.

- temporary files, which disks and HDFS have: a process was killed while it wrote one;
- heartbeats of writes that are not pending: it was killed right before a write began, or after it
  had completed or been withdrawn;
- markers of completed writes: it was killed right after the commit.

Markers of writes that are neither pending nor completed tell of data files, and so do those that
name files which their commit does not list: they are not for here but for `strays.sweep_strays`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import tzinfo

from lakewright.clock import Clock, zone_of
from lakewright.errors import InvalidError
from lakewright.model.instant import WRITE_ACTIONS, Action, is_time, parse_time
from lakewright.model.timeline import Timeline
from lakewright.storage.base import FileStatus, Storage
from lakewright.table.heartbeat import FOLDER as HEARTBEATS
from lakewright.table.heartbeat import check_heartbeat, is_expired, live_heartbeats
from lakewright.table.markers import FOLDER as MARKERS
from lakewright.table.markers import SPILL, delete_markers
from lakewright.table.options import HeartbeatSettings, TransactionSettings
from lakewright.table.orphan_files import delete_orphan_files, find_orphan_files
from lakewright.table.rollback import (
    CompletedConcurrentlyError,
    failed_writes,
    load_rollback,
    resume_rollbacks,
    rollback_locked,
)
from lakewright.table.snapshot import Snapshot, load_snapshot
from lakewright.table.time_generator import TimeGenerator

# The digits of a local time are off by an hour where clocks are set for winter, and clocks differ.
_UNSURE_MS = 2 * 3_600_000


@dataclass(frozen=True, slots=True)
class TemporaryFiles:
    """The files that come and go with writes, as storage lists them, and the folders of markers."""

    temporary: tuple[FileStatus, ...] = ()
    heartbeats: tuple[FileStatus, ...] = ()
    markers: tuple[FileStatus, ...] = ()
    marked: tuple[str, ...] = ()
    spilled: tuple[FileStatus, ...] = ()

    @classmethod
    def load(cls, storage: Storage) -> TemporaryFiles:
        """Those of a table now."""
        return cls(
            temporary=tuple(storage.list_temporary()),
            heartbeats=tuple(storage.list_files(HEARTBEATS)),
            markers=tuple(storage.list_tree(MARKERS)),
            marked=tuple(folder.rpartition("/")[2] for folder in storage.list_folders(MARKERS)),
            spilled=tuple(storage.list_tree(SPILL)),
        )


@dataclass(frozen=True, slots=True)
class LeftoverFiles:
    """What is to be deleted: files by path, and all markers of some instants.

    `orphans` are instants with markers that tell of data files which are no part of their commit,
    `aging` those of which a task attempt may still be running.
    """

    files: tuple[str, ...] = ()
    marked: tuple[str, ...] = ()
    orphans: tuple[str, ...] = ()
    aging: tuple[str, ...] = ()


def select_leftovers(
    traces: TemporaryFiles,
    timeline: Timeline,
    now_ms: int,
    settings: HeartbeatSettings,
    *,
    archived: Collection[str] = (),
    zone: tzinfo,
) -> LeftoverFiles:
    """What of `traces` nobody can be using any more. Pure.

    Everything is as old as the heartbeat of a dead writer at least, and no pending write can have
    made it. `archived` are the requested times of archived writes.
    """
    check_heartbeat(settings)
    pending = {i.requested_at for i in timeline.pending()}
    old = [f for f in traces.heartbeats if is_expired(f.modified_ms, settings, now_ms)]
    heartbeats = [f.path for f in old if is_time(f.name) and f.name not in pending]
    begun_ms = _oldest_ms(pending, zone, now_ms)
    temporary = [
        f.path
        for f in traces.temporary
        if is_expired(f.modified_ms, settings, now_ms) and f.modified_ms < begun_ms
    ]
    rows = [
        f.path
        for f in traces.spilled
        if is_expired(f.modified_ms, settings, now_ms)
        and f.path.removeprefix(f"{SPILL}/").partition("/")[0] not in pending
    ]
    young = {
        f.path.removeprefix(f"{MARKERS}/").partition("/")[0]
        for f in traces.markers
        if not is_expired(f.modified_ms, settings, now_ms)
    }
    done = {i.requested_at for i in timeline.completed_writes}.union(archived) - pending - young
    marked = [at for at in traces.marked if at in done]
    return LeftoverFiles(tuple(sorted([*temporary, *heartbeats, *rows])), tuple(sorted(marked)))


def find_leftovers(storage: Storage, settings: HeartbeatSettings, clock: Clock) -> LeftoverFiles:
    """What of a table is needed no more.

    Traces are listed before the timeline: so each trace of a write that is pending is looked at
    with a timeline that shows the write.
    """
    traces = TemporaryFiles.load(storage)
    snapshot = load_snapshot(storage)
    # History is read only where there are markers from before the active timeline.
    old = [at for at in traces.marked if snapshot.timeline.is_archived(at)]
    dead = select_leftovers(
        traces,
        snapshot.timeline,
        clock.now_ms(),
        settings,
        archived=snapshot.archived_times if old else (),
        zone=zone_of(snapshot.config.timeline_zone),
    )
    orphans = find_orphan_files(snapshot, settings, clock.now_ms())
    harmless = {each.instant for each in orphans if not each.files}
    return replace(
        dead,
        marked=tuple(at for at in dead.marked if at in harmless),
        orphans=tuple(each.instant for each in orphans if each.files and each.is_expired),
        aging=tuple(each.instant for each in orphans if each.files and not each.is_expired),
    )


def delete_leftovers(storage: Storage, dead: LeftoverFiles) -> None:
    """Delete what was found to be left over, but strays; may be repeated, and needs no lock."""
    storage.delete_many(dead.files)
    for instant in dead.marked:
        delete_markers(storage, instant)


def _oldest_ms(pending: Iterable[str], zone: tzinfo, now_ms: int) -> int:
    """A time before which no pending write had begun."""
    oldest = min(pending, default=None)
    if oldest is None:
        return now_ms
    try:
        return int(parse_time(oldest, zone).timestamp() * 1000) - _UNSURE_MS
    except InvalidError:
        return 0  # no date, which tells nothing


# ------------------------------------------------------------------------------------------------
# What a writer puts right before it begins: the writes and rollbacks of writers that died.


def rollback_failed_writes(
    snapshot: Snapshot,
    transaction: TransactionSettings,
    heartbeat: HeartbeatSettings,
    times: TimeGenerator,
    clock: Clock,
) -> Snapshot:
    """The table after what dead writers left is rolled back; the caller holds the table's lock.

    One listing of the folder of markers while nothing is pending and nothing was rolled back.
    """
    snapshot = _rollback_each(snapshot, transaction, heartbeat, times, clock)
    # Task attempts may have gone on after their write was completed, aborted or rolled back.
    return snapshot.with_unlisted_files(delete_orphan_files(snapshot, heartbeat, clock.now_ms()))


def _rollback_each(
    snapshot: Snapshot,
    transaction: TransactionSettings,
    heartbeat: HeartbeatSettings,
    times: TimeGenerator,
    clock: Clock,
) -> Snapshot:
    if any(i.action == "rollback" for i in snapshot.timeline) and delete_late_completed_files(
        snapshot
    ):
        snapshot = load_snapshot(snapshot.storage)
    pending = snapshot.timeline.pending(Action.ROLLBACK, *WRITE_ACTIONS)
    if not pending:
        return snapshot
    storage, by_markers = snapshot.storage, transaction.rollback_by_markers
    # A plan that is being executed may have been asked to stop, by a rollback.
    begun = {i.requested_at for i in snapshot.timeline.pending()}
    living = live_heartbeats(storage, begun, heartbeat, clock.now_ms())
    if any(i.action == "rollback" and i.requested_at not in living for i in pending):
        resume_rollbacks(snapshot, times, clock, by_markers=by_markers, alive=living)
        snapshot = load_snapshot(storage)
    failed = failed_writes(snapshot.timeline, transaction.failed_writes, living)
    for target in failed:
        with suppress(CompletedConcurrentlyError):
            rollback_locked(snapshot, target, times, clock, by_markers=by_markers)
    return load_snapshot(storage) if failed else snapshot


def delete_late_completed_files(snapshot: Snapshot) -> bool:
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
        for rollback in timeline.completed(Action.ROLLBACK)
        if rollback.requested_at > bare[0].requested_at
        for ref in load_rollback(snapshot, rollback).instants
    }
    late = [i for i in bare if (i.requested_at, i.action) in gone]
    snapshot.storage.delete_many(snapshot.timeline_path(instant) for instant in late)
    return bool(late)
