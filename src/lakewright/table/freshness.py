"""Completion and freshness of a table, from commits alone; what the newest one keeps is reused."""

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
from lakewright.table.snapshot import Snapshot


@dataclass(frozen=True, slots=True)
class BlockingLogFile:
    """A log file that holds read-optimized completion back; `instant` is the write that made it.

    Its least event time is None where it is unknown: nothing is known to be complete then.
    """

    partition: str
    file_id: str
    log: str
    instant: InstantTime
    event_time: int | None
    size: int

    @property
    def as_uncompacted_log(self) -> UncompactedLog:
        """The log file as commits keep it."""
        path = f"{self.partition}/{self.log}" if self.partition else self.log
        return UncompactedLog(path, self.instant, self.event_time)


def uncompacted_logs(
    snapshot: Snapshot, partitions: Iterable[str] | None
) -> tuple[BlockingLogFile, ...]:
    """The log files that wait in partitions, of an unknown event time first, then by event time.

    None: in those that can have such files, by what the last compaction has left.
    """
    looked_at = partitions_with_logs(snapshot) if partitions is None else tuple(sorted(partitions))
    if looked_at == ():
        return ()
    groups = snapshot.groups(snapshot.view(), snapshot.files(looked_at))
    slices = [group.latest_merged_slice() for group in groups]
    commits = load_known_commits(snapshot, {log.instant for item in slices for log in item.logs})
    by_path = {at: _by_path(at, commit) for at, commit in commits.items()}
    joined = _log_compaction_sources(snapshot, commits)
    found = []
    for item in slices:
        for log in _effective_logs(item, joined):
            held = _blocking_log(item, log, commits.get(log.instant), by_path.get(log.instant, {}))
            found += [] if held is None else [held]
    return tuple(sorted(found, key=_urgency))


def _log_compaction_sources(
    snapshot: Snapshot, commits: Mapping[str, CommitMetadata]
) -> dict[str, dict[GroupKey, frozenset[str]]]:
    """By the log compactions among some writes: the log files that each of them stands for.

    One whose plan is not there any more stands for none that is known.
    """
    found = {}
    for at, commit in commits.items():
        if commit.operation == "LOG_COMPACT":
            plan = snapshot.plan_of(at, Action.LOG_COMPACTION)
            if isinstance(plan, CompactionPlan):
                found[at] = {(o.partition, o.file_id): frozenset(o.logs) for o in plan.operations}
    return found


def _effective_logs(
    item: FileSlice, joined: Mapping[str, Mapping[GroupKey, frozenset[str]]]
) -> list[LogFile]:
    """The log files of a slice, without those that were written once more in another one."""
    key = item.partition, item.file_id
    gone: set[str] = set()
    for at in {log.instant for log in item.logs} & joined.keys():
        gone |= joined[at].get(key, frozenset())
    return [log for log in item.logs if log.name not in gone]


def _urgency(held: BlockingLogFile) -> tuple[bool, int, str, str]:
    known = held.event_time is not None
    return known, held.event_time or 0, held.partition, held.log


def _by_path(at: str, commit: CommitMetadata) -> dict[str, UncompactedLog | None]:
    return {
        stat.path or "": uncompacted_log_of(at, commit.operation, stat)
        for stat in commit.write_stats()
        if is_log(stat)
    }


def _blocking_log(
    item: FileSlice,
    log: LogFile,
    commit: CommitMetadata | None,
    by_path: dict[str, UncompactedLog | None],
) -> BlockingLogFile | None:
    """A log file as its commit tells of it; None if nothing in it waits."""
    path = item.path(log)
    if path in by_path:
        told = by_path[path]
        if told is None:
            return None
        time = told.event_time
    else:
        time = _min_event_time_of_group(item, log, commit)
    return BlockingLogFile(item.partition, item.file_id, log.name, log.instant, time, log.size)


def _min_event_time_of_group(
    item: FileSlice, log: LogFile, commit: CommitMetadata | None
) -> int | None:
    """The least time of what a commit says of the file group, where it does not name the file."""
    stats = commit.stats.get(item.partition, ()) if commit is not None else ()
    told = [
        uncompacted_log_of(log.instant, commit.operation if commit else None, stat)
        for stat in stats
        if stat.file_id == item.file_id and is_log(stat)
    ]
    held = most_urgent(*told)
    return held.event_time if held is not None else None


