"""Completed timeline files that are empty or truncated, as a power cut leaves them.

The names of the data files still show what a damaged commit wrote: they contain its instant.
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
from lakewright.table.cleaned_files import slices_before_cleaning
from lakewright.table.instant_files import find_files
from lakewright.table.properties import read_optional
from lakewright.table.snapshot import Snapshot

_PARSERS: Mapping[str, Callable[[bytes], Any]] = {
    **dict.fromkeys(WRITE_ACTIONS, parse_commit),
    Action.CLEAN: parse_clean,
    Action.ROLLBACK: parse_rollback,
    Action.RESTORE: parse_restore,
    Action.SAVEPOINT: parse_savepoint,
    Action.INDEXING: parse_index_commit,
}
_OPERATION_BY_PLAN = {
    "compaction": "COMPACT",
    "logcompaction": "LOG_COMPACT",
    "clustering": "CLUSTER",
}


def parse_completed(action: Action, data: bytes) -> Any:
    """Parse a completed timeline file; CorruptError if it is empty or truncated."""
    if not data:
        raise CorruptError("the file is empty")
    return _PARSERS[action](data)


def find_damage(snapshot: Snapshot, completed: Instant) -> str | None:
    """Return what is wrong with an instant's completed file; None if it is whole or missing."""
    data = read_optional(snapshot.storage, snapshot.timeline_path(completed))
    if data is None:
        return None
    try:
        parse_completed(completed.action, data)
    except CorruptError as error:
        return error.message
    return None


def require_readable(snapshot: Snapshot, write: Instant) -> None:
    """Raise CorruptError, with the ways out, for a completed write whose file is damaged."""
    damage = find_damage(snapshot, write) if write.is_completed else None
    if damage is not None:
        raise CorruptError(
            f"the completed file of this write is damaged: {damage}. Restore it from a copy; "
            "or force the rollback, which loses the rows of this write",
            instant=str(write),
            file=snapshot.timeline_path(write),
        )


def with_commits_from_file_names(snapshot: Snapshot, target: Instant) -> Snapshot:
    """Return a snapshot that describes damaged commits by the names of their data files.

    Which file groups a replace commit replaced is not in any file name. For `target`, which is to
    be rolled back, the worst is assumed: that it replaced every file group, unless its plan says
    which.
    """
    timeline = snapshot.timeline
    damaged = [i for i in timeline.completed_writes if find_damage(snapshot, i) is not None]
    if not damaged:
        return snapshot
    files = find_files(snapshot.storage, {i.requested_at for i in damaged})
    described = snapshot
    for instant in damaged:
        at = instant.requested_at
        operation = _OPERATION_BY_PLAN.get(timeline.plans.get(at, ""))
        described = described.with_write(timeline, at, _metadata_from_paths(files[at], operation))
    if target in damaged and target.action == Action.REPLACE_COMMIT:
        (written,) = described.commits([target])
        replaced = _file_ids_by_partition(_possibly_replaced(described, target))
        commit = CommitMetadata(stats=written.stats, operation=written.operation, replaced=replaced)
        described = described.with_write(timeline, target.requested_at, commit)
    return described


def _metadata_from_paths(paths: Iterable[str], operation: str | None) -> CommitMetadata:
    stats: dict[str, tuple[WriteStat, ...]] = {}
    for path in paths:
        partition, name = split_path(path)
        file = parse_data_file(name)
        if file is not None:
            stat = WriteStat(file_id=file.file_id, path=path, partition_path=partition)
            stats[partition] = (*stats.get(partition, ()), stat)
    return CommitMetadata(stats=stats, operation=operation)


def _possibly_replaced(snapshot: Snapshot, target: Instant) -> frozenset[GroupKey]:
    at = target.requested_at
    if snapshot.timeline.plans.get(at) == Action.CLUSTERING:
        try:
            plan = snapshot.plan_of(at, Action.CLUSTERING)
        except CorruptError:
            plan = None
        if plan is not None:
            return plan.file_groups
    remaining = Timeline(tuple(i for i in snapshot.timeline if i != target))
    slices, _ = slices_before_cleaning(snapshot, TimelineView(remaining), since=at)
    return frozenset((file_slice.partition, file_slice.file_id) for file_slice in slices)


def _file_ids_by_partition(groups: Iterable[GroupKey]) -> dict[str, tuple[str, ...]]:
    file_ids: dict[str, tuple[str, ...]] = {}
    for partition, file_id in sorted(groups):
        file_ids[partition] = (*file_ids.get(partition, ()), file_id)
    return file_ids
