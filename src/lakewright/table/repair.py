"""What a writer puts right before it begins: the writes and rollbacks of writers that died."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Iterator
from contextlib import suppress
from enum import Enum, auto

from lakewright.clock import Clock
from lakewright.core.commits import WriteStat
from lakewright.core.instant import WRITE_ACTIONS, is_time
from lakewright.errors import CorruptError
from lakewright.storage.base import split_path
from lakewright.table.heartbeat import alive
from lakewright.table.markers import FOLDER as MARKERS
from lakewright.table.markers import delete_markers, marked_files
from lakewright.table.meanwhile import latest_time
from lakewright.table.rollback import (
    CompletedMeanwhileError,
    failed_writes,
    load_rollback,
    resume_rollbacks,
    run_rollback,
)
from lakewright.table.settings import HeartbeatSettings, TransactionSettings
from lakewright.table.snapshot import Snapshot, load_snapshot
from lakewright.table.times import TimeSource


def repaired(
    snapshot: Snapshot,
    transaction: TransactionSettings,
    heartbeat: HeartbeatSettings,
    times: TimeSource,
    clock: Clock,
) -> Snapshot:
    """The table after what dead writers left is rolled back; the caller holds the table's lock.

    Nothing is asked of storage while nothing is pending and nothing was rolled back lately.
    """
    # Who was taken for dead and rolled back may have gone on writing. A rollback that is resumed
    # deletes the markers of a target that is gone, so this comes first.
    if any(i.action == "rollback" for i in snapshot.timeline):
        remove_strays(snapshot)
        if hide_late(snapshot):
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


def remove_strays(snapshot: Snapshot, only: Collection[str] | None = None) -> None:
    """Delete data files that belong to no write, and their markers; the lock is the caller's.

    A task that goes on when its write was withdrawn or rolled back leaves a marker and a file. A
    file that is older than the active timeline counts as committed, so this is to be called before
    archiving moves its beginning. A task that was given up for lost, and went on when its write
    completed, leaves the same, and its file counts at once. Of all instants, or `only` of these.
    """
    storage = snapshot.storage
    for folder in storage.list_folders(MARKERS):
        at = folder.rpartition("/")[2]
        verdict = _verdict(snapshot, at)
        if verdict is _Verdict.LEAVE or (only is not None and at not in only):
            continue
        try:
            stray = verdict is _Verdict.STRAY
            files = marked_files(storage, at) if stray else unlisted_files(snapshot, at)
        except CorruptError as error:
            warnings.warn(f"files of {at} may be left: {error}", RuntimeWarning, stacklevel=2)
            continue
        storage.delete_many(files)
        delete_markers(storage, at)


def unlisted_files(snapshot: Snapshot, at: str) -> tuple[str, ...]:
    """The files that a completed write has marked and its commit does not list.

    CorruptError where the commit or the markers do not tell.
    """
    write = snapshot.timeline.by_time.get(at)
    if write is None:
        write = next((i for i in snapshot.archived if i.requested_at == at), None)
    if write is None or not write.is_completed:
        raise CorruptError("markers of an instant that is no completed write", instant=at)
    (commit,) = snapshot.commits([write])
    listed = {name for stat in commit.write_stats() for name in _listed(stat)}
    marked = marked_files(snapshot.storage, at)
    return tuple(path for path in marked if split_path(path)[1] not in listed)


def _listed(stat: WriteStat) -> Iterator[str]:
    """All file names in a statistic, whatever they are there for."""
    for path in (stat.path, stat.base_file, *(stat.log_files or ()), *(stat.cdc_stats or ())):
        if path:
            yield split_path(path)[1]


class _Verdict(Enum):
    LEAVE = auto()
    DONE = auto()  # of a completed write: only what its commit does not list is a stray
    STRAY = auto()


def _verdict(snapshot: Snapshot, at: str) -> _Verdict:
    timeline = snapshot.timeline
    states = {i.is_completed for i in timeline if i.requested_at == at}
    # What is newer than the timeline has begun since it was listed.
    if False in states or at > latest_time(timeline) or not is_time(at):
        return _Verdict.LEAVE
    archived = timeline.is_archived(at) and at in snapshot.archived_times
    return _Verdict.DONE if states or archived else _Verdict.STRAY