def load_known_commits(snapshot: Snapshot, times: Iterable[str]) -> dict[str, CommitMetadata]:
    """What writes did; one that neither timeline nor history tells of is left out: unknown."""
    instants = [
        snapshot.timeline.by_time.get(at) or Instant(at, Action.DELTA_COMMIT) for at in times
    ]
    try:
        found = snapshot.commits(instants)
    except CorruptError:
        return _commits_one_by_one(snapshot, instants)
    return {i.requested_at: commit for i, commit in zip(instants, found, strict=True)}


def _commits_one_by_one(
    snapshot: Snapshot, instants: Iterable[Instant]
) -> dict[str, CommitMetadata]:
    found = {}
    for instant in instants:
        try:
            (found[instant.requested_at],) = snapshot.commits([instant])
        except CorruptError:
            continue
    return found


# ------------------------------------------------------------------------------------------------
# Completion and freshness of partitions: looked up, commit by commit, when they are asked for.


class LazyPartitionFreshness(Mapping[str, PartitionFreshness]):
    """The partitions of a table that hold something, each with its completion and freshness.

    One that is asked for costs the commits from the newest back to where its values are whole; to
    go through all of them costs every commit, in history too.
    """

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self._known: dict[str, PartitionFreshness | None] = {}
        self._all: tuple[str, ...] | None = None

    def __getitem__(self, partition: str) -> PartitionFreshness:
        """The values of a partition; KeyError if no commit wrote it, or if it was deleted."""
        if partition not in self._known and self._all is None:
            found = _search_backwards(self._snapshot, {partition})
            self._known[partition] = found.get(partition)
        values = self._known.get(partition)
        if values is None:
            raise KeyError(partition)
        return values

    def __iter__(self) -> Iterator[str]:
        """The partitions, sorted."""
        return iter(self._listed())

    def __len__(self) -> int:
        """How many there are."""
        return len(self._listed())

    def _listed(self) -> tuple[str, ...]:
        if self._all is None:
            found = _search_backwards(self._snapshot, None)
            self._known = dict(found)
            self._all = tuple(sorted(found))
        return self._all


@dataclass
class _PartitionSearch:
    """What is known of one partition on the way back.

    `marks` already includes commits that completed at `covered_from` or later; those that
    completed before `born` wrote rows that were deleted since.
    """

    marks: Watermarks = NO_WATERMARKS
    found: bool = False
    whole: bool = False
    recount: bool = False
    covered_from: str = ""
    born: str = ""

    def prepend(self, marks: Watermarks) -> None:
        """Put an older commit before what is known."""
        self.marks = marks.followed_by(self.marks)
        self.found = True

    def wants(self, instant: Instant) -> bool:
        """Whether a commit that is met on the way back has anything to add."""
        at = instant.completed_at or ""
        if at <= self.born:
            self.whole = True
        return not self.whole and (not self.covered_from or at < self.covered_from)


def _search_backwards(snapshot: Snapshot, wanted: set[str] | None) -> dict[str, PartitionFreshness]:
    """Go back through the commits until all wanted partitions are known, or to the beginning."""
    searches: dict[str, _PartitionSearch] = {path: _PartitionSearch() for path in wanted or ()}
    for instant, commit in _writes_newest_first(snapshot):
        touched = {*commit.stats, *commit.replaced}
        met = {
            path: search
            for path in (touched if wanted is None else touched & wanted)
            if (search := searches.setdefault(path, _PartitionSearch())).wants(instant)
        }
        if met:
            _visit_commit(snapshot, met, instant, commit)
        if wanted is not None and all(search.whole for search in searches.values()):
            break
    return _resolved(snapshot, searches)


