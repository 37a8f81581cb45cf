"""Cleaning up after crashed processes: leftover files, failed writes and interrupted rollbacks.

The first section finds files that crashed processes leave and that no rollback deletes, decides
which of them no process can need any more, and deletes these:

- temporary files, which local disks and HDFS have: a process was killed while it wrote one;
- heartbeats of writes that are not pending: a process was killed right before a write began, or
  after the write had completed or been aborted;
- markers of completed writes: a process was killed right after the commit.

The second section is about orphan files: data files that no commit lists, left by task attempts
that outlived their write. Spark kills speculative attempts, and the tasks of an aborted job, some
time after the driver continues; a driver may have lost contact with an executor. If such an attempt
has announced a file by a marker and then created it, the attempt deletes the file itself as soon as
it finds that its write has finished. If it is killed before that, the marker names the file: the
next writer, a clean, archiving or `doctor` deletes the file, and the marker once it is old enough
that no attempt can be running. Until then readers skip the file (`Snapshot.unlisted_files`).

The third section is what a writer does before it begins: it rolls back the failed writes, and
completes the rollbacks, of crashed writers.
"""

from __future__ import annotations

import warnings
from collections.abc import Collection, Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import tzinfo

from lakewright.clock import Clock, zone_of
from lakewright.errors import CorruptError, InvalidError
from lakewright.model.instant import (
    WRITE_ACTIONS,
    Action,
    InstantTime,
    epoch_ms,
    is_time,
    parse_time,
)
from lakewright.model.timeline import Timeline
from lakewright.storage.base import FileStatus, Storage
from lakewright.table.conflicts import max_timeline_time
from lakewright.table.heartbeat import FOLDER as HEARTBEATS
from lakewright.table.heartbeat import (
    check_heartbeat,
    is_expired,
    live_heartbeats,
    storage_time_ms,
)
from lakewright.table.markers import FOLDER as MARKERS
from lakewright.table.markers import SPILL, delete_markers, marker_folder
from lakewright.table.options import HeartbeatSettings, TransactionSettings
from lakewright.table.rollback import (
    CompletedConcurrentlyError,
    failed_writes,
    load_rollback,
    resume_rollbacks,
    rollback_locked,
)
from lakewright.table.snapshot import Snapshot, load_snapshot
from lakewright.table.time_generator import TimeGenerator

# The digits of a local time are off by an hour where clocks are set back for winter, and clocks
# differ.
_CLOCK_TOLERANCE_MS = 2 * 3_600_000


