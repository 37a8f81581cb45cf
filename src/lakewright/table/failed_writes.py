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
from lakewright.model.instant import WRITE_ACTIONS, is_time, parse_time
from lakewright.model.timeline import Timeline
from lakewright.storage.base import FileStatus, Storage
from lakewright.table.heartbeat import FOLDER as HEARTBEATS
from lakewright.table.heartbeat import alive, check_heartbeat, is_expired
from lakewright.table.markers import FOLDER as MARKERS
from lakewright.table.markers import ROWS, delete_markers
from lakewright.table.options import HeartbeatSettings, TransactionSettings
from lakewright.table.orphan_files import find_strays, sweep_strays
from lakewright.table.rollback import (
    CompletedMeanwhileError,
    failed_writes,
    load_rollback,
    resume_rollbacks,
    run_rollback,
)
from lakewright.table.snapshot import Snapshot, load_snapshot
from lakewright.table.time_generator import TimeSource

# The digits of a local time are off by an hour where clocks are set for winter, and clocks differ.
_UNSURE_MS = 2 * 3_600_000


@dataclass(frozen=True, slots=True)
class Traces:
    """The files that come and go with writes, as storage lists them, and the folders of markers."""

    temporary: tuple[FileStatus, ...] = ()
    heartbeats: tuple[FileStatus, ...] = ()
    markers: tuple[FileStatus, ...] = ()
    marked: tuple[str, ...] = ()
    rows: tuple[FileStatus, ...] = ()

    @classmethod
    def of(cls, storage: Storage) -> Traces:
        """Those of a table now."""
        return cls(
            temporary=tuple(storage.list_temporary()),
            heartbeats=tuple(storage.list_files(HEARTBEATS)),
            markers=tuple(storage.list_tree(MARKERS)),
            marked=tuple(folder.rpartition("/")[2] for folder in storage.list_folders(MARKERS)),
            rows=tuple(storage.list_tree(ROWS)),
        )


@dataclass(frozen=True, slots=True)
class Leftovers:
    """What is to be deleted: files by path, and all markers of some instants.

    `strays` are instants with markers that tell of data files which are no part of their commit,
    `aging` those of which a task attempt may still be running.
    """

    files: tuple[str, ...] = ()
    marked: tuple[str, ...] = ()
    strays: tuple[str, ...] = ()
    aging: tuple[str, ...] = ()


def leftovers(
    traces: Traces,
    timeline: Timeline,
    now_ms: int,
    settings: HeartbeatSettings,
    *,
    archived: Collection[str] = (),
    zone: tzinfo,
) -> Leftovers:
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
        for f in traces.rows
        if is_expired(f.modified_ms, settings, now_ms)
        and f.path.removeprefix(f"{ROWS}/").partition("/")[0] not in pending
    ]
    young = {
        f.path.removeprefix(f"{MARKERS}/").partition("/")[0]
        for f in traces.markers
        if not is_expired(f.modified_ms, settings, now_ms)
    }
    done = {i.requested_at for i in timeline.completed_writes}.union(archived) - pending - young
    marked = [at for at in traces.marked if at in done]
    return Leftovers(tuple(sorted([*temporary, *heartbeats, *rows])), tuple(sorted(marked)))


def find_leftovers(storage: Storage, settings: HeartbeatSettings, clock: Clock) -> Leftovers:
    """What of a table is needed no more.

    Traces are listed before the timeline: so each trace of a write that is pending is looked at
    with a timeline that shows the write.
    """
    traces = Traces.of(storage)
    snapshot = load_snapshot(storage)
    # History is read only where there are markers from before the active timeline.
    old = [at for at in traces.marked if snapshot.timeline.is_archived(at)]
    dead = leftovers(
        traces,
        snapshot.timeline,
        clock.now_ms(),
        settings,
        archived=snapshot.archived_times if old else (),
        zone=zone_of(snapshot.config.timeline_zone),
    )
    strays = find_strays(snapshot, settings, clock.now_ms())
    harmless = {each.instant for each in strays if not each.files}
    return replace(
        dead,
        marked=tuple(at for at in dead.marked if at in harmless),
        strays=tuple(each.instant for each in strays if each.files and each.is_over),
        aging=tuple(each.instant for each in strays if each.files and not each.is_over),
    )


def sweep(storage: Storage, dead: Leftovers) -> None:
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