def _visit_commit(
    snapshot: Snapshot,
    met: Mapping[str, _PartitionSearch],
    instant: Instant,
    commit: CommitMetadata,
) -> None:
    """Let searches take what a commit says about their partitions."""
    kept = _stored_record(snapshot, instant, commit)
    dropped = dropped_partitions(commit)
    own = watermarks_by_partition(instant.requested_at, commit)
    for path, search in met.items():
        entry = kept.get(path)
        if entry is not None:
            search.prepend(entry.watermarks)
            search.whole = not entry.since
            if entry.since:
                search.covered_from = _completed_at(snapshot, entry.since) or ""
        elif path in dropped:
            # What completed after the delete was requested it need not have seen.
            search.born = instant.requested_at
            search.recount = True
        else:
            search.recount |= removes_logs(commit)
            search.prepend(own.get(path, NO_WATERMARKS))


def _stored_record(
    snapshot: Snapshot, instant: Instant, commit: CommitMetadata
) -> Mapping[str, PartitionFreshnessRecord]:
    """What a commit keeps of partitions, if it is its own word."""
    stored = parse_freshness_record(commit.extra)
    if stored is None:
        return {}
    if instant.requested_at in snapshot.timeline.by_time:
        holds = stored.holds(instant, snapshot.timeline, snapshot.has_write)
    else:
        holds = stored.is_of(instant, snapshot.has_write)
    return stored.partitions if holds else {}


def _resolved(
    snapshot: Snapshot, searches: Mapping[str, _PartitionSearch]
) -> dict[str, PartitionFreshness]:
    """The values of what was found; log files are counted anew where some were taken out."""
    found = {path: search for path, search in searches.items() if search.found}
    unsure = sorted(path for path, search in found.items() if search.recount)
    held = uncompacted_logs(snapshot, unsure) if unsure else ()
    worst: dict[str, UncompactedLog | None] = {}
    for each in held:
        worst[each.partition] = most_urgent(worst.get(each.partition), each.as_uncompacted_log)
    return {
        path: (s.marks.with_log_files(worst.get(path)) if s.recount else s.marks).views
        for path, s in found.items()
    }


def _writes_newest_first(snapshot: Snapshot) -> Iterator[tuple[Instant, CommitMetadata]]:
    """The completed writes, the one that completed last first; history only as far as asked for."""
    active = snapshot.timeline.by_completion
    oldest = active[0].completed_at or "" if active else ""
    # A write that began early and ended late may be archived before others that it outlived.
    late = snapshot.archived_after(oldest) if active else []
    yield from _in_batches(snapshot, _by_completion_descending([*active, *late]))
    seen = {instant.requested_at for instant in late}
    rest = [i for i in snapshot.archived if i.requested_at not in seen]
    yield from zip(
        _by_completion_descending(rest),
        snapshot.commits(_by_completion_descending(rest)),
        strict=True,
    )


def _by_completion_descending(instants: Iterable[Instant]) -> list[Instant]:
    return sorted(instants, key=lambda i: i.completed_at or "", reverse=True)


def _in_batches(
    snapshot: Snapshot, instants: Iterable[Instant]
) -> Iterator[tuple[Instant, CommitMetadata]]:
    for instant in instants:
        yield instant, snapshot.commits([instant])[0]


def _completed_at(snapshot: Snapshot, requested_at: InstantTime) -> str | None:
    known = snapshot.view().completion(requested_at)
    return known or snapshot.archived_times.get(requested_at)


# ------------------------------------------------------------------------------------------------
# The log files that no base file holds yet, with their event times; no data file is read.


Write = tuple[Instant, CommitMetadata]

# Every commit names them; beyond that, what compactions have left tells where to look.
_MOST_NAMED = 2000