@dataclass(frozen=True, slots=True)
class TemporaryFiles:
    """The files that exist only while a write is running, and the instants with marker folders."""

    temporary: tuple[FileStatus, ...] = ()
    heartbeats: tuple[FileStatus, ...] = ()
    markers: tuple[FileStatus, ...] = ()
    marked: tuple[str, ...] = ()
    spilled: tuple[FileStatus, ...] = ()

    @classmethod
    def load(cls, storage: Storage) -> TemporaryFiles:
        """List the temporary files of a table now."""
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

    `orphans` are instants with markers for data files that are not part of their commit,
    `recent_orphans` those with a task attempt that may still be running.
    """

    files: tuple[str, ...] = ()
    marked: tuple[str, ...] = ()
    orphans: tuple[str, ...] = ()
    recent_orphans: tuple[str, ...] = ()


def select_leftovers(
    temporary_files: TemporaryFiles,
    timeline: Timeline,
    now_ms: int,
    settings: HeartbeatSettings,
    *,
    archived: Collection[str] = (),
    zone: tzinfo,
) -> LeftoverFiles:
    """Return those of `temporary_files` that no process can be using any more. Pure.

    Each of them is at least as old as an expired heartbeat, and no pending write can have created
    it. `archived` are the requested times of archived writes.
    """
    check_heartbeat(settings)
    pending = {i.requested_at for i in timeline.pending()}
    expired = [f for f in temporary_files.heartbeats if is_expired(f.modified_ms, settings, now_ms)]
    heartbeats = [f.path for f in expired if is_time(f.name) and f.name not in pending]
    earliest_start_ms = _earliest_start_ms(pending, zone, now_ms)
    temporary = [
        f.path
        for f in temporary_files.temporary
        if is_expired(f.modified_ms, settings, now_ms) and f.modified_ms < earliest_start_ms
    ]
    spilled = [
        f.path
        for f in temporary_files.spilled
        if is_expired(f.modified_ms, settings, now_ms)
        and f.path.removeprefix(f"{SPILL}/").partition("/")[0] not in pending
    ]
    recently_marked = {
        f.path.removeprefix(f"{MARKERS}/").partition("/")[0]
        for f in temporary_files.markers
        if not is_expired(f.modified_ms, settings, now_ms)
    }
    finished = (
        {i.requested_at for i in timeline.completed_writes}.union(archived)
        - pending
        - recently_marked
    )
    marked = [at for at in temporary_files.marked if at in finished]
    return LeftoverFiles(tuple(sorted([*temporary, *heartbeats, *spilled])), tuple(sorted(marked)))


def find_leftovers(
    storage: Storage, settings: HeartbeatSettings, clock: Clock, *, check_clock: bool = False
) -> LeftoverFiles:
    """Return what a table does not need any more.

    Temporary files are listed before the timeline: so each file of a pending write is checked
    against a timeline that shows the write. `check_clock` is as in `live_heartbeats`.
    """
    temporary = TemporaryFiles.load(storage)
    snapshot = load_snapshot(storage)
    leftovers = _leftovers_at(snapshot, temporary, settings, clock.now_ms())
    if not check_clock or leftovers == LeftoverFiles():
        return leftovers
    storage_ms = storage_time_ms(storage)
    if storage_ms is None:
        return LeftoverFiles()
    return _leftovers_at(snapshot, temporary, settings, min(storage_ms, clock.now_ms()))


def _leftovers_at(
    snapshot: Snapshot, temporary: TemporaryFiles, settings: HeartbeatSettings, now_ms: int
) -> LeftoverFiles:
    # The archived timeline is read only if there are markers from before the active timeline.
    before_active = [at for at in temporary.marked if snapshot.timeline.is_archived(at)]
    leftovers = select_leftovers(
        temporary,
        snapshot.timeline,
        now_ms,
        settings,
        archived=snapshot.archived_completions(before_active),
        zone=zone_of(snapshot.config.timeline_zone),
    )
    orphans = find_orphan_files(snapshot, settings, now_ms)
    without_files = {orphan.instant for orphan in orphans if not orphan.files}
    return replace(
        leftovers,
        marked=tuple(at for at in leftovers.marked if at in without_files),
        orphans=tuple(orphan.instant for orphan in orphans if orphan.files and orphan.is_expired),
        recent_orphans=tuple(
            orphan.instant for orphan in orphans if orphan.files and not orphan.is_expired
        ),
    )


def delete_leftovers(storage: Storage, leftovers: LeftoverFiles) -> None:
    """Delete leftover files, except orphan files; may be repeated, and needs no lock."""
    storage.delete_many(leftovers.files)
    for instant in leftovers.marked:
        delete_markers(storage, instant)


def delete_dead_heartbeats(storage: Storage, settings: HeartbeatSettings, clock: Clock) -> None:
    """Delete the expired heartbeats of writes that are not pending; needs no lock.

    Like other leftover files they are listed before the timeline, which is read only if there is
    an expired one.
    """
    listed = TemporaryFiles(heartbeats=tuple(storage.list_files(HEARTBEATS)))
    if any(is_expired(f.modified_ms, settings, clock.now_ms()) for f in listed.heartbeats):
        snapshot = load_snapshot(storage)
        zone = zone_of(snapshot.config.timeline_zone)
        leftovers = select_leftovers(listed, snapshot.timeline, clock.now_ms(), settings, zone=zone)
        storage.delete_many(leftovers.files)


def _earliest_start_ms(pending: Iterable[str], zone: tzinfo, now_ms: int) -> int:
    """Return a time before which no pending write had started."""
    oldest = min(pending, default=None)
    if oldest is None:
        return now_ms
    try:
        return int(parse_time(oldest, zone).timestamp() * 1000) - _CLOCK_TOLERANCE_MS
    except InvalidError:
        return 0  # the time is no date: keep every temporary file


# Before a writer begins: the failed writes and interrupted rollbacks of crashed writers.


@dataclass(frozen=True, slots=True)
class OrphanFiles:
    """The files that the markers of a finished write name and its commit does not list."""

    instant: InstantTime
    markers: tuple[str, ...]
    files: tuple[str, ...]
    is_expired: bool
    """Whether no task attempt of the write can be running any more."""


def find_orphan_files(
    snapshot: Snapshot,
    settings: HeartbeatSettings,
    now_ms: int,
    only: Collection[str] | None = None,
) -> list[OrphanFiles]:
    """Return orphan files that markers of finished writes name, of all instants or of `only`."""
    orphans = []
    for folder in snapshot.storage.list_folders(MARKERS):
        at = folder.rpartition("/")[2]
        if only is not None and at not in only:
            continue
        if not _has_write_ended(snapshot, at):
            continue
        # The markers are listed before the files that they name: a marker created in between is not
        # deleted.
        markers = list(snapshot.storage.list_tree(marker_folder(at)))
        try:
            files = snapshot.unlisted_files_of(at)
        except CorruptError as error:
            warnings.warn(f"files of {at} may be left: {error}", RuntimeWarning, stacklevel=2)
            continue
        expired = _have_attempts_ended(snapshot, at, markers, settings, now_ms)
        orphans.append(OrphanFiles(at, tuple(file.path for file in markers), files, expired))
    return orphans


def delete_orphan_files(
    snapshot: Snapshot,
    settings: HeartbeatSettings,
    now_ms: int,
    only: Collection[str] | None = None,
) -> frozenset[str]:
    """Delete orphan files and expired markers; return the files. The caller holds the table's lock.

    The files may appear once more while their task attempts are running. A file that is older than
    the active timeline counts as committed, so this function has to be called before archiving
    moves the start of the active timeline.
    """
    storage = snapshot.storage
    orphans = find_orphan_files(snapshot, settings, now_ms, only)
    for orphan in orphans:
        if orphan.files:
            storage.delete_many(orphan.files)
        # Where the commit lists every marked file, a driver crashed before it could delete the
        # markers.
        if orphan.is_expired or not orphan.files:
            storage.delete_many(orphan.markers)
            storage.prune_folders(marker_folder(orphan.instant))
    return frozenset(path for orphan in orphans for path in orphan.files)


def _has_write_ended(snapshot: Snapshot, at: str) -> bool:
    """Whether the write of an instant was completed, aborted or rolled back."""
    timeline = snapshot.timeline
    # An instant that is newer than the timeline has started since the timeline was listed.
    if not is_time(at) or at > max_timeline_time(timeline):
        return False
    states = [i for i in timeline if i.requested_at == at]
    return all(i.is_completed for i in states) and (not states or at in timeline.by_time)


def _have_attempts_ended(
    snapshot: Snapshot,
    at: str,
    markers: list[FileStatus],
    settings: HeartbeatSettings,
    now_ms: int,
) -> bool:
    """Whether the write finished so long ago that none of its task attempts can be running.

    The end of a write renews the remaining markers. The driver may have crashed before that; then
    the completion time counts.
    """
    finished_ms = [file.modified_ms for file in markers]
    write = snapshot.timeline.by_time.get(at)
    if write is not None and write.completed_at:
        try:
            finished_ms.append(epoch_ms(write.completed_at, zone_of(snapshot.config.timeline_zone)))
        except InvalidError:
            return False
    return all(is_expired(ms, settings, now_ms) for ms in finished_ms)


def rollback_failed_writes(
    snapshot: Snapshot,
    transaction: TransactionSettings,
    heartbeat: HeartbeatSettings,
    times: TimeGenerator,
    clock: Clock,
) -> Snapshot:
    """Return the table after failed writes were rolled back; the caller holds the table's lock.

    Costs one listing of the marker folder while nothing is pending and nothing was rolled back.
    """
    snapshot = _rollback_all(snapshot, transaction, heartbeat, times, clock)
    # Task attempts may have continued after their write was completed, aborted or rolled back.
    return snapshot.with_unlisted_files(delete_orphan_files(snapshot, heartbeat, clock.now_ms()))


def _rollback_all(
    snapshot: Snapshot,
    transaction: TransactionSettings,
    heartbeat: HeartbeatSettings,
    times: TimeGenerator,
    clock: Clock,
) -> Snapshot:
    if any(i.action == Action.ROLLBACK for i in snapshot.timeline) and delete_late_completed_files(
        snapshot
    ):
        snapshot = load_snapshot(snapshot.storage)
    pending = snapshot.timeline.pending(Action.ROLLBACK, *WRITE_ACTIONS)
    if not pending:
        return snapshot
    storage, by_markers = snapshot.storage, transaction.rollback_by_markers
    # A rollback may ask a plan that is being executed to stop, so heartbeats of plans count as
    # well.
    pending_times = {i.requested_at for i in snapshot.timeline.pending()}
    live = live_heartbeats(storage, pending_times, heartbeat, clock.now_ms(), check_clock=True)
    if any(i.action == Action.ROLLBACK and i.requested_at not in live for i in pending):
        resume_rollbacks(snapshot, times, clock, by_markers=by_markers, alive=live)
        snapshot = load_snapshot(storage)
    failed = failed_writes(snapshot.timeline, transaction.failed_writes, live)
    for target in failed:
        with suppress(CompletedConcurrentlyError):
            rollback_locked(snapshot, target, times, clock, by_markers=by_markers)
    return load_snapshot(storage) if failed else snapshot


def delete_late_completed_files(snapshot: Snapshot) -> bool:
    """Delete completed files that appeared after their write was rolled back for good.

    A writer that pauses right before its last step, for longer than its lock and heartbeat are
    valid, deletes such a file itself when it continues, unless it crashes then. The data files that
    the completed file lists are deleted, and the file groups that it replaces would be missing.
    """
    timeline = snapshot.timeline
    candidates = [
        i for i in timeline.completed_writes if i.requested_at in timeline.without_pending_files
    ]
    if not candidates:
        return False
    rolled_back = {
        (ref.requested_at, ref.action)
        for rollback in timeline.completed(Action.ROLLBACK)
        if rollback.requested_at > candidates[0].requested_at
        for ref in load_rollback(snapshot, rollback).instants
    }
    late = [i for i in candidates if (i.requested_at, i.action) in rolled_back]
    snapshot.storage.delete_many(snapshot.timeline_path(instant) for instant in late)
    return bool(late)
