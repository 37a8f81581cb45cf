"""Taking an instant off the table: what rollbacks and restores have in common."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace

from lakewright.errors import ConflictError, CorruptError, UnsupportedError
from lakewright.format.timeline_metadata import format_requested_replace
from lakewright.model.commit_metadata import RollbackMetadata, RolledBackPartition
from lakewright.model.file_group import BaseFile, LogFile, parse_data_file
from lakewright.model.instant import REWRITES, Action, Instant, InstantTime, State
from lakewright.model.plans import InstantRef, RequestedReplace
from lakewright.storage.base import FileStatus, Storage, map_in_threads, split_path
from lakewright.table.markers import finish_markers, spill_folder
from lakewright.table.snapshot import Snapshot, list_timeline

_HOODIE = ".hoodie"

# The requested time and the action under which the instant completes.
ActionKey = tuple[InstantTime, str]


def absolute_path(storage: Storage, path: str) -> str:
    """A path as real Hudi writes it in rollbacks: whole, and on a local disk without scheme."""
    return storage.url(path).removeprefix("file://")


def action_key(instant: Instant | InstantRef) -> ActionKey:
    """What the timeline files of one action have in common, whatever their state."""
    action = instant.action
    return instant.requested_at, Action(action).completed_as if action in REWRITES else action


def timeline_files(snapshot: Snapshot) -> dict[ActionKey, list[Instant]]:
    """The timeline files of every action as they are now, the lower states included."""
    found: dict[ActionKey, list[Instant]] = {}
    for instant in list_timeline(snapshot.storage, snapshot.config):
        found.setdefault(action_key(instant), []).append(instant)
    return found


def find_files(
    storage: Storage, instants: Collection[str], partitions: Iterable[str] | None = None
) -> dict[str, tuple[str, ...]]:
    """The data files that carry each of these instants in their names, sorted by path.

    Without `partitions` the whole table is searched, also folders that no reader takes for a
    partition yet: a file that a dead writer left there would come to light with the next write.
    """
    found: dict[str, list[str]] = {at: [] for at in instants}
    for status in _listed(storage, partitions):
        file = _data_file(status.name)
        if file is not None and file.instant in found:
            found[file.instant].append(status.path)
    return {at: tuple(sorted(paths)) for at, paths in found.items()}


def revert_to_pending(snapshot: Snapshot, states: Sequence[Instant]) -> None:
    """Make a completed instant pending again: from here on no reader sees what it wrote.

    Its pending files are made first if they are missing, as an inflight write is all that tells
    others, real Hudi too, that its data files do not belong to the table.
    """
    completed = [i for i in states if i.is_completed]
    if not completed:
        return
    if not any(i.state is State.INFLIGHT for i in states):
        requested = next((i for i in states if i.state is State.REQUESTED), None)
        action = requested.action if requested else completed[0].action
        if requested is None:
            _create(snapshot, replace(completed[0], state=State.REQUESTED, completed_at=None))
        _create(snapshot, Instant(completed[0].requested_at, action, State.INFLIGHT))
    for instant in completed:
        snapshot.storage.delete(snapshot.timeline_path(instant))


def delete_instant(
    snapshot: Snapshot,
    requested_at: InstantTime,
    states: Sequence[Instant],
    files: Iterable[str],
    *,
    keep_plan: bool,
) -> None:
    """Delete an instant that no reader sees: its data files, and only then what tells of them.

    With `keep_plan` a compaction or clustering stays scheduled.
    """
    storage = snapshot.storage
    storage.delete_many(files)
    # Where only the completed file existed, `revert_to_pending` created the others with its action.
    actions = {i.action for i in states if not i.is_completed} or {i.action for i in states}
    planned = actions.intersection(REWRITES) if keep_plan else set()
    for state, gone in ((State.INFLIGHT, actions), (State.REQUESTED, actions - planned)):
        for action in sorted(gone):
            storage.delete(snapshot.timeline_path(Instant(requested_at, action, state)))
    # A task that is still running may have written since the plan was made, or may after this.
    finish_markers(storage, requested_at)
    storage.unsynced().delete_folder(spill_folder(requested_at))
    storage.unsynced().delete(f"{_HOODIE}/.heartbeat/{requested_at}")


def rollback_metadata(
    storage: Storage, started_at: str, target: InstantRef, files: Iterable[str], took_ms: int
) -> RollbackMetadata:
    """What a rollback records about itself."""
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
    """Paths relative to the table, sorted, in groups of one folder."""
    groups: dict[str, list[str]] = {}
    for path in sorted(paths):
        groups.setdefault(split_path(path)[0], []).append(path)
    return groups


def create_if_missing(storage: Storage, path: str, data: bytes) -> None:
    """Create a file that an earlier attempt of the same action may have made already."""
    with suppress(ConflictError):
        storage.create(path, data)


def _create(snapshot: Snapshot, instant: Instant) -> None:
    # Real Hudi reads the plan of every pending replace commit, and takes "no plan" for an answer
    # but not "no record".
    with_record = instant.action == "replacecommit" and instant.state is State.REQUESTED
    data = format_requested_replace(RequestedReplace()) if with_record else b""
    create_if_missing(snapshot.storage, snapshot.timeline_path(instant), data)


def _listed(storage: Storage, partitions: Iterable[str] | None) -> list[FileStatus]:
    if partitions is not None:
        listed = storage.list_many(dict.fromkeys(partitions))
        return [status for files in listed.values() for status in files]
    folders = [folder for folder in storage.list_folders("") if folder != _HOODIE]
    statuses = storage.list_files("")
    for tree in map_in_threads(lambda folder: list(storage.list_tree(folder)), folders):
        statuses += tree
    return statuses


def _data_file(name: str) -> BaseFile | LogFile | None:
    # A file of somebody else carries no instant of ours; that it lies there is a matter of reading.
    with suppress(CorruptError, UnsupportedError):
        return parse_data_file(name)
    return None


def all_files_present(snapshot: Snapshot, completed: Instant) -> bool:
    """Whether all files of a completed write are there.

    One that completed while it was being rolled back as a pending one may have lost some.
    """
    commits = snapshot.commits([completed])
    paths = {path for commit in commits for path in commit.files()}
    listed = snapshot.storage.list_many({split_path(path)[0] for path in paths})
    return paths <= {file.path for files in listed.values() for file in files}


def delete_late_completed(snapshot: Snapshot, target: InstantRef) -> None:
    """Delete the completed file that a writer made as its write was being rolled back."""
    for instant in timeline_files(snapshot).get(action_key(target), []):
        if instant.is_completed:
            snapshot.storage.delete(snapshot.timeline_path(instant))