@dataclass(frozen=True, slots=True)
class FreshnessState:
    """What all writes up to one of them have made of a table.

    `entries` are the partitions known from the newest of them. `logs_in` are the partitions in
    which log files can wait, None if they are too many to tell. `stale` tells that log files were
    taken out since they were counted.
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
        """What a commit keeps."""
        kept = (stored.regression, stored.future, stored.logs_in, stored.open)
        return cls(stored.watermarks, instant, stored.partitions, *kept)


def compute_freshness(snapshot: Snapshot, *, future_from_ms: int) -> Freshness:
    """Completion and freshness of a table; event times above `future_from_ms` are flagged."""
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
    """The log files that hold read-optimized completion back, the worst first."""
    state, later = _last_stored_state(snapshot)
    places = state.logs_in
    for instant, commit in later:
        places = with_log_partitions(places, watermarks_by_partition(instant.requested_at, commit))
    return uncompacted_logs(snapshot, places)[: max(0, limit)]


def load_state(snapshot: Snapshot, *, future_from_ms: int) -> FreshnessState:
    """What all completed writes have made of the table.

    Begins with the newest commit that keeps it, and folds the later ones.
    """
    state, later = _last_stored_state(snapshot)
    return apply_writes(snapshot, state, later, future_from_ms=future_from_ms)


def apply_writes(
    snapshot: Snapshot, state: FreshnessState, later: Iterable[Write], *, future_from_ms: int
) -> FreshnessState:
    """A state with later writes of a snapshot, in the order in which they completed."""
    before = state
    for instant, commit in later:
        before = state
        parts = commit_watermarks(snapshot, instant, commit)
        state = apply_write(state, instant, commit, parts, future_from_ms=future_from_ms)
    if not state.stale:
        return state
    held = uncompacted_logs(snapshot, state.logs_in)
    marks = state.watermarks.with_log_files(
        most_urgent(*(each.as_uncompacted_log for each in held))
    )
    return replace(
        state,
        watermarks=marks,
        regression=None if before.stale else detect_regression(before.watermarks, marks),
        logs_in=bounded_partitions({each.partition for each in held}),
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
    """A state with one more write, of which `parts` is the contribution. Pure."""
    marks = state.watermarks.followed_by(combine(parts.values()))
    loses = removes_logs(commit) and (state.stale or state.watermarks.uncompacted is not None)
    stale = state.stale or loses
    return FreshnessState(
        marks,
        instant,
        _entries(state, instant, commit, parts, loses=loses),
        None if stale else detect_regression(state.watermarks, marks),
        future_times(parts, state.future, future_from_ms),
        with_log_partitions(state.logs_in, parts),
        state.open,
        stale,
    )


def with_log_partitions(
    places: frozenset[str] | None, parts: Mapping[str, Watermarks]
) -> frozenset[str] | None:
    """The partitions in which log files can wait, with those that a write has added."""
    if places is None:
        return None
    return bounded_partitions(
        places | {path for path, each in parts.items() if each.uncompacted is not None}
    )


def bounded_partitions(places: Collection[str]) -> frozenset[str] | None:
    """These partitions, if a commit can name them all."""
    return frozenset(places) if len(places) <= _MOST_NAMED else None


def _entries(
    state: FreshnessState,
    instant: Instant,
    commit: CommitMetadata,
    parts: Mapping[str, Watermarks],
    *,
    loses: bool,
) -> dict[str, PartitionFreshnessRecord]:
    """What is known of partitions; not of those whose log files have to be counted anew."""
    gone = dropped_partitions(commit)
    if loses:
        gone |= {*commit.stats, *commit.replaced}
    found = {path: entry for path, entry in state.entries.items() if path not in gone}
    since = "" if state.last is None else instant.requested_at
    for path, marks in parts.items():
        known = found.get(path)
        if known is not None:
            found[path] = PartitionFreshnessRecord(known.watermarks.followed_by(marks), known.since)
        elif path not in gone:
            found[path] = PartitionFreshnessRecord(marks, since)
    return found


def commit_watermarks(
    snapshot: Snapshot, instant: Instant, commit: CommitMetadata
) -> dict[str, Watermarks]:
    """What one write says about each partition.

    A compaction of a writer that records no event times brought what the log files held that it
    folded in.
    """
    parts = watermarks_by_partition(instant.requested_at, commit)
    silent = [
        path
        for path, stats in commit.stats.items()
        if commit.operation == "COMPACT"
        and any(s.num_writes and s.max_event_time is None and not is_log(s) for s in stats)
    ]
    plan = snapshot.plan_of(instant.requested_at, Action.COMPACTION) if silent else None
    if not isinstance(plan, CompactionPlan):
        return parts
    newest = _newest_in_logs(snapshot, plan)
    for path in silent:
        time = max_known(parts[path].ro_freshness, newest.get(path))
        parts[path] = replace(parts[path], ro_freshness=time)
    return parts


def _newest_in_logs(snapshot: Snapshot, plan: CompactionPlan) -> dict[str, int | None]:
    """The greatest event time in the log files of a plan, by partition."""
    names = {
        (operation.partition, name): file.instant
        for operation in plan.operations
        for name in operation.logs
        if isinstance(file := parse_data_file(name), LogFile)
    }
    writes = [i for i in snapshot.timeline.completed_writes if i.requested_at in names.values()]
    found: dict[str, int | None] = {}
    for commit in snapshot.commits(writes):
        for path, stats in commit.stats.items():
            for stat in stats:
                if (path, (stat.path or "").rpartition("/")[2]) in names:
                    found[path] = max_known(found.get(path), stat.max_event_time)
    return found


def _last_stored_state(snapshot: Snapshot) -> tuple[FreshnessState, list[Write]]:
    """The newest state that a commit keeps, and the writes that completed after it."""
    later: list[Write] = []
    for instant in reversed(snapshot.timeline.by_completion):
        (commit,) = snapshot.commits([instant])
        stored = parse_freshness_record(commit.extra)
        if stored is not None and stored.holds(instant, snapshot.timeline, snapshot.has_write):
            if later:
                later += _archived_since(snapshot, instant.completed_at or "")
            return FreshnessState.from_record(instant, stored), _in_order(later)
        later.append((instant, commit))
    return _last_archived_state(snapshot, later)


def _archived_since(snapshot: Snapshot, completed_at: InstantTime) -> list[Write]:
    """The writes that completed after a time and are archived all the same: they began before."""
    late = snapshot.archived_after(completed_at)
    late = [i for i in late if (i.completed_at or "") > completed_at]
    return list(zip(late, snapshot.commits(late), strict=True))


def _last_archived_state(
    snapshot: Snapshot, active: list[Write]
) -> tuple[FreshnessState, list[Write]]:
    order = sorted([*(i for i, _ in active), *snapshot.archived], key=_completion)
    known = {i.requested_at: commit for i, commit in active}
    archived = [i for i in order if i.requested_at not in known]
    # The newest one tells all, if it was written by a writer that keeps freshness.
    for wanted in (archived[-1:], archived):
        known |= _by_time(wanted, snapshot.commits(wanted))
        for place in range(len(order) - 1, -1, -1):
            instant = order[place]
            commit = known.get(instant.requested_at)
            if commit is None:
                break
            stored = parse_freshness_record(commit.extra)
            before = order[place - 1] if place else None
            if stored is not None and stored.follows(before, instant, snapshot.has_write):
                later = [(i, known[i.requested_at]) for i in order[place + 1 :]]
                return FreshnessState.from_record(instant, stored), later
    return FreshnessState(), [(i, known[i.requested_at]) for i in order]


def _by_time(
    instants: Iterable[Instant], commits: Iterable[CommitMetadata]
) -> dict[str, CommitMetadata]:
    return {i.requested_at: each for i, each in zip(instants, commits, strict=True)}


def _in_order(writes: Iterable[Write]) -> list[Write]:
    return sorted(writes, key=lambda item: _completion(item[0]))


def _completion(instant: Instant) -> tuple[str, Instant]:
    return instant.completed_at or "", instant


# ------------------------------------------------------------------------------------------------
# What a write keeps of completion and freshness in its own commit.
#
# Listing and reading happen before the lock is taken, on the table as the write knows it. Under
# the
# lock only what completed meanwhile is added.


# After all others: the time is chosen when the write completes.
_LAST = "9" * 17

ByPartition = Mapping[str, UncompactedLog | None]


@dataclass(frozen=True)
class FreshnessTracker:
    """A write that is about to complete, and what is known of the table before it.

    `waiting` are the log files that will wait once it has completed, by partition; None where it
    takes none out. `opened` are partitions that are to be marked as done one day, `closed` those
    that are.
    """

    base: Snapshot
    own: Instant
    action: Action
    commit: CommitMetadata
    future_from_ms: int
    state: FreshnessState
    waiting: ByPartition | None
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
        """Look at the table as a write has found it, whose files are all there by now."""
        own = Instant(instant, action.completed_as, completed_at=_LAST)
        state = load_state(base, future_from_ms=future_from_ms)
        made = cls(base, own, action, commit, future_from_ms, state, None)
        if removes_logs(commit) and state.watermarks.uncompacted is not None:
            made = replace(made, waiting=made._count(base, state))
        return made

    def record(self, now: Snapshot) -> FreshnessRecord:
        """What the commit keeps, on the table as it is under the lock."""
        now = now.with_cached_commits(self.base)
        new = self._writes_since(now)
        state = self.state if new == [] else self._state_with(now, new)
        parts = commit_watermarks(now, self.own, self.commit)
        after = apply_write(state, self.own, self.commit, parts, future_from_ms=self.future_from_ms)
        if after.stale:
            after = self._with_log_files_recounted(now, new, state, after, parts)
        touched = {*self.commit.stats, *self.commit.replaced}
        last = state.last
        return FreshnessRecord(
            at=self.own.requested_at,
            after=last.requested_at if last is not None else "",
            after_completed=(last.completed_at or "") if last is not None else "",
            over=removable(self.own.requested_at, now.timeline),
            watermarks=after.watermarks,
            regression=after.regression,
            future=after.future,
            logs_in=after.logs_in,
            open=tuple(sorted({*state.open, *self.opened} - self.closed)),
            partitions={path: e for path, e in after.entries.items() if path in touched},
        )

    def _writes_since(self, now: Snapshot) -> list[Write] | None:
        """What completed since the table was looked at; None if it is not simply a continuation."""
        there = now.timeline.by_time
        gone = [i for i in self.base.timeline if i.is_write and i.requested_at not in there]
        if any(not i.is_completed or not now.timeline.is_archived(i.requested_at) for i in gone):
            return None
        known = [i for i in self.base.timeline.by_completion if i not in gone]
        order = list(now.timeline.by_completion)
        if order[: len(known)] != known:
            return None
        new = order[len(known) :]
        return list(zip(new, now.commits(new), strict=True))

    def _state_with(self, now: Snapshot, new: list[Write] | None) -> FreshnessState:
        if new is None:
            return load_state(now, future_from_ms=self.future_from_ms)
        return apply_writes(now, self.state, new, future_from_ms=self.future_from_ms)

    def _with_log_files_recounted(
        self,
        now: Snapshot,
        new: list[Write] | None,
        state: FreshnessState,
        after: FreshnessState,
        parts: Mapping[str, Watermarks],
    ) -> FreshnessState:
        """The state after a write that takes log files out, with those that are left."""
        simple = new is not None and not any(removes_logs(commit) for _, commit in new)
        if self.waiting is not None and simple:
            waiting = _with_new(self.waiting, now, new or ())
        else:
            waiting = self._count(now, state)
        marks = after.watermarks.with_log_files(most_urgent(*waiting.values()))
        entries = dict(after.entries)
        for path in self.commit.stats:
            known = state.entries.get(path) or PartitionFreshnessRecord(
                NO_WATERMARKS, self.own.requested_at
            )
            told = known.watermarks.followed_by(parts.get(path, NO_WATERMARKS))
            entries[path] = PartitionFreshnessRecord(
                told.with_log_files(waiting.get(path)), known.since
            )
        return replace(
            after,
            watermarks=marks,
            entries=entries,
            regression=detect_regression(state.watermarks, marks),
            logs_in=bounded_partitions(
                {path for path, each in waiting.items() if each is not None}
            ),
            stale=False,
        )

    def _count(self, snapshot: Snapshot, state: FreshnessState) -> ByPartition:
        """The log files that wait once this write has completed, on one look at the table."""
        timeline = snapshot.timeline.with_completed(self.own, self.action)
        after = snapshot.with_write(timeline, self.own.requested_at, self.commit)
        found: dict[str, UncompactedLog | None] = {}
        places = with_log_partitions(
            state.logs_in, watermarks_by_partition(self.own.requested_at, self.commit)
        )
        for held in uncompacted_logs(after, places):
            found[held.partition] = most_urgent(found.get(held.partition), held.as_uncompacted_log)
        return found


def _with_new(waiting: ByPartition, now: Snapshot, new: Iterable[Write]) -> ByPartition:
    found = dict(waiting)
    for instant, commit in new:
        for path, marks in commit_watermarks(now, instant, commit).items():
            found[path] = most_urgent(found.get(path), marks.uncompacted)
    return found
