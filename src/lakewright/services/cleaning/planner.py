"""Plans a clean: the earliest commit to retain, the partitions to check, the files to delete.

The first two sections do no I/O; the functions that read the table are in the last one.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import tzinfo

from lakewright.errors import errors_in_file
from lakewright.format.timeline_metadata import parse_clean, parse_savepoint
from lakewright.model.file_group import BaseFile, FileGroup, GroupKey, LogFile, TimelineView
from lakewright.model.instant import Action, Instant, InstantTime
from lakewright.model.plans import Skip, parse_reasons
from lakewright.model.timeline import Timeline
from lakewright.services.cleaning.options import CleaningSettings, CleanPolicy
from lakewright.services.planning import SkippedPartitions
from lakewright.table.snapshot import FilesByPartition, Snapshot
from lakewright.table.time_generator import format_epoch_ms

_HOUR_MS = 3_600_000

# Keys in the extra metadata of a clean, which the next clean reads.
# The savepoints whose files it kept; Hudi uses the same key.
SAVEPOINTS = "savepointed_timestamps"
# Set if a filter excluded partitions, so the next clean cannot assume that they are clean.
FILTERED = "lakewright.clean.filtered"
# The number of retained versions, with KEEP_LATEST_FILE_VERSIONS.
VERSIONS = "lakewright.clean.versions"


# The earliest commit to retain, and the partitions to check.


@dataclass(frozen=True, slots=True)
class LastClean:
    """The last completed clean: its instant, the earliest commit it retained, and its metadata."""

    requested_at: InstantTime
    earliest: str = ""
    extra: Mapping[str, str] = field(default_factory=dict, hash=False)

    @property
    def savepoints(self) -> frozenset[str]:
        """The savepoints whose files it kept."""
        return frozenset(at for at in self.extra.get(SAVEPOINTS, "").split(",") if at)

    @property
    def skipped_partitions(self) -> frozenset[str]:
        """The skipped partitions: it could not delete all files there that the policy allows."""
        return frozenset(parse_reasons(self.extra))


@dataclass(frozen=True, slots=True)
class CleanScope:
    """What a clean checks: the partitions of some writes and some further ones, or all.

    `full_listing_reason` says why all partitions are listed, and is empty if they are not.
    """

    writes: tuple[Instant, ...] = ()
    partitions: frozenset[str] = frozenset()
    full_listing_reason: str = ""

    @property
    def is_empty(self) -> bool:
        """Whether no file can have become deletable."""
        return not (self.writes or self.partitions or self.full_listing_reason)


def check_clean_trigger(timeline: Timeline, settings: CleaningSettings) -> Skip | None:
    """Why a clean is not due yet; None if it is."""
    pending = timeline.pending(Action.CLEAN)
    if pending and not settings.allow_multiple:
        return Skip(f"clean {pending[0].requested_at} is pending")
    since = max((i.requested_at for i in timeline.completed(Action.CLEAN)), default="")
    count = sum(1 for i in timeline.completed_writes if (i.completed_at or "") > since)
    if count < settings.trigger_commits:
        return Skip(f"{count} of {settings.trigger_commits} commits since the last clean")
    return None


def earliest_to_retain(
    timeline: Timeline,
    settings: CleaningSettings,
    now_ms: int,
    zone: tzinfo,
    last: LastClean | None = None,
) -> Instant | None:
    """The earliest commit as of which the table stays readable; None if all commits do.

    It is never later than the earliest pending write, which may have read any state since then.
    """
    commits = timeline.completed_writes
    index = _policy_index(commits, settings, now_ms, zone)
    if index is None:
        return None
    pending = min((i.requested_at for i in timeline.pending() if i.is_write), default=None)
    if pending is not None and commits[index].requested_at > pending:
        index = sum(1 for i in commits if i.requested_at < pending) - 1
    begin = sum(1 for i in commits if last is not None and i.requested_at < last.earliest)
    index = min(index, begin + settings.max_commits_to_clean)
    return commits[index] if index >= 0 else None


def _policy_index(
    commits: tuple[Instant, ...], settings: CleaningSettings, now_ms: int, zone: tzinfo
) -> int | None:
    """The index of the earliest commit that the policy retains; None if it retains all."""
    if settings.policy is CleanPolicy.COMMITS:
        count = len(commits) - settings.commits_retained
        return count if count > 0 else None
    if settings.policy is CleanPolicy.HOURS:
        since = format_epoch_ms(now_ms - settings.hours_retained * _HOUR_MS, zone)
        return next((n for n, i in enumerate(commits) if i.requested_at >= since), None)
    return None


def visible_to_all_readers(
    requested_at: InstantTime, completed_at: InstantTime | None, retained: Instant
) -> bool:
    """Whether every query from the earliest retained commit on sees a write.

    Time travel compares requested times and incremental queries completion times, so both must be
    before those of the earliest retained commit. `completed_at` is None for an archived write,
    which completed before all retained commits.
    """
    limit = retained.completed_at or ""
    return requested_at < retained.requested_at and (completed_at is None or completed_at <= limit)


def clean_scope(
    timeline: Timeline,
    settings: CleaningSettings,
    retained: Instant | None,
    last: LastClean | None,
    *,
    has_history: bool,
) -> CleanScope:
    """Where files can have become deletable since the last clean.

    A slice becomes deletable when a newer slice of its file group becomes visible to all readers
    or, with KEEP_LATEST_FILE_VERSIONS, when a newer slice is written. So only the partitions that
    such writes touched, and those that the last clean skipped, need a check.
    """
    reason = _full_listing_reason(timeline, settings, last, has_history=has_history)
    if reason:
        return CleanScope(full_listing_reason=reason)
    skipped = last.skipped_partitions if last is not None else frozenset()
    return CleanScope(_relevant_writes(timeline, retained, last), skipped)


def _full_listing_reason(
    timeline: Timeline,
    settings: CleaningSettings,
    last: LastClean | None,
    *,
    has_history: bool,
) -> str:
    """Why all partitions must be listed; empty if an incremental clean is possible."""
    if not settings.incremental:
        return "incremental cleaning is off"
    if last is None:
        return "there was no clean since writes were archived" if has_history else ""
    if last.savepoints - timeline.savepointed:
        return "a savepoint was deleted since the last clean"
    if FILTERED in last.extra:
        return "the last clean left out partitions"
    if settings.policy is CleanPolicy.VERSIONS:
        is_same_policy = last.extra.get(VERSIONS) == str(settings.versions_retained)
        begin = last.requested_at
    else:
        is_same_policy, begin = True, last.earliest
    if not is_same_policy or not begin:
        return "the last clean went by another policy"
    # Hudi may have archived writes that were requested before then and completed since.
    if timeline.start is None or begin < timeline.start:
        return "the last clean is from before the active timeline"
    return ""


def _relevant_writes(
    timeline: Timeline, retained: Instant | None, last: LastClean | None
) -> tuple[Instant, ...]:
    """The writes that can have made file slices deletable since the last clean."""
    commits = timeline.completed_writes
    if retained is None:
        since = last.requested_at if last is not None else ""
        return tuple(i for i in commits if (i.completed_at or "") > since)
    visible = [
        i for i in commits if visible_to_all_readers(i.requested_at, i.completed_at, retained)
    ]
    previous = timeline.by_time.get(last.earliest) if last is not None else None
    if previous is None or not previous.is_completed:
        return tuple(visible)
    return tuple(
        i for i in visible if not visible_to_all_readers(i.requested_at, i.completed_at, previous)
    )


# The files to delete in the partitions of the scope.


DataFile = BaseFile | LogFile


@dataclass(frozen=True, slots=True)
class ProtectedFiles:
    """What must not be deleted: files of savepoints, and file groups of pending plans.

    A pending plan protects whole file groups, although it lists files: while a compaction is
    pending, not all readers split the files of a group into the same slices.
    """

    saved: frozenset[tuple[str, str]] = frozenset()
    planned: Mapping[GroupKey, str] = field(default_factory=dict)

    def saves(self, partition: str, files: Sequence[DataFile]) -> bool:
        """Whether a savepoint needs one of these files."""
        return any((partition, file.name) in self.saved for file in files)


@dataclass(frozen=True, slots=True)
class PartitionFiles:
    """The contents of the partitions that a clean checks.

    `files` are all data files on storage, `groups` the live file groups, and `replaced` has for
    each replaced file group the newest replace commit that replaced it.
    """

    view: TimelineView
    files: Mapping[str, Sequence[DataFile]]
    groups: Sequence[FileGroup] = ()
    replaced: Mapping[GroupKey, Instant] = field(default_factory=dict)
    protected: ProtectedFiles = field(default_factory=ProtectedFiles)


@dataclass
class CleanCandidates:
    """The files to delete, by partition, and the partitions that are empty afterwards.

    `skipped` are the skipped partitions. `readable_from` is the earliest requested time as of which
    no query needs one of the files.
    """

    files: dict[str, list[DataFile]] = field(default_factory=dict)
    partitions: list[str] = field(default_factory=list)
    skipped: SkippedPartitions = field(default_factory=SkippedPartitions)
    readable_from: str = ""

    def add(self, partition: str, files: Sequence[DataFile], readable_from: str) -> None:
        """Add files to delete."""
        if files:
            self.files.setdefault(partition, []).extend(files)
            self.readable_from = max(self.readable_from, readable_from)

    def __bool__(self) -> bool:
        """Whether there is anything to delete."""
        return bool(self.files or self.partitions)


@dataclass(frozen=True, slots=True)
class _Slice:
    """A file slice with all its files, including CDC files."""

    base_instant: InstantTime
    files: tuple[DataFile, ...]


def find_deletable_files(
    contents: PartitionFiles, settings: CleaningSettings, retained: Instant | None
) -> CleanCandidates:
    """The files that the policy does not retain; `retained` is None if it counts versions.

    Files of writes that did not complete are ignored: a rollback deletes them.
    """
    candidates = CleanCandidates()
    live = {group.key: group for group in contents.groups}
    replaced = {
        key[0]
        for key, replace_commit in contents.replaced.items()
        if _is_replaced_for_all(replace_commit, retained)
    }
    for partition, files in contents.files.items():
        by_group = _committed_files_by_group(contents.view, files)
        for file_id, group_files in by_group.items():
            key = partition, file_id
            group = live.get(key)
            if group is not None:
                slices = _slices_with_cdc_files(group, group_files, contents.view)
                _add_old_slices(
                    candidates,
                    contents,
                    key,
                    slices,
                    _oldest_retained(slices, contents, settings, retained),
                )
            elif key in contents.replaced:
                _add_replaced_group(candidates, contents, key, group_files, retained)
        # `files` includes those of pending writes, which may be about to commit.
        is_empty = len(candidates.files.get(partition, ())) == len(files)
        if partition and is_empty and partition in replaced:
            candidates.partitions.append(partition)
    return candidates


def _add_old_slices(
    candidates: CleanCandidates,
    partition_files: PartitionFiles,
    key: GroupKey,
    slices: list[_Slice],
    oldest_retained: int,
) -> None:
    """Add the slices before the oldest retained one, unless a plan or a savepoint needs them."""
    partition = key[0]
    if oldest_retained > 0 and key in partition_files.protected.planned:
        candidates.skipped.add(partition, partition_files.protected.planned[key])
        return
    for old in slices[:oldest_retained]:
        if not partition_files.protected.saves(partition, old.files):
            candidates.add(partition, old.files, slices[oldest_retained].base_instant)


def _add_replaced_group(
    candidates: CleanCandidates,
    partition_files: PartitionFiles,
    key: GroupKey,
    files: list[DataFile],
    retained: Instant | None,
) -> None:
    """Add the files of a replaced file group, unless a reader, plan or savepoint needs them."""
    partition, replace_commit = key[0], partition_files.replaced[key]
    if not _is_replaced_for_all(replace_commit, retained):
        return
    if key in partition_files.protected.planned:
        candidates.skipped.add(partition, partition_files.protected.planned[key])
    elif not partition_files.protected.saves(partition, files):
        candidates.add(partition, files, replace_commit.requested_at)


def _is_replaced_for_all(replace_commit: Instant, retained: Instant | None) -> bool:
    """Whether every retained query sees the replace commit, and so not the replaced groups."""
    return retained is None or visible_to_all_readers(
        replace_commit.requested_at, replace_commit.completed_at, retained
    )


def _committed_files_by_group(
    view: TimelineView, files: Sequence[DataFile]
) -> dict[str, list[DataFile]]:
    groups: dict[str, list[DataFile]] = {}
    for file in files:
        if view.includes(file.instant):
            groups.setdefault(file.file_id, []).append(file)
    return groups


def _slices_with_cdc_files(
    group: FileGroup, files: Sequence[DataFile], view: TimelineView
) -> list[_Slice]:
    """The slices of a group, each with the CDC files that were written with it."""
    base_instants = [item.base_instant for item in group.slices]
    slice_files: list[list[DataFile]] = [
        [*([item.base] if item.base else []), *item.logs] for item in group.slices
    ]
    for file in files:
        if isinstance(file, LogFile) and file.cdc:
            completed_at = view.completion(file.instant) or file.instant
            slice_files[max(bisect_right(base_instants, completed_at) - 1, 0)].append(file)
    return [
        _Slice(base_instant, tuple(item_files))
        for base_instant, item_files in zip(base_instants, slice_files, strict=True)
    ]


def _oldest_retained(
    slices: list[_Slice],
    partition_files: PartitionFiles,
    settings: CleaningSettings,
    retained: Instant | None,
) -> int:
    """The index of the oldest slice to retain; there always is one."""
    if settings.policy is CleanPolicy.VERSIONS or retained is None:
        return max(len(slices) - settings.versions_retained, 0)
    visible = [
        index
        for index, item in enumerate(slices)
        if visible_to_all_readers(
            item.base_instant, partition_files.view.completion(item.base_instant), retained
        )
    ]
    return visible[-1] if visible else 0


# What planning and execution read from the table.


def last_clean(snapshot: Snapshot) -> LastClean | None:
    """The last completed clean on the active timeline, if there is one."""
    cleans = snapshot.timeline.completed(Action.CLEAN)
    if not cleans:
        return None
    path = snapshot.timeline_path(cleans[-1])
    with errors_in_file(path):
        metadata = parse_clean(snapshot.storage.read(path))
    return LastClean(cleans[-1].requested_at, metadata.earliest_to_retain, metadata.extra)


def load_partition_files(snapshot: Snapshot, files: FilesByPartition) -> PartitionFiles:
    """Group listed files, and load what is replaced and what is protected."""
    view = snapshot.view()
    return PartitionFiles(
        view=view,
        files=files,
        groups=snapshot.groups(view, files),
        # Of a file group that was replaced twice, the later replace commit counts.
        replaced=dict(snapshot.replacements(snapshot.timeline.completed_writes)),
        protected=load_protected_files(snapshot),
    )


def load_protected_files(snapshot: Snapshot) -> ProtectedFiles:
    """Load the files of savepoints and the file groups of pending plans."""
    planned = {
        key: f"held by {instant.action} {instant.requested_at}"
        for instant, plan in snapshot.pending_plans()
        for key in plan.file_groups
    }
    return ProtectedFiles(saved=frozenset(_saved_files(snapshot)), planned=planned)


def _saved_files(snapshot: Snapshot) -> Iterable[tuple[str, str]]:
    paths = [snapshot.timeline_path(i) for i in snapshot.timeline.completed(Action.SAVEPOINT)]
    for path, data in zip(paths, snapshot.storage.read_many(paths) if paths else [], strict=True):
        with errors_in_file(path):
            savepoint = parse_savepoint(data)
        for partition, saved in savepoint.partitions.items():
            yield from ((partition, name) for name in saved.files)
