"""Completion and freshness of a table, from commit metadata alone; no data file is read.

Every commit of Lakewright records the freshness of the table after it, as a `FreshnessRecord`. So
the current state is the newest valid record with the writes applied that completed after it. Only
after a commit that removes log files, such as a compaction, are the uncompacted log files listed
again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from lakewright.errors import CorruptError
from lakewright.model.commit_metadata import CommitMetadata, is_log
from lakewright.model.file_group import FileSlice, GroupKey, LogFile, parse_data_file
from lakewright.model.freshness import (
    NO_WATERMARKS,
    CompletionRegression,
    Freshness,
    FreshnessRecord,
    FutureTime,
    PartitionFreshness,
    PartitionFreshnessRecord,
    UncompactedLog,
    Watermarks,
    combine,
    detect_regression,
    dropped_partitions,
    future_times,
    max_known,
    most_urgent,
    parse_freshness_record,
    removable,
    removes_logs,
    uncompacted_log_of,
    watermarks_by_partition,
)
from lakewright.model.instant import Action, Instant, InstantTime
from lakewright.model.plans import CompactionPlan
from lakewright.table.partition_changes import partitions_with_logs
from lakewright.table.snapshot import Snapshot, search_commits

# Uncompacted log files, with their event times.


@dataclass(frozen=True, slots=True)
class BlockingLogFile:
    """A log file that holds back read-optimized completion; `instant` is the write that created it.

    `event_time` is its least event time, None if unknown: then nothing is known to be complete.
    """

    partition: str
    file_id: str
    log: str
    instant: InstantTime
    event_time: int | None
    size: int

    @property
    def as_uncompacted_log(self) -> UncompactedLog:
        """The log file in the form that commits record."""
        path = f"{self.partition}/{self.log}" if self.partition else self.log
        return UncompactedLog(path, self.instant, self.event_time)


def uncompacted_logs(
    snapshot: Snapshot, partitions: Iterable[str] | None
) -> tuple[BlockingLogFile, ...]:
    """Return the uncompacted log files of partitions, those of unknown event time first, sorted.

    With None, of the partitions that can have such files according to the last compaction.
    """
    searched = partitions_with_logs(snapshot) if partitions is None else tuple(sorted(partitions))
    if searched == ():
        return ()
    groups = snapshot.groups(snapshot.view(), snapshot.files(searched))
    slices = [group.latest_merged_slice() for group in groups]
    commits = load_existing_commits(
        snapshot, {log.instant for file_slice in slices for log in file_slice.logs}
    )
    logs_by_path = {at: _logs_by_path(at, commit) for at, commit in commits.items()}
    compacted = _log_compaction_sources(snapshot, commits)
    blocking = []
    for file_slice in slices:
        for log in _effective_logs(file_slice, compacted):
            log_file = _blocking_log(
                file_slice, log, commits.get(log.instant), logs_by_path.get(log.instant, {})
            )
            blocking += [] if log_file is None else [log_file]
    return tuple(sorted(blocking, key=_urgency))


def _log_compaction_sources(
    snapshot: Snapshot, commits: Mapping[str, CommitMetadata]
) -> dict[str, dict[GroupKey, frozenset[str]]]:
    """Return the log files that each log compaction among `commits` has compacted.

    Those of a log compaction whose plan no longer exists are unknown, and not in the result.
    """
    sources = {}
    for at, commit in commits.items():
        if commit.operation == "LOG_COMPACT":
            plan = snapshot.plan_of(at, Action.LOG_COMPACTION)
            if isinstance(plan, CompactionPlan):
                sources[at] = {(o.partition, o.file_id): frozenset(o.logs) for o in plan.operations}
    return sources


def _effective_logs(
    file_slice: FileSlice, compacted: Mapping[str, Mapping[GroupKey, frozenset[str]]]
) -> list[LogFile]:
    """Return the log files of a slice, without those that a log compaction has compacted."""
    key = file_slice.partition, file_slice.file_id
    superseded: set[str] = set()
    for at in {log.instant for log in file_slice.logs} & compacted.keys():
        superseded |= compacted[at].get(key, frozenset())
    return [log for log in file_slice.logs if log.name not in superseded]


def _urgency(log: BlockingLogFile) -> tuple[bool, int, str, str]:
    is_known = log.event_time is not None
    return is_known, log.event_time or 0, log.partition, log.log


def _logs_by_path(at: str, commit: CommitMetadata) -> dict[str, UncompactedLog | None]:
    return {
        stat.path or "": uncompacted_log_of(at, commit.operation, stat)
        for stat in commit.write_stats()
        if is_log(stat)
    }


def _blocking_log(
    file_slice: FileSlice,
    log: LogFile,
    commit: CommitMetadata | None,
    logs_by_path: dict[str, UncompactedLog | None],
) -> BlockingLogFile | None:
    """Return a log file with its event time from the commit; None if it needs no compaction."""
    path = file_slice.path(log)
    if path in logs_by_path:
        recorded = logs_by_path[path]
        if recorded is None:
            return None
        time = recorded.event_time
    else:
        time = _min_event_time_of_group(file_slice, log, commit)
    return BlockingLogFile(
        file_slice.partition, file_slice.file_id, log.name, log.instant, time, log.size
    )


def _min_event_time_of_group(
    file_slice: FileSlice, log: LogFile, commit: CommitMetadata | None
) -> int | None:
    """Return the least event time of the file group in a commit that does not name the file."""
    stats = commit.stats.get(file_slice.partition, ()) if commit is not None else ()
    logs = [
        uncompacted_log_of(log.instant, commit.operation if commit else None, stat)
        for stat in stats
        if stat.file_id == file_slice.file_id and is_log(stat)
    ]
    log_file = most_urgent(*logs)
    return log_file.event_time if log_file is not None else None


def load_existing_commits(snapshot: Snapshot, times: Iterable[str]) -> dict[str, CommitMetadata]:
    """Return the metadata of writes by instant.

    A write that is on neither the active nor the archived timeline is left out.
    """
    instants = [
        snapshot.timeline.by_time.get(at) or Instant(at, Action.DELTA_COMMIT) for at in times
    ]
    try:
        commits = snapshot.commits(instants)
    except CorruptError:
        return _commits_one_by_one(snapshot, instants)
    return {i.requested_at: commit for i, commit in zip(instants, commits, strict=True)}


def _commits_one_by_one(
    snapshot: Snapshot, instants: Iterable[Instant]
) -> dict[str, CommitMetadata]:
    commits = {}
    for instant in instants:
        try:
            (commits[instant.requested_at],) = snapshot.commits([instant])
        except CorruptError:
            continue
    return commits


# Completion and freshness of partitions, looked up commit by commit on access.


class LazyPartitionFreshness(Mapping[str, PartitionFreshness]):
    """The partitions of a table that have data, each with its completion and freshness.

    A lookup reads the commits from the newest back to where the values of the partition are
    complete. Iterating reads every commit, also those on the archived timeline.
    """

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self._cache: dict[str, PartitionFreshness | None] = {}
        self._paths: tuple[str, ...] | None = None

    def __getitem__(self, partition: str) -> PartitionFreshness:
        """Return the values of a partition; KeyError if it was never written, or was deleted."""
        if partition not in self._cache and self._paths is None:
            values_by_path = _search_backwards(self._snapshot, {partition})
            self._cache[partition] = values_by_path.get(partition)
        values = self._cache.get(partition)
        if values is None:
            raise KeyError(partition)
        return values

    def __iter__(self) -> Iterator[str]:
        """Iterate over the partitions, sorted."""
        return iter(self._load_paths())

    def __len__(self) -> int:
        """Return the number of partitions."""
        return len(self._load_paths())

    def _load_paths(self) -> tuple[str, ...]:
        if self._paths is None:
            values_by_path = _search_backwards(self._snapshot, None)
            self._cache = dict(values_by_path)
            self._paths = tuple(sorted(values_by_path))
        return self._paths


@dataclass
class _PartitionSearch:
    """The state of one partition while commits are read from the newest back.

    `watermarks` includes all commits that completed at `covered_from` or later. Rows of commits
    that completed up to `deleted_at` were deleted since.
    """

    watermarks: Watermarks = NO_WATERMARKS
    has_data: bool = False
    complete: bool = False
    recount_logs: bool = False
    covered_from: str = ""
    deleted_at: str = ""

    def prepend(self, watermarks: Watermarks) -> None:
        """Add the watermarks of an older commit."""
        self.watermarks = watermarks.followed_by(self.watermarks)
        self.has_data = True

    def needs(self, instant: Instant) -> bool:
        """Whether the next older commit has anything to add."""
        at = instant.completed_at or ""
        if at <= self.deleted_at:
            self.complete = True
        return not self.complete and (not self.covered_from or at < self.covered_from)


def _search_backwards(
    snapshot: Snapshot, partitions: set[str] | None
) -> dict[str, PartitionFreshness]:
    """Read commits from the newest back, until all wanted partitions are complete."""
    searches: dict[str, _PartitionSearch] = {path: _PartitionSearch() for path in partitions or ()}
    for instant, commit in _writes_newest_first(snapshot):
        touched = {*commit.stats, *commit.replaced}
        matching = {
            path: search
            for path in (touched if partitions is None else touched & partitions)
            if (search := searches.setdefault(path, _PartitionSearch())).needs(instant)
        }
        if matching:
            _visit_commit(snapshot, matching, instant, commit)
        if partitions is not None and all(search.complete for search in searches.values()):
            break
    return _resolve(snapshot, searches)


def _visit_commit(
    snapshot: Snapshot,
    searches: Mapping[str, _PartitionSearch],
    instant: Instant,
    commit: CommitMetadata,
) -> None:
    """Add what a commit says about partitions to their searches."""
    records = _stored_record(snapshot, instant, commit)
    dropped = dropped_partitions(commit)
    watermarks = watermarks_by_partition(instant.requested_at, commit)
    for path, search in searches.items():
        entry = records.get(path)
        if entry is not None:
            search.prepend(entry.watermarks)
            search.complete = not entry.since
            if entry.since:
                search.covered_from = _completed_at(snapshot, entry.since) or ""
        elif path in dropped:
            # The delete need not have seen what completed after it was requested.
            search.deleted_at = instant.requested_at
            search.recount_logs = True
        else:
            search.recount_logs |= removes_logs(commit)
            search.prepend(watermarks.get(path, NO_WATERMARKS))


def _stored_record(
    snapshot: Snapshot, instant: Instant, commit: CommitMetadata
) -> Mapping[str, PartitionFreshnessRecord]:
    """Return the partitions in the record of a commit; empty if the record is not valid for it."""
    record = parse_freshness_record(commit.extra)
    if record is None:
        return {}
    if instant.requested_at in snapshot.timeline.by_time:
        is_valid = record.is_valid(instant, snapshot.timeline, snapshot.has_write)
    else:
        is_valid = record.is_written_by(instant, snapshot.has_write)
    return record.partitions if is_valid else {}


def _resolve(
    snapshot: Snapshot, searches: Mapping[str, _PartitionSearch]
) -> dict[str, PartitionFreshness]:
    """Return the values of partitions with data; list log files again where some were removed."""
    with_data = {path: search for path, search in searches.items() if search.has_data}
    to_list = sorted(path for path, search in with_data.items() if search.recount_logs)
    logs = uncompacted_logs(snapshot, to_list) if to_list else ()
    most_urgent_logs: dict[str, UncompactedLog | None] = {}
    for log in logs:
        most_urgent_logs[log.partition] = most_urgent(
            most_urgent_logs.get(log.partition), log.as_uncompacted_log
        )
    return {
        path: (
            s.watermarks.with_log_files(most_urgent_logs.get(path))
            if s.recount_logs
            else s.watermarks
        ).views
        for path, s in with_data.items()
    }


def _writes_newest_first(snapshot: Snapshot) -> Iterator[tuple[Instant, CommitMetadata]]:
    """Iterate over completed writes, the last completed first; load archived ones if needed."""
    active = snapshot.timeline.by_completion
    oldest = active[0].completed_at or "" if active else ""
    # A write that began early and completed late may be archived before others that completed
    # earlier.
    late = snapshot.archived_after(oldest) if active else []
    yield from search_commits(snapshot, _by_completion_descending([*active, *late]))
    yielded = {instant.requested_at for instant in late}
    rest = [i for i in snapshot.archived if i.requested_at not in yielded]
    yield from zip(
        _by_completion_descending(rest),
        snapshot.commits(_by_completion_descending(rest)),
        strict=True,
    )


def _by_completion_descending(instants: Iterable[Instant]) -> list[Instant]:
    return sorted(instants, key=lambda i: i.completed_at or "", reverse=True)


def _completed_at(snapshot: Snapshot, requested_at: InstantTime) -> str | None:
    completed_at = snapshot.view().completion(requested_at)
    return completed_at or snapshot.archived_times.get(requested_at)


# Completion and freshness of the table.

Write = tuple[Instant, CommitMetadata]

# How many partitions with uncompacted log files a commit lists; if there are more, the last
# compaction determines where to search for log files.
_MAX_LISTED_PARTITIONS = 2000


@dataclass(frozen=True, slots=True)
class FreshnessState:
    """The freshness of a table after all writes up to `last`.

    `entries` are the partitions known from the newest writes. `logs_in` are the partitions that can
    have uncompacted log files, None if they are too many to list. `open` are the partitions that
    are not yet marked as done. `stale` means that log files were removed since they were listed.
    """

    watermarks: Watermarks = NO_WATERMARKS
    last: Instant | None = None
    entries: Mapping[str, PartitionFreshnessRecord] = field(default_factory=dict)
    regression: CompletionRegression | None = None
    future: tuple[FutureTime, ...] = ()
    logs_in: frozenset[str] | None = frozenset()
    open: tuple[str, ...] = ()
    stale: bool = False

    @classmethod
    def from_record(cls, instant: Instant, stored: FreshnessRecord) -> FreshnessState:
        """Return the state that a commit records."""
        remaining = (stored.regression, stored.future, stored.logs_in, stored.open)
        return cls(stored.watermarks, instant, stored.partitions, *remaining)


def compute_freshness(snapshot: Snapshot, *, future_from_ms: int) -> Freshness:
    """Return completion and freshness of a table; flag event times above `future_from_ms`."""
    state = load_state(snapshot, future_from_ms=future_from_ms)
    views = state.watermarks.views
    return Freshness(
        views.snapshot,
        views.read_optimized,
        as_of=state.last.requested_at if state.last is not None else None,
        uncompacted_logs=state.watermarks.uncompacted,
        regression=state.regression,
        future=tuple(pair for pair in state.future if pair[1] > future_from_ms),
        partitions=LazyPartitionFreshness(snapshot),
    )


def blocking_log_files(snapshot: Snapshot, limit: int) -> tuple[BlockingLogFile, ...]:
    """Return the log files that hold back read-optimized completion, the most urgent first."""
    state, later = _last_stored_state(snapshot)
    partitions = state.logs_in
    for instant, commit in later:
        partitions = with_log_partitions(
            partitions, watermarks_by_partition(instant.requested_at, commit)
        )
    return uncompacted_logs(snapshot, partitions)[: max(0, limit)]


def load_state(snapshot: Snapshot, *, future_from_ms: int) -> FreshnessState:
    """Return the state after all completed writes: the newest recorded one with later writes."""
    state, later = _last_stored_state(snapshot)
    return apply_writes(snapshot, state, later, future_from_ms=future_from_ms)


def apply_writes(
    snapshot: Snapshot, state: FreshnessState, later: Iterable[Write], *, future_from_ms: int
) -> FreshnessState:
    """Return a state with later writes applied, which are in order of completion."""
    previous = state
    for instant, commit in later:
        previous = state
        parts = commit_watermarks(snapshot, instant, commit)
        state = apply_write(state, instant, commit, parts, future_from_ms=future_from_ms)
    if not state.stale:
        return state
    logs = uncompacted_logs(snapshot, state.logs_in)
    watermarks = state.watermarks.with_log_files(
        most_urgent(*(log.as_uncompacted_log for log in logs))
    )
    return replace(
        state,
        watermarks=watermarks,
        regression=None if previous.stale else detect_regression(previous.watermarks, watermarks),
        logs_in=bounded_partitions({log.partition for log in logs}),
        stale=False,
    )


def apply_write(
    state: FreshnessState,
    instant: Instant,
    commit: CommitMetadata,
    parts: Mapping[str, Watermarks],
    *,
    future_from_ms: int,
) -> FreshnessState:
    """Return a state with one write applied; `parts` are its watermarks by partition. Pure."""
    watermarks = state.watermarks.followed_by(combine(parts.values()))
    removed_logs = removes_logs(commit) and (
        state.stale or state.watermarks.uncompacted is not None
    )
    stale = state.stale or removed_logs
    return FreshnessState(
        watermarks,
        instant,
        _updated_entries(state, instant, commit, parts, removed_logs=removed_logs),
        None if stale else detect_regression(state.watermarks, watermarks),
        future_times(parts, state.future, future_from_ms),
        with_log_partitions(state.logs_in, parts),
        state.open,
        stale,
    )


def with_log_partitions(
    partitions: frozenset[str] | None, parts: Mapping[str, Watermarks]
) -> frozenset[str] | None:
    """Return the partitions that can have uncompacted log files, with those that a write adds."""
    if partitions is None:
        return None
    return bounded_partitions(
        partitions
        | {path for path, watermarks in parts.items() if watermarks.uncompacted is not None}
    )


def bounded_partitions(partitions: Collection[str]) -> frozenset[str] | None:
    """Return these partitions, or None if they are too many for a commit to list."""
    return frozenset(partitions) if len(partitions) <= _MAX_LISTED_PARTITIONS else None


def _updated_entries(
    state: FreshnessState,
    instant: Instant,
    commit: CommitMetadata,
    parts: Mapping[str, Watermarks],
    *,
    removed_logs: bool,
) -> dict[str, PartitionFreshnessRecord]:
    """Return the known partitions, without those whose log files have to be listed again."""
    outdated = dropped_partitions(commit)
    if removed_logs:
        outdated |= {*commit.stats, *commit.replaced}
    entries = {path: entry for path, entry in state.entries.items() if path not in outdated}
    since = "" if state.last is None else instant.requested_at
    for path, watermarks in parts.items():
        entry_before = entries.get(path)
        if entry_before is not None:
            entries[path] = PartitionFreshnessRecord(
                entry_before.watermarks.followed_by(watermarks), entry_before.since
            )
        elif path not in outdated:
            entries[path] = PartitionFreshnessRecord(watermarks, since)
    return entries


def commit_watermarks(
    snapshot: Snapshot, instant: Instant, commit: CommitMetadata
) -> dict[str, Watermarks]:
    """Return the watermarks that one write adds to each partition.

    A compaction of a writer that records no event times added those of the log files that it
    compacted.
    """
    parts = watermarks_by_partition(instant.requested_at, commit)
    without_times = [
        path
        for path, stats in commit.stats.items()
        if commit.operation == "COMPACT"
        and any(s.num_writes and s.max_event_time is None and not is_log(s) for s in stats)
    ]
    plan = snapshot.plan_of(instant.requested_at, Action.COMPACTION) if without_times else None
    if not isinstance(plan, CompactionPlan):
        return parts
    newest = _max_event_times(snapshot, plan)
    for path in without_times:
        time = max_known(parts[path].ro_freshness, newest.get(path))
        parts[path] = replace(parts[path], ro_freshness=time)
    return parts


def _max_event_times(snapshot: Snapshot, plan: CompactionPlan) -> dict[str, int | None]:
    """Return the greatest event time in the log files of a plan, by partition."""
    names = {
        (operation.partition, name): file.instant
        for operation in plan.operations
        for name in operation.logs
        if isinstance(file := parse_data_file(name), LogFile)
    }
    writes = [i for i in snapshot.timeline.completed_writes if i.requested_at in names.values()]
    times: dict[str, int | None] = {}
    for commit in snapshot.commits(writes):
        for path, stats in commit.stats.items():
            for stat in stats:
                if (path, (stat.path or "").rpartition("/")[2]) in names:
                    times[path] = max_known(times.get(path), stat.max_event_time)
    return times


def _last_stored_state(snapshot: Snapshot) -> tuple[FreshnessState, list[Write]]:
    """Return the newest state that a commit records, and the writes that completed after it."""
    later: list[Write] = []
    newest_first = snapshot.timeline.by_completion[::-1]
    for instant, commit in search_commits(snapshot, newest_first):
        record = parse_freshness_record(commit.extra)
        if record is not None and record.is_valid(instant, snapshot.timeline, snapshot.has_write):
            if later:
                later += _archived_since(snapshot, instant.completed_at or "")
            return FreshnessState.from_record(instant, record), _sorted_by_completion(later)
        later.append((instant, commit))
    return _last_archived_state(snapshot, later)


def _archived_since(snapshot: Snapshot, completed_at: InstantTime) -> list[Write]:
    """Return archived writes that completed after a time; they are archived as they began early."""
    late = snapshot.archived_after(completed_at)
    late = [i for i in late if (i.completed_at or "") > completed_at]
    return list(zip(late, snapshot.commits(late), strict=True))


def _last_archived_state(
    snapshot: Snapshot, active: list[Write]
) -> tuple[FreshnessState, list[Write]]:
    order = sorted([*(i for i, _ in active), *snapshot.archived], key=_completion_key)
    commits = {i.requested_at: commit for i, commit in active}
    archived = [i for i in order if i.requested_at not in commits]
    # The newest archived write is enough, if its writer recorded freshness.
    for instants in (archived[-1:], archived):
        commits |= _by_time(instants, snapshot.commits(instants))
        for index in range(len(order) - 1, -1, -1):
            instant = order[index]
            commit = commits.get(instant.requested_at)
            if commit is None:
                break
            record = parse_freshness_record(commit.extra)
            previous = order[index - 1] if index else None
            if record is not None and record.follows(previous, instant, snapshot.has_write):
                later = [(i, commits[i.requested_at]) for i in order[index + 1 :]]
                return FreshnessState.from_record(instant, record), later
    return FreshnessState(), [(i, commits[i.requested_at]) for i in order]


def _by_time(
    instants: Iterable[Instant], commits: Iterable[CommitMetadata]
) -> dict[str, CommitMetadata]:
    return {i.requested_at: commit for i, commit in zip(instants, commits, strict=True)}


def _sorted_by_completion(writes: Iterable[Write]) -> list[Write]:
    return sorted(writes, key=lambda item: _completion_key(item[0]))


def _completion_key(instant: Instant) -> tuple[str, Instant]:
    return instant.completed_at or "", instant


# The record that a write stores in its own commit.
#
# A write lists and reads before it takes the lock, on its base snapshot. Under the lock it adds
# only what has completed since.

# Sorts after all others: the completion time is chosen when the write commits.
_AFTER_ALL = "9" * 17

ByPartition = Mapping[str, UncompactedLog | None]


@dataclass(frozen=True)
class FreshnessTracker:
    """A write that is about to commit, with the state of the table before it.

    `uncompacted` are the log files that are uncompacted after it, the most urgent of each
    partition; None if it removes no log files. `opened` are partitions to be marked as done later,
    `closed` those that are marked now.
    """

    base: Snapshot
    instant: Instant
    action: Action
    commit: CommitMetadata
    future_from_ms: int
    state: FreshnessState
    uncompacted: ByPartition | None
    opened: tuple[str, ...] = ()
    closed: frozenset[str] = frozenset()

    @classmethod
    def prepare(
        cls,
        base: Snapshot,
        instant: InstantTime,
        action: Action,
        commit: CommitMetadata,
        *,
        future_from_ms: int,
    ) -> FreshnessTracker:
        """Compute the state before a write from its base snapshot; the files of the write exist."""
        completed = Instant(instant, action.completed_as, completed_at=_AFTER_ALL)
        state = load_state(base, future_from_ms=future_from_ms)
        tracker = cls(base, completed, action, commit, future_from_ms, state, None)
        if removes_logs(commit) and state.watermarks.uncompacted is not None:
            tracker = replace(tracker, uncompacted=tracker._uncompacted_after(base, state))
        return tracker

    def record(self, now: Snapshot) -> FreshnessRecord:
        """Return the record for the commit; `now` is the table as it is under the lock."""
        now = now.with_cached_commits(self.base)
        new_writes = self._writes_since(now)
        state = self.state if new_writes == [] else self._state_with(now, new_writes)
        parts = commit_watermarks(now, self.instant, self.commit)
        after = apply_write(
            state, self.instant, self.commit, parts, future_from_ms=self.future_from_ms
        )
        if after.stale:
            after = self._with_log_files_recounted(now, new_writes, state, after, parts)
        touched = {*self.commit.stats, *self.commit.replaced}
        last_write = state.last
        return FreshnessRecord(
            at=self.instant.requested_at,
            after=last_write.requested_at if last_write is not None else "",
            after_completed=(last_write.completed_at or "") if last_write is not None else "",
            over=removable(self.instant.requested_at, now.timeline),
            watermarks=after.watermarks,
            regression=after.regression,
            future=after.future,
            logs_in=after.logs_in,
            open=tuple(sorted({*state.open, *self.opened} - self.closed)),
            partitions={path: entry for path, entry in after.entries.items() if path in touched},
        )

    def _writes_since(self, current: Snapshot) -> list[Write] | None:
        """Return the writes that completed since `base`; None if `current` does not extend it."""
        on_timeline = current.timeline.by_time
        missing = [
            i for i in self.base.timeline if i.is_write and i.requested_at not in on_timeline
        ]
        if any(
            not i.is_completed or not current.timeline.is_archived(i.requested_at) for i in missing
        ):
            return None
        base_writes = [i for i in self.base.timeline.by_completion if i not in missing]
        order = list(current.timeline.by_completion)
        if order[: len(base_writes)] != base_writes:
            return None
        new_writes = order[len(base_writes) :]
        return list(zip(new_writes, current.commits(new_writes), strict=True))

    def _state_with(self, current: Snapshot, new_writes: list[Write] | None) -> FreshnessState:
        if new_writes is None:
            return load_state(current, future_from_ms=self.future_from_ms)
        return apply_writes(current, self.state, new_writes, future_from_ms=self.future_from_ms)

    def _with_log_files_recounted(
        self,
        current: Snapshot,
        new_writes: list[Write] | None,
        state: FreshnessState,
        after: FreshnessState,
        parts: Mapping[str, Watermarks],
    ) -> FreshnessState:
        """Return the state after a write that removes log files, with those that are left."""
        can_extend = new_writes is not None and not any(
            removes_logs(commit) for _, commit in new_writes
        )
        if self.uncompacted is not None and can_extend:
            uncompacted = _with_new_writes(self.uncompacted, current, new_writes or ())
        else:
            uncompacted = self._uncompacted_after(current, state)
        watermarks = after.watermarks.with_log_files(most_urgent(*uncompacted.values()))
        entries = dict(after.entries)
        for path in self.commit.stats:
            entry = state.entries.get(path) or PartitionFreshnessRecord(
                NO_WATERMARKS, self.instant.requested_at
            )
            partition_watermarks = entry.watermarks.followed_by(parts.get(path, NO_WATERMARKS))
            entries[path] = PartitionFreshnessRecord(
                partition_watermarks.with_log_files(uncompacted.get(path)), entry.since
            )
        return replace(
            after,
            watermarks=watermarks,
            entries=entries,
            regression=detect_regression(state.watermarks, watermarks),
            logs_in=bounded_partitions(
                {path for path, log in uncompacted.items() if log is not None}
            ),
            stale=False,
        )

    def _uncompacted_after(self, snapshot: Snapshot, state: FreshnessState) -> ByPartition:
        """Return the log files of a snapshot that are uncompacted after this write."""
        timeline = snapshot.timeline.with_completed(self.instant, self.action)
        after = snapshot.with_write(timeline, self.instant.requested_at, self.commit)
        by_partition: dict[str, UncompactedLog | None] = {}
        partitions = with_log_partitions(
            state.logs_in, watermarks_by_partition(self.instant.requested_at, self.commit)
        )
        for log in uncompacted_logs(after, partitions):
            by_partition[log.partition] = most_urgent(
                by_partition.get(log.partition), log.as_uncompacted_log
            )
        return by_partition


def _with_new_writes(
    uncompacted: ByPartition, current: Snapshot, new_writes: Iterable[Write]
) -> ByPartition:
    by_partition = dict(uncompacted)
    for instant, commit in new_writes:
        for path, watermarks in commit_watermarks(current, instant, commit).items():
            by_partition[path] = most_urgent(by_partition.get(path), watermarks.uncompacted)
    return by_partition
