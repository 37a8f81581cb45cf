"""What the checks of an examination work on: the files and the timeline of a table, loaded once.

Data files are listed before the timeline. A write creates its instant before its first file, and a
rollback deletes the instant after the last file, so the timeline has the instant of every listed
file. Each timeline file is parsed separately, so that a damaged one does not hide the others.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain

from lakewright.clock import Clock
from lakewright.errors import CorruptError, LakewrightError, UnsupportedError
from lakewright.model.commit_metadata import CommitMetadata
from lakewright.model.file_group import (
    PARTITION_METADATA,
    BaseFile,
    GroupKey,
    LogFile,
    parse_data_file,
)
from lakewright.model.instant import Instant, parse_instant
from lakewright.model.table_config import META_FOLDER, TableConfig
from lakewright.storage.base import FileStatus, IgnoredEntry, Storage, join_path, split_path
from lakewright.table.archived_timeline import load_entries
from lakewright.table.cleaned_files import files_being_cleaned, files_of_slice
from lakewright.table.damaged_commits import parse_completed
from lakewright.table.doctor.damaged_timeline import DamagedFile, find_damaged
from lakewright.table.failed_writes import LeftoverFiles, find_leftovers
from lakewright.table.heartbeat import last_heartbeats
from lakewright.table.locks.file_lock import lock_file_path
from lakewright.table.markers import marker_folder
from lakewright.table.options import HeartbeatSettings, LockSettings
from lakewright.table.properties import BACKUP, METADATA_FOLDER, read_optional
from lakewright.table.snapshot import FilesByPartition, Snapshot, data_folders, load_snapshot


def readable_commits(snapshot: Snapshot) -> dict[str, CommitMetadata]:
    """Return the commit metadata of completed writes by instant, as far as it can be read."""
    commits: dict[str, CommitMetadata] = {}
    for instant in snapshot.timeline.completed_writes:
        data = read_optional(snapshot.storage, snapshot.timeline_path(instant))
        if data is not None:  # else it was archived or rolled back since
            with suppress(CorruptError, UnsupportedError):
                commits[instant.requested_at] = parse_completed(instant.action, data)
    return commits


def data_file(status: FileStatus) -> BaseFile | LogFile | None:
    """Return a listed file as a data file; None if its name is not that of one."""
    try:
        return parse_data_file(status.name, status.size)
    except (CorruptError, UnsupportedError):
        return None


@dataclass(frozen=True)
class Evidence:
    """The files and the timeline of a table at the time of an examination.

    - `damaged`: timeline files that cannot be read;
    - `archived`: the requested times on the archived timeline, None if it cannot be read, for the
      reason `history_damage`;
    - `invalid_slices`: why the data files do not form file slices, if they do not;
    - `last_activity_ms`: by pending instant, when one of its files last changed;
    - `unlisted`: by instant, data files of completed writes that their commits do not list;
    - `missing`, `empty`: files that a query reads and that do not exist, or have no content;
    - `metadata`: the completed instants of the metadata table, None if there is none.
    """

    now_ms: int
    config: TableConfig
    heartbeat: HeartbeatSettings
    snapshot: Snapshot
    files: tuple[FileStatus, ...] = ()
    timeline_files: tuple[FileStatus, ...] = ()
    commits: Mapping[str, CommitMetadata] = field(default_factory=dict)
    damaged: tuple[DamagedFile, ...] = ()
    archived: frozenset[str] | None = frozenset()
    history_damage: LakewrightError | None = None
    invalid_slices: CorruptError | None = None
    heartbeats_ms: Mapping[str, int] = field(default_factory=dict)
    last_activity_ms: Mapping[str, int] = field(default_factory=dict)
    replaced: frozenset[GroupKey] = frozenset()
    unlisted: Mapping[str, tuple[FileStatus, ...]] = field(default_factory=dict)
    missing: tuple[str, ...] = ()
    empty: tuple[str, ...] = ()
    metadata: tuple[Instant, ...] | None = None
    leftovers: LeftoverFiles = field(default_factory=LeftoverFiles)
    has_backup: bool = False
    lock: FileStatus | None = None
    ignored: tuple[IgnoredEntry, ...] = ()


def load_evidence(
    storage: Storage, clock: Clock, heartbeat: HeartbeatSettings, lock: LockSettings
) -> Evidence:
    """Load the evidence of a table whose properties can be read."""
    listed = chain(storage.list_files(""), *map(storage.list_tree, data_folders(storage)))
    files = tuple(sorted(listed, key=lambda file: file.path))
    snapshot = load_snapshot(storage)
    timeline_files = tuple(storage.list_files(snapshot.config.timeline_folder))
    commits, damaged = readable_commits(snapshot), find_damaged(snapshot)
    archived, history_damage = _archived_times(snapshot)
    timeline_readable = (
        all(file_damage.harmless for file_damage in damaged) and archived is not None
    )
    unlisted = _unlisted_files(commits, files)
    unlisted_paths = {file.path for of_write in unlisted.values() for file in of_write}
    rest = [file for file in files if file.path not in unlisted_paths]
    missing, empty, slice_damage = (
        _missing_and_empty(snapshot, commits, rest) if timeline_readable else ((), (), None)
    )
    return Evidence(
        now_ms=clock.now_ms(),
        config=snapshot.config,
        heartbeat=heartbeat,
        snapshot=snapshot,
        files=files,
        timeline_files=timeline_files,
        commits=commits,
        damaged=damaged,
        archived=archived,
        history_damage=history_damage,
        invalid_slices=slice_damage,
        heartbeats_ms=last_heartbeats(storage),
        last_activity_ms=_last_activity(snapshot, timeline_files),
        replaced=_replaced_groups(commits.values()),
        unlisted=unlisted,
        missing=missing,
        empty=empty,
        metadata=_metadata_instants(storage),
        leftovers=find_leftovers(storage, heartbeat, clock)
        if timeline_readable
        else LeftoverFiles(),
        has_backup=storage.exists(BACKUP),
        lock=storage.status(lock_file_path(storage, lock)),
        ignored=tuple(storage.list_ignored()),
    )


def _archived_times(
    snapshot: Snapshot,
) -> tuple[frozenset[str], None] | tuple[None, LakewrightError]:
    """Return the requested times on the archived timeline, or why it cannot be read.

    Instants that were rolled back are not among them.
    """
    try:
        entries = load_entries(snapshot.storage, snapshot.config.history_folder)
    except (CorruptError, UnsupportedError) as error:
        return None, error
    return frozenset(entry.requested_at for entry in entries), None


def _last_activity(snapshot: Snapshot, files: Iterable[FileStatus]) -> dict[str, int]:
    pending = {i.requested_at for i in snapshot.timeline.pending()}
    last_ms: dict[str, int] = {}
    marked = (file for at in pending for file in snapshot.storage.list_tree(marker_folder(at)))
    changed = [(_requested_time(file.name), file) for file in files]
    changed += [
        (file.path.removeprefix(marker_folder("")).partition("/")[0], file) for file in marked
    ]
    for at, file in changed:
        if at in pending:
            last_ms[at] = max(last_ms.get(at, 0), file.modified_ms)
    return last_ms


def _requested_time(name: str) -> str:
    instant = _instant_or_none(name)
    return instant.requested_at if instant is not None else ""


def _instant_or_none(name: str) -> Instant | None:
    try:
        return parse_instant(name)
    except UnsupportedError:
        return None


def _replaced_groups(commits: Iterable[CommitMetadata]) -> frozenset[GroupKey]:
    return frozenset(
        (partition, file_id)
        for commit in commits
        for partition, file_ids in commit.replaced.items()
        for file_id in file_ids
    )


def _unlisted_files(
    commits: Mapping[str, CommitMetadata], files: Iterable[FileStatus]
) -> dict[str, tuple[FileStatus, ...]]:
    """Return data files of completed writes on the active timeline that no commit lists."""
    names = {at: commit.referenced_file_names() for at, commit in commits.items()}
    unlisted: dict[str, tuple[FileStatus, ...]] = {}
    for status in files:
        file = data_file(status)
        if file is not None and status.name not in names.get(file.instant, {status.name}):
            unlisted[file.instant] = (*unlisted.get(file.instant, ()), status)
    return unlisted


def _missing_and_empty(
    first: Snapshot, commits: Mapping[str, CommitMetadata], files: Iterable[FileStatus]
) -> tuple[tuple[str, ...], tuple[str, ...], CorruptError | None]:
    """Return the missing and the empty files that a query reads, or why they are unknown."""
    try:
        return *_missing_in_both_listings(first, commits, files), None
    except CorruptError as error:
        return (), (), error


def _missing_in_both_listings(
    first: Snapshot, commits: Mapping[str, CommitMetadata], files: Iterable[FileStatus]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the files that are missing, and those that are empty, in two successive listings.

    With one listing, a commit or a clean that completes between listing the files and loading the
    timeline would look like a loss.
    """
    suspects = _missing_in(first, commits.values(), _by_partition(files))
    partitions = sorted({split_path(path)[0] for paths in suspects for path in paths})
    if not partitions:
        return (), ()
    second = load_snapshot(first.storage)
    missing, empty = _missing_in(
        second, readable_commits(second).values(), second.files(partitions)
    )
    return tuple(sorted(suspects[0] & missing)), tuple(sorted(suspects[1] & empty))


