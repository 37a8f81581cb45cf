"""How far back a table can be read, and where in the table that can have changed."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import tzinfo

from lakewright.errors import found_in
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

# What a clean tells the next one, as real Hudi does: the savepoints that held files.
SAVEPOINTS = "savepointed_timestamps"
# Partitions were left out on purpose, so that nobody may rely on the rest being clean.
FILTERED = "lakewright.clean.filtered"
# The number of versions that were kept, where that was the policy.
VERSIONS = "lakewright.clean.versions"


@dataclass(frozen=True, slots=True)
class LastClean:
    """What the last completed clean has left behind: up to where it went, and what it recorded."""

    requested_at: InstantTime
    earliest: str = ""
    extra: Mapping[str, str] = field(default_factory=dict, hash=False)

    @property
    def savepoints(self) -> frozenset[str]:
        """The savepoints whose files it left."""
        return frozenset(at for at in self.extra.get(SAVEPOINTS, "").split(",") if at)

    @property
    def left(self) -> frozenset[str]:
        """The partitions in which something was due and could not go."""
        return frozenset(parse_reasons(self.extra))


@dataclass(frozen=True, slots=True)
class CleanScope:
    """Where a clean looks: at what some writes touched and at some partitions, or everywhere.

    `everything` tells why all of the table is listed, and is empty where it is not.
    """

    writes: tuple[Instant, ...] = ()
    partitions: frozenset[str] = frozenset()
    everything: str = ""

    @property
    def is_empty(self) -> bool:
        """Whether nothing can have become due."""
        return not (self.writes or self.partitions or self.everything)


def check_clean_trigger(timeline: Timeline, settings: CleaningSettings) -> Skip | None:
    """Why it is too early for a clean; None if it is due."""
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
    """The earliest commit as of which the table stays readable; None if all of it stays.

    It is never later than the earliest pending write, which may build on any state since then.
    """
    done = timeline.completed_writes
    index = _wanted(done, settings, now_ms, zone)
    if index is None:
        return None
    pending = min((i.requested_at for i in timeline.pending() if i.is_write), default=None)
    if pending is not None and done[index].requested_at > pending:
        index = sum(1 for i in done if i.requested_at < pending) - 1
    begin = sum(1 for i in done if last is not None and i.requested_at < last.earliest)
    index = min(index, begin + settings.max_commits_to_clean)
    return done[index] if index >= 0 else None


def _wanted(
    done: tuple[Instant, ...], settings: CleaningSettings, now_ms: int, zone: tzinfo
) -> int | None:
    if settings.policy is CleanPolicy.COMMITS:
        count = len(done) - settings.commits_retained
        return count if count > 0 else None
    if settings.policy is CleanPolicy.HOURS:
        since = format_epoch_ms(now_ms - settings.hours_retained * _HOUR_MS, zone)
        return next((n for n, i in enumerate(done) if i.requested_at >= since), None)
    return None


def visible_to_all_readers(
    requested_at: InstantTime, completed_at: InstantTime | None, retained: Instant
) -> bool:
    """Whether every reader within the retained time sees a write.

    Time travel goes by requested times and incremental queries by completion times, so both must
    lie before those of the earliest retained commit. What was archived completed long ago.
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
    """Where something can have become due since the last clean. Pure.

    A slice becomes due when a newer one of its group settles, or, where versions are counted, when
    a newer one appears: so only what was written by such instants needs a look, and what the last
    clean had to leave.
    """
    reason = _why_everything(timeline, settings, last, has_history=has_history)
    if reason:
        return CleanScope(everything=reason)
    left = last.left if last is not None else frozenset()
    return CleanScope(_changed(timeline, retained, last), left)


def _why_everything(
    timeline: Timeline,
    settings: CleaningSettings,
    last: LastClean | None,
    *,
    has_history: bool,
) -> str:
    if not settings.incremental:
        return "incremental cleaning is off"
    if last is None:
        return "there was no clean since writes were archived" if has_history else ""
    if last.savepoints - timeline.savepointed:
        return "a savepoint was deleted since the last clean"
    if FILTERED in last.extra:
        return "the last clean left out partitions"
    if settings.policy is CleanPolicy.VERSIONS:
        same = last.extra.get(VERSIONS) == str(settings.versions_retained)
        begin = last.requested_at
    else:
        same, begin = True, last.earliest
    if not same or not begin:
        return "the last clean went by another policy"
    # Real Hudi may have archived writes that completed since, if they began before.
    if timeline.start is None or begin < timeline.start:
        return "the last clean is from before the active timeline"
    return ""


