"""What an examination looks at, loaded once.

Data files are listed before the timeline: a write puts its instant there before its first file, and
a rollback takes it away after the last, so the instant of every file that was seen is seen as well.
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
from lakewright.model.table_config import TableConfig
from lakewright.storage.base import FileStatus, IgnoredEntry, Storage, join_path, split_path
from lakewright.table.archived_timeline import load_entries
from lakewright.table.damaged_commits import parse_completed
from lakewright.table.doctor.damaged_timeline import DamagedFile, find_damaged
from lakewright.table.failed_writes import LeftoverFiles, find_leftovers
from lakewright.table.heartbeat import last_heartbeats
from lakewright.table.markers import marker_folder
from lakewright.table.options import HeartbeatSettings
from lakewright.table.properties import BACKUP, METADATA_FOLDER, read_optional
from lakewright.table.snapshot import (
    FilesByPartition,
    Snapshot,
    files_being_cleaned,
    files_of_slice,
    load_snapshot,
)


def readable_commits(snapshot: Snapshot) -> dict[str, CommitMetadata]:
    """What completed writes did, by instant: of those whose files can be read."""
    commits: dict[str, CommitMetadata] = {}
    for instant in snapshot.timeline.completed_writes:
        data = read_optional(snapshot.storage, snapshot.timeline_path(instant))
        if data is not None:  # else archived since, or rolled back
            with suppress(CorruptError, UnsupportedError):
                commits[instant.requested_at] = parse_completed(instant.action, data)
    return commits


def data_file(status: FileStatus) -> BaseFile | LogFile | None:
    """A listed file as a data file, if its name is that of one."""
    try:
        return parse_data_file(status.name, status.size)
    except (CorruptError, UnsupportedError):
        return None


# ------------------------------------------------------------------------------------------------
# Files, each looked at for itself: what one of them hides, the others still tell.


_META_FOLDER = ".hoodie"
_LOCK = ".hoodie/lock"


@dataclass(frozen=True)
class Evidence:
    """A table as it was looked at; `damaged` are files of the timeline that cannot be read.

    `archived` are the requested times in history, None if that cannot be read: `history_damage`
    tells why, and `invalid_slices` why data files form no file slices. `last_activity_ms` is, by
    pending instant, when one of its files last changed. `unlisted` are, by instant, data files of
    completed writes that their commits do not list. `missing` are files that a query reads and that
    are not there, `empty` those without a byte; `metadata` what completed in the metadata table,
    None where there is none.
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


def load_evidence(storage: Storage, clock: Clock, heartbeat: HeartbeatSettings) -> Evidence:
    """Look at a table whose properties can be read."""
    folders = [f for f in storage.list_folders("") if f != _META_FOLDER]
    listed = chain(storage.list_files(""), *(storage.list_tree(f) for f in folders))
    files = tuple(sorted(listed, key=lambda file: file.path))
    snapshot = load_snapshot(storage)
    timeline_files = tuple(storage.list_files(snapshot.config.timeline_folder))
    commits, damaged = readable_commits(snapshot), find_damaged(snapshot)
    archived, history_damage = _archived(snapshot)
    known = all(each.harmless for each in damaged) and archived is not None
    unlisted = _unlisted(commits, files)
    unlisted_paths = {file.path for found in unlisted.values() for file in found}
    rest = [file for file in files if file.path not in unlisted_paths]
    lost, empty, unsliced = _unreadable(snapshot, commits, rest) if known else ((), (), None)
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
        invalid_slices=unsliced,
        heartbeats_ms=last_heartbeats(storage),
        last_activity_ms=_last_activity(snapshot, timeline_files),
        replaced=_replaced(commits.values()),
        unlisted=unlisted,
        missing=lost,
        empty=empty,
        metadata=_metadata_instants(storage),
        leftovers=find_leftovers(storage, heartbeat, clock) if known else LeftoverFiles(),
        has_backup=storage.exists(BACKUP),
        lock=storage.status(_LOCK),
        ignored=tuple(storage.list_ignored()),
    )


def _archived(
    snapshot: Snapshot,
) -> tuple[frozenset[str], None] | tuple[None, LakewrightError]:
    """Every requested time in history, or why it cannot be read.

    Those of rolled back instants are none of them.
    """
    try:
        entries = load_entries(snapshot.storage, snapshot.config.history_folder)
    except (CorruptError, UnsupportedError) as error:
        return None, error
    return frozenset(entry.requested_at for entry in entries), None


