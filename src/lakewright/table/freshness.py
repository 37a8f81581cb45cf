"""Completion and freshness of a table, from commit metadata alone; no data file is read.

Every commit of Lakewright records the freshness of the table after it, as a `FreshnessRecord`. So
the current state is the newest valid record with the writes applied that completed after it. Only
after a commit that removes log files, such as a compaction, are the uncompacted log files listed
again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace

from lakewright.model.commit_metadata import SERVICE_OPERATIONS, CommitMetadata, is_log
from lakewright.model.file_group import LogFile, parse_data_file
from lakewright.model.freshness import (
    NO_WATERMARKS,
    CompletionRegression,
    Freshness,
    FreshnessRecord,
    FutureTime,
    PartitionFreshness,
    PartitionFreshnessRecord,
    Watermarks,
    combine,
    detect_regression,
    dropped_partitions,
    future_times,
    max_known,
    most_urgent,
    parse_freshness_record,
    removes_logs,
    split_threshold_ms,
    watermarks_by_partition,
    withdraws_rows,
)
from lakewright.model.instant import Action, Instant, InstantTime
from lakewright.model.plans import CompactionPlan
from lakewright.model.watermark import parse_watermark_record
from lakewright.table.commit_search import search_commits
from lakewright.table.freshness_options import allowed_lateness
from lakewright.table.partition_freshness import LazyPartitionFreshness
from lakewright.table.snapshot import Snapshot
from lakewright.table.uncompacted_logs import BlockingLogFile, uncompacted_logs

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
    `lateness_ms` is the lateness that the newest commit with one records, for the watermark.
    """

    watermarks: Watermarks = NO_WATERMARKS
    last: Instant | None = None
    entries: Mapping[str, PartitionFreshnessRecord] = field(default_factory=dict)
    regression: CompletionRegression | None = None
    future: tuple[FutureTime, ...] = ()
    logs_in: frozenset[str] | None = frozenset()
    open: tuple[str, ...] = ()
    stale: bool = False
    lateness_ms: int | None = None

    @property
    def watermark(self) -> int | None:
        """The watermark of the snapshot; None without a lateness."""
        return self.watermarks.rt_watermark(self.lateness_ms)

    def reached_before(self, commit: CommitMetadata) -> int | None:
        """Return the watermark below which the rows of a next commit are late.

        A table service rewrites older rows, which are not late.
        """
        is_service = commit.operation in SERVICE_OPERATIONS
        return self.reached_by_base_files(commit) if is_service else self.watermark

    def reached_by_base_files(self, *later: CommitMetadata) -> int | None:
        """Return the watermark of the read-optimized view that later commits do not lower.

        A compaction with an exact split may lower it to its threshold, as it takes rows out of base
        files.
        """
        reached = self.watermarks.ro_watermark(self.lateness_ms)
        for commit in later:
            if reached is not None and withdraws_rows(commit):
                threshold = split_threshold_ms(commit)
                reached = None if threshold is None else min(reached, threshold - 1)
        return reached

    @classmethod
    def from_record(cls, instant: Instant, stored: FreshnessRecord) -> FreshnessState:
        """Return the state that a commit records."""
        remaining = (stored.regression, stored.future, stored.logs_in, stored.open)
        return cls(
            stored.watermarks,
            instant,
            stored.partitions,
            *remaining,
            lateness_ms=stored.lateness_ms,
        )


def compute_freshness(
    snapshot: Snapshot, *, future_from_ms: int, options: Mapping[str, str] | None = None
) -> Freshness:
    """Return completion and freshness of a table; flag event times above `future_from_ms`.

    If options allow another lateness than commits were written with, the watermark is computed for
    it alone: then it may fall, and late rows are not known.
    """
    state = load_state(snapshot, future_from_ms=future_from_ms)
    lateness = allowed_lateness(snapshot.config, options or {}, state.lateness_ms)
    is_recorded = lateness == state.lateness_ms

    def views_of(watermarks: Watermarks) -> PartitionFreshness:
        known = watermarks if is_recorded else watermarks.without_recorded_watermark()
        return known.views(lateness)

    views = views_of(state.watermarks)
    return Freshness(
        views.snapshot,
        views.read_optimized,
        as_of=state.last.requested_at if state.last is not None else None,
        uncompacted_logs=state.watermarks.uncompacted,
        regression=state.regression,
        future=tuple(pair for pair in state.future if pair[1] > future_from_ms),
        lateness_ms=lateness,
        late_rows=views.late_rows,
        partitions=LazyPartitionFreshness(snapshot, views_of),
    )


def load_watermark(snapshot: Snapshot, options: Mapping[str, str]) -> int | None:
    """Return the watermark of the snapshot; None without a lateness, or if it is unknown.

    It needs no log files, so only the commits since the newest record are read.
    """
    state, later = _last_stored_state(snapshot)
    for instant, commit in later:
        parts = watermarks_by_partition(instant.requested_at, commit)
        state = apply_write(state, instant, commit, parts, future_from_ms=0)
    lateness = allowed_lateness(snapshot.config, options, state.lateness_ms)
    return replace(state, lateness_ms=lateness).watermark


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
    snapshot: Snapshot, state: FreshnessState, later: Collection[Write], *, future_from_ms: int
) -> FreshnessState:
    """Return a state with later writes applied, which are in order of completion."""
    previous = state
    for instant, commit in later:
        previous = state
        parts = commit_watermarks(snapshot, instant, commit, state.reached_before(commit))
        state = apply_write(state, instant, commit, parts, future_from_ms=future_from_ms)
    if not state.stale:
        return state
    logs = uncompacted_logs(snapshot, state.logs_in)
    watermarks = state.watermarks.with_log_files(
        most_urgent(*(log.as_uncompacted_log for log in logs)),
        state.reached_by_base_files(*(commit for _, commit in later)),
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
    watermarks = replace(state.watermarks, watermark=state.watermark).followed_by(
        combine(parts.values())
    )
    record = parse_watermark_record(commit.extra, instant.requested_at)
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
        state.lateness_ms if record is None else record.lateness_ms,
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
    snapshot: Snapshot, instant: Instant, commit: CommitMetadata, reached: int | None = None
) -> dict[str, Watermarks]:
    """Return the watermarks that one write adds to each partition.

    A compaction of a writer that records no event times added those of the log files that it
    compacted. `reached` is the watermark before it, for a write that does not record it.
    """
    parts = watermarks_by_partition(instant.requested_at, commit, reached)
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