def _changed(
    timeline: Timeline, retained: Instant | None, last: LastClean | None
) -> tuple[Instant, ...]:
    done = timeline.completed_writes
    if retained is None:
        since = last.requested_at if last is not None else ""
        return tuple(i for i in done if (i.completed_at or "") > since)
    settled = [i for i in done if visible_to_all_readers(i.requested_at, i.completed_at, retained)]
    before = timeline.by_time.get(last.earliest) if last is not None else None
    if before is None or not before.is_completed:
        return tuple(settled)
    return tuple(
        i for i in settled if not visible_to_all_readers(i.requested_at, i.completed_at, before)
    )


# ------------------------------------------------------------------------------------------------
# Which files of the partitions that a clean looks at may go. Pure.


DataFile = BaseFile | LogFile


@dataclass(frozen=True, slots=True)
class ProtectedFiles:
    """What must stay for others: the files of savepoints, and file groups that plans name.

    A group of a pending plan is held whole. Its plan names files, but which of them make up a slice
    is for readers to say, and they do not all slice alike while a compaction is pending.
    """

    saved: frozenset[tuple[str, str]] = frozenset()
    planned: Mapping[GroupKey, str] = field(default_factory=dict)

    def saves(self, partition: str, files: Sequence[DataFile]) -> bool:
        """Whether a savepoint needs one of these files."""
        return any((partition, file.name) in self.saved for file in files)


@dataclass(frozen=True, slots=True)
class PartitionFiles:
    """What lies in the partitions that a clean looks at.

    `files` are all data files there, `groups` what the table has of them, and `replaced` names the
    newest replace commit that took a group out of the table.
    """

    view: TimelineView
    files: Mapping[str, Sequence[DataFile]]
    groups: Sequence[FileGroup] = ()
    replaced: Mapping[GroupKey, Instant] = field(default_factory=dict)
    holds: ProtectedFiles = field(default_factory=ProtectedFiles)


@dataclass
class CleanCandidates:
    """What may go: files by partition, and partitions that are empty afterwards.

    `readable_from` is the earliest request as of which nothing that goes is needed.
    """

    files: dict[str, list[DataFile]] = field(default_factory=dict)
    partitions: list[str] = field(default_factory=list)
    left: SkippedPartitions = field(default_factory=SkippedPartitions)
    readable_from: str = ""

    def add(self, partition: str, files: Sequence[DataFile], readable_from: str) -> None:
        """Note files that may go."""
        if files:
            self.files.setdefault(partition, []).extend(files)
            self.readable_from = max(self.readable_from, readable_from)

    def __bool__(self) -> bool:
        """Whether there is anything to do."""
        return bool(self.files or self.partitions)


@dataclass(frozen=True, slots=True)
class _Slice:
    """A slice with all its files, those of change capture as well."""

    base_instant: InstantTime
    files: tuple[DataFile, ...]


def find_deletable_files(
    stock: PartitionFiles, settings: CleaningSettings, retained: Instant | None
) -> CleanCandidates:
    """What a policy lets go; `retained` is None where versions are counted.

    Files that belong to no completed write are not touched: they are a matter of rollbacks.
    """
    due = CleanCandidates()
    live = {group.key: group for group in stock.groups}
    replaced = {key[0] for key, by in stock.replaced.items() if _replacement_is_due(by, retained)}
    for partition, files in stock.files.items():
        by_group = _by_group(stock.view, files)
        for file_id, own in by_group.items():
            key = partition, file_id
            group = live.get(key)
            if group is not None:
                slices = _with_changes(group, own, stock.view)
                _take_old(due, stock, key, slices, _oldest_kept(slices, stock, settings, retained))
            elif key in stock.replaced:
                _take_replaced(due, stock, key, own, retained)
        # Files of pending writes count as well: they may be about to become part of the table.
        is_empty = len(due.files.get(partition, ())) == len(files)
        if partition and is_empty and partition in replaced:
            due.partitions.append(partition)
    return due


def _take_old(
    due: CleanCandidates, stock: PartitionFiles, key: GroupKey, slices: list[_Slice], kept: int
) -> None:
    partition = key[0]
    if kept > 0 and key in stock.holds.planned:
        due.left.add(partition, stock.holds.planned[key])
        return
    for old in slices[:kept]:
        if not stock.holds.saves(partition, old.files):
            due.add(partition, old.files, slices[kept].base_instant)


