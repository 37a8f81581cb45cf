"""Orphan files: data files that no commit lists, left by task attempts that outlived their write.

Spark kills speculative attempts, and the tasks of an aborted job, some time after the driver
continues; a driver may have lost contact with an executor. If such an attempt has announced a file
by a marker and then created it, the attempt deletes the file itself as soon as it finds that its
write has finished. If it is killed before that, the marker names the file: the next writer, a
clean, archiving or `doctor` deletes the file, and the marker once it is old enough that no attempt
can be running. Until then readers skip the file (`Snapshot.unlisted_files`).
"""

from __future__ import annotations

import warnings
from collections.abc import Collection
from dataclasses import dataclass

from lakewright.clock import zone_of
from lakewright.errors import CorruptError, InvalidError
from lakewright.model.instant import InstantTime, epoch_ms, is_time
from lakewright.storage.base import FileStatus
from lakewright.table.conflicts import max_timeline_time
from lakewright.table.heartbeat import is_expired
from lakewright.table.markers import FOLDER as MARKERS
from lakewright.table.markers import marker_folder
from lakewright.table.options import HeartbeatSettings
from lakewright.table.snapshot import Snapshot


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
        if not _has_finished(snapshot, at):
            continue
        # The markers are listed before the files that they name: a marker created in between is not
        # deleted.
        markers = list(snapshot.storage.list_tree(marker_folder(at)))
        try:
            files = snapshot.unlisted_files_of(at)
        except CorruptError as error:
            warnings.warn(f"files of {at} may be left: {error}", RuntimeWarning, stacklevel=2)
            continue
        expired = _is_expired(snapshot, at, markers, settings, now_ms)
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


def _has_finished(snapshot: Snapshot, at: str) -> bool:
    """Whether the write of an instant was completed, aborted or rolled back."""
    timeline = snapshot.timeline
    # An instant that is newer than the timeline has started since the timeline was listed.
    if not is_time(at) or at > max_timeline_time(timeline):
        return False
    states = [i for i in timeline if i.requested_at == at]
    return all(i.is_completed for i in states) and (not states or at in timeline.by_time)


def _is_expired(
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
