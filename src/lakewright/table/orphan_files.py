"""Stray files: data files that no commit lists, of task attempts that died after their write ended.

Spark kills speculative attempts, and the tasks of an aborted job, some time after the driver goes
on; a driver may have lost sight of an executor. What such an attempt announces by a marker and then
makes to appear, it deletes itself as soon as it finds that its write has ended. If it is killed
before that, the marker tells of the file: the next writer, a clean, archiving or `doctor` deletes
the file, and the marker once it is old enough that no attempt can be running. Until then readers
pass over the file (`Snapshot.unlisted_files`).
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
    """What the markers of a write that has ended name and its commit does not list."""

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
    """What the markers of ended writes tell: of all instants, or `only` of some."""
    found = []
    for folder in snapshot.storage.list_folders(MARKERS):
        at = folder.rpartition("/")[2]
        if only is not None and at not in only:
            continue
        if not _has_ended(snapshot, at):
            continue
        # Listed before the files that they name: a marker that appears in between is not deleted.
        markers = list(snapshot.storage.list_tree(marker_folder(at)))
        try:
            files = snapshot.unlisted_files_of(at)
        except CorruptError as error:
            warnings.warn(f"files of {at} may be left: {error}", RuntimeWarning, stacklevel=2)
            continue
        is_over = _is_expired(snapshot, at, markers, settings, now_ms)
        found.append(OrphanFiles(at, tuple(file.path for file in markers), files, is_over))
    return found


def delete_orphan_files(
    snapshot: Snapshot,
    settings: HeartbeatSettings,
    now_ms: int,
    only: Collection[str] | None = None,
) -> frozenset[str]:
    """Delete stray files, and markers once they are old enough; the caller holds the table's lock.

    Gives the files, which may appear once more while their task attempts run. One that is older
    than the active timeline counts as committed, so this is to be called before archiving moves its
    beginning.
    """
    storage = snapshot.storage
    found = find_orphan_files(snapshot, settings, now_ms, only)
    for each in found:
        if each.files:
            storage.delete_many(each.files)
        # Where nothing is unlisted, a driver died before it could delete the markers.
        if each.is_expired or not each.files:
            storage.delete_many(each.markers)
            storage.prune_folders(marker_folder(each.instant))
    return frozenset(path for each in found for path in each.files)


def _has_ended(snapshot: Snapshot, at: str) -> bool:
    """Whether the write of an instant was completed, aborted or rolled back."""
    timeline = snapshot.timeline
    # What is newer than the timeline has begun since it was listed.
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
    """Whether the write ended so long ago that none of its task attempts can be running.

    The end of a write renews the markers that stay. A driver may have died before that; then the
    completion time tells.
    """
    ended = [file.modified_ms for file in markers]
    write = snapshot.timeline.by_time.get(at)
    if write is not None and write.completed_at:
        try:
            ended.append(epoch_ms(write.completed_at, zone_of(snapshot.config.timeline_zone)))
        except InvalidError:
            return False
    return all(is_expired(ms, settings, now_ms) for ms in ended)