def _take_replaced(
    due: CleanCandidates,
    stock: PartitionFiles,
    key: GroupKey,
    files: list[DataFile],
    retained: Instant | None,
) -> None:
    partition, by = key[0], stock.replaced[key]
    if not _replacement_is_due(by, retained):
        return
    if key in stock.holds.planned:
        due.left.add(partition, stock.holds.planned[key])
    elif not stock.holds.saves(partition, files):
        due.add(partition, files, by.requested_at)


def _replacement_is_due(by: Instant, retained: Instant | None) -> bool:
    return retained is None or visible_to_all_readers(by.requested_at, by.completed_at, retained)


def _by_group(view: TimelineView, files: Sequence[DataFile]) -> dict[str, list[DataFile]]:
    groups: dict[str, list[DataFile]] = {}
    for file in files:
        if view.includes(file.instant):
            groups.setdefault(file.file_id, []).append(file)
    return groups


def _with_changes(group: FileGroup, files: Sequence[DataFile], view: TimelineView) -> list[_Slice]:
    """The slices of a group, each with the change files that were written with it."""
    keys = [each.base_instant for each in group.slices]
    together: list[list[DataFile]] = [
        [*([each.base] if each.base else []), *each.logs] for each in group.slices
    ]
    for file in files:
        if isinstance(file, LogFile) and file.cdc:
            completed_at = view.completion(file.instant) or file.instant
            together[max(bisect_right(keys, completed_at) - 1, 0)].append(file)
    return [_Slice(key, tuple(own)) for key, own in zip(keys, together, strict=True)]


def _oldest_kept(
    slices: list[_Slice],
    stock: PartitionFiles,
    settings: CleaningSettings,
    retained: Instant | None,
) -> int:
    """The position of the oldest slice that is still needed; there always is one."""
    if settings.policy is CleanPolicy.VERSIONS or retained is None:
        return max(len(slices) - settings.versions_retained, 0)
    settled = [
        number
        for number, each in enumerate(slices)
        if visible_to_all_readers(
            each.base_instant, stock.view.completion(each.base_instant), retained
        )
    ]
    return settled[-1] if settled else 0


# ------------------------------------------------------------------------------------------------
# What a clean has to know of the table before it decides, and before it deletes.


def last_clean(snapshot: Snapshot) -> LastClean | None:
    """What the last completed clean on the active timeline tells, if there is one."""
    cleans = snapshot.timeline.completed(Action.CLEAN)
    if not cleans:
        return None
    path = snapshot.timeline_path(cleans[-1])
    with found_in(path):
        done = parse_clean(snapshot.storage.read(path))
    return LastClean(cleans[-1].requested_at, done.earliest_to_retain, done.extra)


def load_partition_files(snapshot: Snapshot, files: FilesByPartition) -> PartitionFiles:
    """What listed files are to the table, and who needs them."""
    view = snapshot.view()
    return PartitionFiles(
        view=view,
        files=files,
        groups=snapshot.groups(view, files),
        replaced=replaced_by(snapshot),
        holds=load_protected_files(snapshot),
    )


def replaced_by(snapshot: Snapshot) -> dict[GroupKey, Instant]:
    """The newest replace commit of each file group that one on the active timeline took out."""
    instants = [i for i in snapshot.timeline.completed_writes if i.action == "replacecommit"]
    return {
        (partition, file_id): instant
        for instant, commit in zip(instants, snapshot.commits(instants), strict=True)
        for partition, file_ids in commit.replaced.items()
        for file_id in file_ids
    }


def load_protected_files(snapshot: Snapshot) -> ProtectedFiles:
    """What savepoints and pending plans need."""
    planned = {
        (operation.partition, operation.file_id): f"held by {instant.action} {instant.requested_at}"
        for instant, plan in snapshot.pending_plans()
        for operation in plan.operations
    }
    return ProtectedFiles(saved=frozenset(_saved_files(snapshot)), planned=planned)


def _saved_files(snapshot: Snapshot) -> Iterable[tuple[str, str]]:
    paths = [snapshot.timeline_path(i) for i in snapshot.timeline.completed(Action.SAVEPOINT)]
    for path, data in zip(paths, snapshot.storage.read_many(paths) if paths else [], strict=True):
        with found_in(path):
            saved = parse_savepoint(data)
        for partition, part in saved.partitions.items():
            yield from ((partition, name) for name in part.files)
