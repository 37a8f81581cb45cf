"""Completed files of the timeline that are empty or cut off, as a power cut leaves them.

What a damaged commit wrote is still told by the names of its data files, which carry its instant.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from lakewright.errors import CorruptError
from lakewright.format.timeline_metadata import (
    parse_clean,
    parse_commit,
    parse_index_commit,
    parse_restore,
    parse_rollback,
    parse_savepoint,
)
from lakewright.model.commit_metadata import CommitMetadata, WriteStat
from lakewright.model.file_group import GroupKey, TimelineView, parse_data_file
from lakewright.model.instant import WRITE_ACTIONS, Action, Instant
from lakewright.model.timeline import Timeline
from lakewright.storage.base import split_path
from lakewright.table.instant_files import find_files
from lakewright.table.properties import read_optional
from lakewright.table.snapshot import Snapshot, slices_before_cleaning

_PARSERS: Mapping[str, Callable[[bytes], Any]] = {
    **dict.fromkeys(WRITE_ACTIONS, parse_commit),
    "clean": parse_clean,
    "rollback": parse_rollback,
    "restore": parse_restore,
    "savepoint": parse_savepoint,
    "indexing": parse_index_commit,
}
_OPERATIONS = {"compaction": "COMPACT", "logcompaction": "LOG_COMPACT", "clustering": "CLUSTER"}


def parse_completed(action: Action, data: bytes) -> Any:
    """What a completed file of the timeline says; CorruptError if it is empty or cut off."""
    if not data:
        raise CorruptError("the file is empty")
    return _PARSERS[action](data)


def find_damage(snapshot: Snapshot, completed: Instant) -> str | None:
    """What is wrong with the completed file of an instant; None if it is whole, or is gone."""
    data = read_optional(snapshot.storage, snapshot.timeline_path(completed))
    if data is None:
        return None
    try:
        parse_completed(completed.action, data)
    except CorruptError as error:
        return error.message
    return None


def require_readable(snapshot: Snapshot, write: Instant) -> None:
    """CorruptError that tells the way out, for a completed write whose file is damaged."""
    damage = find_damage(snapshot, write) if write.is_completed else None
    if damage is not None:
        raise CorruptError(
            f"the completed file of this write is damaged: {damage}. Bring it back from a copy; "
            "or force the rollback: the rows of this write are gone then",
            instant=str(write),
            file=snapshot.timeline_path(write),
        )


def with_commits_from_file_names(snapshot: Snapshot, target: Instant) -> Snapshot:
    """A snapshot that knows damaged commits by the names of their data files.

    Which file groups a replace commit took out is not in any name. Of `target`, which is to be
    rolled back, the worst is assumed: that it replaced every group, unless its plan tells which.
    """
    timeline = snapshot.timeline
    damaged = [i for i in timeline.completed_writes if find_damage(snapshot, i) is not None]
    if not damaged:
        return snapshot
    files = find_files(snapshot.storage, {i.requested_at for i in damaged})
    known = snapshot
    for instant in damaged:
        at = instant.requested_at
        operation = _OPERATIONS.get(timeline.plans.get(at, ""))
        known = known.with_write(timeline, at, _metadata_from_paths(files[at], operation))
    if target in damaged and target.action == "replacecommit":
        (told,) = known.commits([target])
        replaced = _grouped(_replaced_at_most(known, target))
        commit = CommitMetadata(stats=told.stats, operation=told.operation, replaced=replaced)
        known = known.with_write(timeline, target.requested_at, commit)
    return known


def _metadata_from_paths(paths: Iterable[str], operation: str | None) -> CommitMetadata:
    stats: dict[str, tuple[WriteStat, ...]] = {}
    for path in paths:
        partition, name = split_path(path)
        file = parse_data_file(name)
        if file is not None:
            stat = WriteStat(file_id=file.file_id, path=path, partition_path=partition)
            stats[partition] = (*stats.get(partition, ()), stat)
    return CommitMetadata(stats=stats, operation=operation)


def _replaced_at_most(snapshot: Snapshot, target: Instant) -> frozenset[GroupKey]:
    at = target.requested_at
    if snapshot.timeline.plans.get(at) == "clustering":
        try:
            plan = snapshot.plan_of(at, Action.CLUSTERING)
        except CorruptError:
            plan = None
        if plan is not None:
            return plan.file_groups
    rest = Timeline(tuple(i for i in snapshot.timeline if i != target))
    slices, _ = slices_before_cleaning(snapshot, TimelineView(rest), since=at)
    return frozenset((found.partition, found.file_id) for found in slices)


def _grouped(groups: Iterable[GroupKey]) -> dict[str, tuple[str, ...]]:
    found: dict[str, tuple[str, ...]] = {}
    for partition, file_id in sorted(groups):
        found[partition] = (*found.get(partition, ()), file_id)
    return found