def _by_partition(files: Iterable[FileStatus]) -> dict[str, list[BaseFile | LogFile]]:
    """Return the data files of the folders that readers recognize as partitions."""
    by_folder: dict[str, list[BaseFile | LogFile]] = {}
    marked = set()
    for status in files:
        folder, name = split_path(status.path)
        if name.startswith(PARTITION_METADATA):
            marked.add(folder)
        elif file := data_file(status):
            by_folder.setdefault(folder, []).append(file)
    return {folder: by_folder.get(folder, []) for folder in sorted(marked)}


def _missing_in(
    snapshot: Snapshot, commits: Iterable[CommitMetadata], listed: FilesByPartition
) -> tuple[set[str], set[str]]:
    """Return the files of listed partitions that a query reads: missing ones, and empty ones."""
    sizes = {join_path(p, file.name): file.size for p, files in listed.items() for file in files}
    by_name: dict[str, dict[str, BaseFile | LogFile]] = {
        partition: {file.name: file for file in files} for partition, files in listed.items()
    }
    for stat in (stat for commit in commits for stat in commit.write_stats()):
        partition, name = split_path(stat.path or "")
        file = parse_data_file(name) if name else None
        # Files in a folder that is not a partition are reported by another check.
        if file is not None and partition in by_name:
            by_name[partition].setdefault(name, file)
    being_cleaned = files_being_cleaned(snapshot)
    by_partition = {partition: [*files.values()] for partition, files in by_name.items()}
    needed = {
        file_slice.path(file)
        for group in snapshot.groups(snapshot.view(), by_partition)
        for file_slice in [group.latest_merged_slice()]
        for file in files_of_slice(file_slice)
        if file.name not in being_cleaned.get(file_slice.partition, ())
    }
    return needed - sizes.keys(), {path for path in needed if sizes.get(path) == 0}


def _metadata_instants(storage: Storage) -> tuple[Instant, ...] | None:
    names = [f.name for f in storage.list_files(f"{METADATA_FOLDER}/{META_FOLDER}/timeline")]
    if not names:
        return None
    return tuple(i for i in map(_instant_or_none, names) if i is not None and i.is_completed)
