"""Deleting an instant from the table: the part that rollbacks and restores have in common."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace

from lakewright.errors import ConflictError, CorruptError, UnsupportedError
from lakewright.format.timeline_metadata import format_requested_replace
from lakewright.model.commit_metadata import RollbackMetadata, RolledBackPartition
from lakewright.model.file_group import BaseFile, LogFile, parse_data_file
from lakewright.model.instant import REWRITES, Action, Instant, InstantTime, State
from lakewright.model.plans import InstantRef, RequestedReplace
from lakewright.storage.base import FileStatus, Storage, map_in_threads, split_path
from lakewright.table.heartbeat import FOLDER as HEARTBEATS
from lakewright.table.markers import finish_markers, spill_folder
from lakewright.table.properties import read_optional
from lakewright.table.snapshot import Snapshot, data_folders, list_timeline

# The requested time and the action under which the instant completes.
ActionKey = tuple[InstantTime, str]


def absolute_path(storage: Storage, path: str) -> str:
    """Return a path as Hudi writes it in rollbacks: absolute, without scheme on a local disk."""
    return storage.url(path).removeprefix("file://")


def action_key(instant: Instant | InstantRef) -> ActionKey:
    """Return what all timeline files of one action have in common, whatever their state."""
    action = instant.action
    return instant.requested_at, Action(action).completed_as if action in REWRITES else action


def timeline_files(snapshot: Snapshot) -> dict[ActionKey, list[Instant]]:
    """List the timeline files of every action now, including the earlier states."""
    files: dict[ActionKey, list[Instant]] = {}
    for instant in list_timeline(snapshot.storage, snapshot.config):
        files.setdefault(action_key(instant), []).append(instant)
    return files


def find_files(
    storage: Storage, instants: Collection[str], partitions: Iterable[str] | None = None
) -> dict[str, tuple[str, ...]]:
    """Return the data files that have each of these instants in their names, sorted by path.

    Without `partitions` the whole table is searched, including folders that readers do not take for
    a partition yet: a file that a crashed writer left there would become visible with the next
    write.
    """
    paths_by_instant: dict[str, list[str]] = {at: [] for at in instants}
    for status in _list_files(storage, partitions):
        file = _parse_name(status.name)
        if file is not None and file.instant in paths_by_instant:
            paths_by_instant[file.instant].append(status.path)
    return {at: tuple(sorted(paths)) for at, paths in paths_by_instant.items()}


def revert_to_pending(snapshot: Snapshot, states: Sequence[Instant]) -> None:
    """Make a completed instant pending again: from here on no reader sees what it wrote.

    Its pending files are created first if they are missing: an inflight write is the only sign for
    other processes, including real Hudi, that its data files do not belong to the table.
    """
    completed = [i for i in states if i.is_completed]
    if not completed:
        return
    if not any(i.state is State.INFLIGHT for i in states):
        requested = next((i for i in states if i.state is State.REQUESTED), None)
        action = requested.action if requested else completed[0].action
        if requested is None:
            _create_pending(
                snapshot, replace(completed[0], state=State.REQUESTED, completed_at=None)
            )
        _create_pending(snapshot, Instant(completed[0].requested_at, action, State.INFLIGHT))
    for instant in completed:
        snapshot.storage.delete(snapshot.timeline_path(instant))


def delete_instant(
    snapshot: Snapshot,
    requested_at: InstantTime,
    states: Sequence[Instant],
    files: Iterable[str],
    *,
    keep_plan: bool,
    markers: Sequence[FileStatus] | None = None,
) -> None:
    """Delete an instant that no reader sees: its data files, and only then what refers to them.

    With `keep_plan` a compaction or clustering stays scheduled. For `markers` see `finish_markers`.
    """
    storage = snapshot.storage
    storage.delete_many(files)
    # Where only the completed file existed, `revert_to_pending` created the others with its action.
    actions = {i.action for i in states if not i.is_completed} or {i.action for i in states}
    plan_actions = actions.intersection(REWRITES) if keep_plan else set()
    for state, deleted_actions in (
        (State.INFLIGHT, actions),
        (State.REQUESTED, actions - plan_actions),
    ):
        for action in sorted(deleted_actions):
            storage.delete(snapshot.timeline_path(Instant(requested_at, action, state)))
    # The sign that a plan is not to be executed goes last.
    for instant in states:
        if instant.state is State.ABORTED and not keep_plan:
            storage.delete(snapshot.timeline_path(instant))
    # A task that is still running may have written since the rollback was planned, or may write
    # after this.
    finish_markers(storage, requested_at, markers=markers)
    storage.unsynced().delete_folder(spill_folder(requested_at))
    storage.unsynced().delete(f"{HEARTBEATS}/{requested_at}")


def rollback_metadata(
    storage: Storage, started_at: str, target: InstantRef, files: Iterable[str], took_ms: int
) -> RollbackMetadata:
    """Return what a rollback records about itself."""
    deleted = by_partition(files)
    return RollbackMetadata(
        started_at=started_at,
        took_ms=took_ms,
        files_deleted=sum(map(len, deleted.values())),
        commits=(target.requested_at,),
        partitions={
            partition: RolledBackPartition(
                partition=partition, deleted=tuple(absolute_path(storage, p) for p in paths)
            )
            for partition, paths in deleted.items()
        },
        instants=(target,),
    )


def by_partition(paths: Iterable[str]) -> dict[str, list[str]]:
    """Group paths, relative to the table and sorted, by folder."""
    groups: dict[str, list[str]] = {}
    for path in sorted(paths):
        groups.setdefault(split_path(path)[0], []).append(path)
    return groups


def create_if_missing(storage: Storage, path: str, data: bytes) -> None:
    """Create a file that an earlier attempt of the same action may have created already."""
    with suppress(ConflictError):
        storage.create(path, data)


def try_create(
    storage: Storage, path: str, data: bytes, *, is_exclusive: Callable[[], bool] | None = None
) -> bool:
    """Create a file; return False if another process has created a file of this name.

    A file with this content counts as created: storage may refuse a request that it carried out
    before, since its first answer was lost. Where other processes create files with the same
    content, it counts only if `is_exclusive` returns that no other process can have created it.
    """
    try:
        storage.create(path, data)
    except ConflictError:
        if is_exclusive is not None and not is_exclusive():
            return False
        return read_optional(storage, path) == data
    return True


def _create_pending(snapshot: Snapshot, instant: Instant) -> None:
    # Real Hudi reads the plan of every pending replace commit: it accepts a record without a plan,
    # but not a file without a record.
    with_record = instant.action == Action.REPLACE_COMMIT and instant.state is State.REQUESTED
    data = format_requested_replace(RequestedReplace()) if with_record else b""
    create_if_missing(snapshot.storage, snapshot.timeline_path(instant), data)


def _list_files(storage: Storage, partitions: Iterable[str] | None) -> list[FileStatus]:
    if partitions is not None:
        listed = storage.list_many(dict.fromkeys(partitions))
        return [status for files in listed.values() for status in files]
    statuses = storage.list_files("")
    folders = data_folders(storage)
    for tree in map_in_threads(
        lambda folder: list(storage.list_tree(folder)), folders, storage.parallel_listings
    ):
        statuses += tree
    return statuses


def _parse_name(name: str) -> BaseFile | LogFile | None:
    # A foreign file has no instant of this table in its name; that it lies in the table is an error
    # for readers to report.
    with suppress(CorruptError, UnsupportedError):
        return parse_data_file(name)
    return None


def all_files_present(snapshot: Snapshot, completed: Instant) -> bool:
    """Whether all files of a completed write exist.

    A write that completed while it was being rolled back as a pending one may have lost some.
    """
    commits = snapshot.commits([completed])
    paths = {path for commit in commits for path in commit.files()}
    listed = snapshot.storage.list_many({split_path(path)[0] for path in paths})
    return paths <= {file.path for files in listed.values() for file in files}


def delete_late_completed(snapshot: Snapshot, target: InstantRef) -> None:
    """Delete the completed file that a writer created while its write was being rolled back."""
    for instant in timeline_files(snapshot).get(action_key(target), []):
        if instant.is_completed:
            snapshot.storage.delete(snapshot.timeline_path(instant))