def _last_activity(snapshot: Snapshot, files: Iterable[FileStatus]) -> dict[str, int]:
    pending = {i.requested_at for i in snapshot.timeline.pending()}
    signs: dict[str, int] = {}
    marked = (file for at in pending for file in snapshot.storage.list_tree(marker_folder(at)))
    seen = [(_requested(file.name), file) for file in files]
    seen += [(file.path.removeprefix(marker_folder("")).partition("/")[0], file) for file in marked]
    for at, file in seen:
        if at in pending:
            signs[at] = max(signs.get(at, 0), file.modified_ms)
    return signs


def _requested(name: str) -> str:
    instant = _instant(name)
    return instant.requested_at if instant is not None else ""


def _instant(name: str) -> Instant | None:
    try:
        return parse_instant(name)
    except UnsupportedError:
        return None


def _replaced(commits: Iterable[CommitMetadata]) -> frozenset[GroupKey]:
    return frozenset(
        (partition, file_id)
        for commit in commits
        for partition, file_ids in commit.replaced.items()
        for file_id in file_ids
    )


def _unlisted(
    commits: Mapping[str, CommitMetadata], files: Iterable[FileStatus]
) -> dict[str, tuple[FileStatus, ...]]:
    """Data files of completed writes on the active timeline that their commits do not list."""
    names = {at: commit.named_files() for at, commit in commits.items()}
    found: dict[str, tuple[FileStatus, ...]] = {}
    for status in files:
        file = data_file(status)
        if file is not None and status.name not in names.get(file.instant, {status.name}):
            found[file.instant] = (*found.get(file.instant, ()), status)
    return found


def _unreadable(
    first: Snapshot, commits: Mapping[str, CommitMetadata], files: Iterable[FileStatus]
) -> tuple[tuple[str, ...], tuple[str, ...], CorruptError | None]:
    """Files that a query reads and that are missing or empty, or why nobody can tell."""
    try:
        return *_missing_in_both_listings(first, commits, files), None
    except CorruptError as error:
        return (), (), error


def _missing_in_both_listings(
    first: Snapshot, commits: Mapping[str, CommitMetadata], files: Iterable[FileStatus]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """What is missing, and what is empty, in two looks.

    A commit that completes between two listings, or a clean, must not look like a loss.
    """
    suspects = _missing(first, commits.values(), _by_partition(files))
    partitions = sorted({split_path(path)[0] for found in suspects for path in found})
    if not partitions:
        return (), ()
    again = load_snapshot(first.storage)
    lost, empty = _missing(again, readable_commits(again).values(), again.files(partitions))
    return tuple(sorted(suspects[0] & lost)), tuple(sorted(suspects[1] & empty))


def _by_partition(files: Iterable[FileStatus]) -> dict[str, list[BaseFile | LogFile]]:
    """The data files of folders that readers take for partitions."""
    found: dict[str, list[BaseFile | LogFile]] = {}
    marked = set()
    for status in files:
        folder, name = split_path(status.path)
        if name.startswith(PARTITION_METADATA):
            marked.add(folder)
        elif file := data_file(status):
            found.setdefault(folder, []).append(file)
    return {folder: found.get(folder, []) for folder in sorted(marked)}


def _missing(
    snapshot: Snapshot, commits: Iterable[CommitMetadata], listed: FilesByPartition
) -> tuple[set[str], set[str]]:
    """Of listed partitions the files that a query reads: those not there, those without a byte."""
    sizes = {join_path(p, file.name): file.size for p, names in listed.items() for file in names}
    known: dict[str, dict[str, BaseFile | LogFile]] = {
        partition: {file.name: file for file in names} for partition, names in listed.items()
    }
    for stat in (stat for commit in commits for stat in commit.write_stats()):
        partition, name = split_path(stat.path or "")
        file = parse_data_file(name) if name else None
        # What lies in a folder that is no partition is another finding.
        if file is not None and partition in known:
            known[partition].setdefault(name, file)
    going = files_being_cleaned(snapshot)
    together = {partition: [*names.values()] for partition, names in known.items()}
    needed = {
        item.path(file)
        for group in snapshot.groups(snapshot.view(), together)
        for item in [group.latest_merged_slice()]
        for file in files_of_slice(item)
        if file.name not in going.get(item.partition, ())
    }
    return needed - sizes.keys(), {path for path in needed if sizes.get(path) == 0}


def _metadata_instants(storage: Storage) -> tuple[Instant, ...] | None:
    names = [f.name for f in storage.list_files(f"{METADATA_FOLDER}/.hoodie/timeline")]
    if not names:
        return None
    return tuple(i for i in map(_instant, names) if i is not None and i.is_completed)
