"""Completion and freshness of a table, from commits alone; what the newest one keeps is reused."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace

from lakewright.core.commits import CommitMetadata, is_log
from lakewright.core.files import LogFile, parse_data_file
from lakewright.core.freshness import (
    NO_MARKS,
    Fall,
    Freshness,
    FutureTime,
    Marks,
    dropped_partitions,
    fall_of,
    first,
    future_times,
    greatest,
    joined,
    marks_by_partition,
    removes_logs,
)
from lakewright.core.instant import Instant
from lakewright.core.plans import CompactionPlan
from lakewright.core.stored_freshness import Entry, Stored, parse_stored
from lakewright.table.partition_freshness import PartitionViews
from lakewright.table.snapshot import Snapshot
from lakewright.table.waiting_logs import HeldBack, waiting_logs

Write = tuple[Instant, CommitMetadata]

# Every commit names them; beyond that, what compactions have left tells where to look.
_MOST_NAMED = 2000


@dataclass(frozen=True, slots=True)
class State:
    """What all writes up to one of them have made of a table.

    `entries` are the partitions known from the newest of them. `logs_in` are the partitions in
    which log files can wait, None if they are too many to tell. `stale` tells that log files were
    taken out since they were counted.
    """

    marks: Marks = NO_MARKS
    last: Instant | None = None
    entries: Mapping[str, Entry] = field(default_factory=dict)
    fell: Fall | None = None
    future: tuple[FutureTime, ...] = ()
    logs_in: frozenset[str] | None = frozenset()
    open: tuple[str, ...] = ()
    stale: bool = False

    @classmethod
    def of(cls, instant: Instant, stored: Stored) -> State:
        """What a commit keeps."""
        kept = (stored.fell, stored.future, stored.logs_in, stored.open)
        return cls(stored.marks, instant, stored.partitions, *kept)


def measure(snapshot: Snapshot, *, future_from_ms: int) -> Freshness:
    """Completion and freshness of a table; event times above `future_from_ms` are flagged."""
    state = load_state(snapshot, future_from_ms=future_from_ms)
    views = state.marks.views
    return Freshness(
        views.snapshot,
        views.read_optimized,
        as_of=state.last.requested_at if state.last is not None else None,
        waiting=state.marks.waiting,
        fell=state.fell,
        future=tuple(pair for pair in state.future if pair[1] > future_from_ms),
        partitions=PartitionViews(snapshot),
    )


def holding(snapshot: Snapshot, limit: int) -> tuple[HeldBack, ...]:
    """The log files that hold read-optimized completion back, the worst first."""
    state, later = _foundation(snapshot)
    places = state.logs_in
    for instant, commit in later:
        places = with_logs(places, marks_by_partition(instant.requested_at, commit))
    return waiting_logs(snapshot, places)[: max(0, limit)]


def load_state(snapshot: Snapshot, *, future_from_ms: int) -> State:
    """What all completed writes have made of the table.

    Begins with the newest commit that keeps it, and folds the later ones.
    """
    state, later = _foundation(snapshot)
    return follow(snapshot, state, later, future_from_ms=future_from_ms)


def follow(
    snapshot: Snapshot, state: State, later: Iterable[Write], *, future_from_ms: int
) -> State:
    """A state with later writes of a snapshot, in the order in which they completed."""
    before = state
    for instant, commit in later:
        before = state
        parts = contribution(snapshot, instant, commit)
        state = fold(state, instant, commit, parts, future_from_ms=future_from_ms)
    if not state.stale:
        return state
    held = waiting_logs(snapshot, state.logs_in)
    marks = state.marks.counted(first(*(each.waiting for each in held)))
    return replace(
        state,
        marks=marks,
        fell=None if before.stale else fall_of(before.marks, marks),
        logs_in=few_enough({each.partition for each in held}),
        stale=False,
    )


def fold(
    state: State,
    instant: Instant,
    commit: CommitMetadata,
    parts: Mapping[str, Marks],
    *,
    future_from_ms: int,
) -> State:
    """A state with one more write, of which `parts` is the contribution. Pure."""
    marks = state.marks.then(joined(parts.values()))
    loses = removes_logs(commit) and (state.stale or state.marks.waiting is not None)
    stale = state.stale or loses
    return State(
        marks,
        instant,
        _entries(state, instant, commit, parts, loses=loses),
        None if stale else fall_of(state.marks, marks),
        future_times(parts, state.future, future_from_ms),
        with_logs(state.logs_in, parts),
        state.open,
        stale,
    )


def with_logs(places: frozenset[str] | None, parts: Mapping[str, Marks]) -> frozenset[str] | None:
    """The partitions in which log files can wait, with those that a write has added."""
    if places is None:
        return None
    return few_enough(places | {path for path, each in parts.items() if each.waiting is not None})


def few_enough(places: Collection[str]) -> frozenset[str] | None:
    """These partitions, if a commit can name them all."""
    return frozenset(places) if len(places) <= _MOST_NAMED else None


def _entries(
    state: State,
    instant: Instant,
    commit: CommitMetadata,
    parts: Mapping[str, Marks],
    *,
    loses: bool,
) -> dict[str, Entry]:
    """What is known of partitions; not of those whose log files have to be counted anew."""
    gone = dropped_partitions(commit)
    if loses:
        gone |= {*commit.stats, *commit.replaced}
    found = {path: entry for path, entry in state.entries.items() if path not in gone}
    since = "" if state.last is None else instant.requested_at
    for path, marks in parts.items():
        known = found.get(path)
        if known is not None:
            found[path] = Entry(known.marks.then(marks), known.since)
        elif path not in gone:
            found[path] = Entry(marks, since)
    return found


def contribution(snapshot: Snapshot, instant: Instant, commit: CommitMetadata) -> dict[str, Marks]:
    """What one write says about each partition.

    A compaction of a writer that records no event times brought what the log files held that it
    folded in.
    """
    parts = marks_by_partition(instant.requested_at, commit)
    silent = [
        path
        for path, stats in commit.stats.items()
        if commit.operation == "COMPACT"
        and any(s.num_writes and s.max_event_time is None and not is_log(s) for s in stats)
    ]
    plan = snapshot.plan_of(instant.requested_at, "compaction") if silent else None
    if not isinstance(plan, CompactionPlan):
        return parts
    newest = _newest_in_logs(snapshot, plan)
    for path in silent:
        time = greatest(parts[path].ro_freshness, newest.get(path))
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
                    found[path] = greatest(found.get(path), stat.max_event_time)
    return found


def _foundation(snapshot: Snapshot) -> tuple[State, list[Write]]:
    """The newest state that a commit keeps, and the writes that completed after it."""
    later: list[Write] = []
    for instant in reversed(snapshot.timeline.by_completion):
        (commit,) = snapshot.commits([instant])
        stored = parse_stored(commit.extra)
        if stored is not None and stored.holds(instant, snapshot.timeline, snapshot.has_write):
            if later:
                later += _archived_since(snapshot, instant.completed_at or "")
            return State.of(instant, stored), _in_order(later)
        later.append((instant, commit))
    return _foundation_in_history(snapshot, later)


def _archived_since(snapshot: Snapshot, completed_at: str) -> list[Write]:
    """The writes that completed after a time and are archived all the same: they began before."""
    late = snapshot.archived_after(completed_at)
    late = [i for i in late if (i.completed_at or "") > completed_at]
    return list(zip(late, snapshot.commits(late), strict=True))


def _foundation_in_history(snapshot: Snapshot, active: list[Write]) -> tuple[State, list[Write]]:
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
            stored = parse_stored(commit.extra)
            before = order[place - 1] if place else None
            if stored is not None and stored.follows(before, instant, snapshot.has_write):
                later = [(i, known[i.requested_at]) for i in order[place + 1 :]]
                return State.of(instant, stored), later
    return State(), [(i, known[i.requested_at]) for i in order]


def _by_time(
    instants: Iterable[Instant], commits: Iterable[CommitMetadata]
) -> dict[str, CommitMetadata]:
    return {i.requested_at: each for i, each in zip(instants, commits, strict=True)}


def _in_order(writes: Iterable[Write]) -> list[Write]:
    return sorted(writes, key=lambda item: _completion(item[0]))


def _completion(instant: Instant) -> tuple[str, Instant]:
    return instant.completed_at or "", instant
