"""Compaction by event time: base files that hold all rows before an event time, the threshold.

The threshold determines the instant of the plan, which lies in the past (`choose_plan_instant`).
A reader attaches a log file to the file slice with the greatest base instant that is not above the
completion time of the log file. So the instant X of the new base files determines which log files
of a file group are compacted: exactly those that completed before X; newer ones stay uncompacted.

For every reader to see the same rows at every moment, X must lie in a gap between the writes of
each group: above the completion time of each write that is compacted, and below the requested time
of each write that is not. Where writes overlap, X moves up until it is in a gap, and the plan
compacts more than the threshold asks for. If there is no gap before now, the plan is an ordinary
compaction.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, tzinfo
from math import inf

from lakewright.clock import zone_of
from lakewright.errors import InvalidError
from lakewright.model.commit_metadata import SERVICE_OPERATIONS, CommitMetadata, WriteStat
from lakewright.model.event_time import time_text
from lakewright.model.file_group import FileSlice, LogFile, TimelineView
from lakewright.model.instant import (
    Action,
    InstantTime,
    epoch_ms,
    format_time,
    full_time,
    is_time,
    moment_ms,
    parse_time,
)
from lakewright.model.plans import (
    EVENT_TIME_THRESHOLD,
    EVENT_TIME_THRESHOLD_MS,
    EXACT_SPLIT,
    PLANNED_AT,
    WIDENED,
    Skip,
)
from lakewright.model.table_config import IndexType, MergeMode
from lakewright.services.base import PlanningContext
from lakewright.services.compaction.options import CompactionSettings, earlier
from lakewright.services.compaction.strategies import Candidate, Unbounded, candidate
from lakewright.services.planning import SkippedPartitions
from lakewright.table.archived_timeline import load_manifest
from lakewright.table.rollback import load_rollbacks
from lakewright.table.snapshot import DataFile, Snapshot
from lakewright.table.time_generator import next_instant_time
from lakewright.table.uncompacted_logs import load_existing_commits
from lakewright.write.options import write_settings


@dataclass(frozen=True, slots=True)
class LogFileStats:
    """When the write of a log file completed, and what its commit records of the file.

    `is_rewrite` is whether a table service wrote the log file: it holds versions that were in older
    files. Event times are None if they are not recorded.
    """

    completed_at: InstantTime
    min_event_time: int | None = None
    max_event_time: int | None = None
    is_rewrite: bool = False
    rows: int | None = None

    @property
    def order(self) -> float:
        """The sort key by event time; log files without one come last."""
        return inf if self.min_event_time is None else self.min_event_time

    def is_before(self, threshold_ms: int) -> bool:
        """Whether the log file may hold an event time before the threshold."""
        return not self.is_applied and (
            self.min_event_time is None or self.min_event_time < threshold_ms
        )

    @property
    def is_applied(self) -> bool:
        """Whether it holds only deletes that are applied to the base file already."""
        return self.is_rewrite and self.rows == 0 and self.min_event_time is None


@dataclass(frozen=True, slots=True)
class GroupLogs:
    """The newest slice of a file group, and the stats of each of its log files, in their order.

    `base_completed_at` is when the rows of the base file were first visible, empty if no write
    bounds it. `base_max_event_time` is the greatest event time in the base file, None if unknown.
    """

    slice: FileSlice
    log_stats: tuple[LogFileStats, ...]
    base_completed_at: str = ""
    base_max_event_time: int | None = None

    def slice_at(self, instant: InstantTime) -> FileSlice:
        """Return the slice with the log files that a base file at an instant compacts."""
        pairs = zip(self.slice.logs, self.log_stats, strict=True)
        logs = tuple(log for log, stats in pairs if stats.completed_at < instant)
        return replace(self.slice, logs=logs)

    def min_instant(self, threshold_ms: int) -> str:
        """Return the time above which a base file with all rows before the threshold must lie."""
        completions = (
            stats.completed_at
            for stats in self.log_stats
            if stats.is_rewrite or stats.is_before(threshold_ms)
        )
        return max((self.slice.base_instant, self.base_completed_at, *completions))

    def is_before(self, threshold_ms: int) -> bool:
        """Whether any log file may hold an event time before the threshold."""
        return any(stats.is_before(threshold_ms) for stats in self.log_stats)

    def base_exceeds(self, threshold_ms: int) -> bool:
        """Whether the base file is known to hold event times from the threshold on."""
        return self.base_max_event_time is not None and self.base_max_event_time >= threshold_ms

    def earliest(self) -> tuple[LogFile, LogFileStats]:
        """Return the log file with the least event time."""
        pairs = list(zip(self.slice.logs, self.log_stats, strict=True))
        return min(pairs, key=lambda pair: pair[1].order)


@dataclass(frozen=True, slots=True)
class TimelineConstraints:
    """What the timeline requires of the instant of a plan.

    It is greater than `lower_bound`, less than the `first_pending` write, and none of the
    `used_times`. `now` is the instant of an ordinary compaction.
    """

    now: str
    lower_bound: str = ""
    first_pending: str | None = None
    used_times: Collection[str] = ()


@dataclass(frozen=True, slots=True)
class PlanInstant:
    """The instant of a plan; `reason` says why it could not be in the past."""

    instant: InstantTime
    reason: str | None = None


def choose_plan_instant(
    groups: Sequence[GroupLogs], threshold_ms: int, constraints: TimelineConstraints
) -> PlanInstant:
    """Return the least instant at which base files hold all rows before a threshold."""
    floors = (group.min_instant(threshold_ms) for group in groups)
    instant = _next_unused(next_instant_time(max((constraints.lower_bound, *floors))), constraints)
    for requested_at, completed_at in _write_spans(groups):
        if requested_at > instant:
            break
        if completed_at >= instant:
            instant = _next_unused(next_instant_time(completed_at), constraints)
    if instant >= constraints.now:
        return PlanInstant(constraints.now, "writes overlap up to now")
    if constraints.first_pending is not None and constraints.first_pending <= instant:
        return PlanInstant(constraints.now, f"write {constraints.first_pending} is still under way")
    return PlanInstant(instant)


def _write_spans(groups: Iterable[GroupLogs]) -> list[tuple[str, str]]:
    """Return the requested and completion times of the writes of all log files, sorted."""
    return sorted(
        {
            (log.instant, stats.completed_at)
            for group in groups
            for log, stats in zip(group.slice.logs, group.log_stats, strict=True)
        }
    )


def _next_unused(instant: InstantTime, constraints: TimelineConstraints) -> str:
    while instant in constraints.used_times:
        instant = next_instant_time(instant)
    return instant


# The strategy, and the candidates of a plan

_OPTIONS = "hoodie.compaction.event.time."


@dataclass(frozen=True, slots=True)
class EventTimeBasedCompactionStrategy(Unbounded):
    """Selects the file groups with event times before a threshold, and the log files to compact.

    `zone` is the time zone of the table's instants. A subclass need only override
    `calc_event_time_threshold`.
    """

    zone: tzinfo = UTC

    def calc_event_time_threshold(
        self, compaction_instant: str, settings: CompactionSettings
    ) -> str:
        """Return the threshold as an instant: base files are to hold all rows before it."""
        fixed = settings.threshold
        derived = settings.lateness_ms is not None or settings.rounding is not None
        if fixed is not None and derived:
            raise InvalidError(
                "a threshold is given, and how to derive one: leave one of them out",
                option=f"{_OPTIONS}threshold",
                also=[f"{_OPTIONS}lateness", f"{_OPTIONS}floor"],
            )
        if fixed is not None and is_time(fixed):
            return fixed
        if fixed is None and not derived:
            raise InvalidError(
                "a compaction by event time needs a threshold: set one of these options",
                options=[f"{_OPTIONS}{name}" for name in ("threshold", "lateness", "floor")],
            )
        return format_time(_threshold_moment(compaction_instant, settings, self.zone), self.zone)


def _threshold_moment(
    compaction_instant: str, settings: CompactionSettings, zone: tzinfo
) -> datetime:
    """Return the threshold that options give as a time with its zone, or derive from the present.

    An instant in local time cannot express which of two it is where daylight saving repeats it.
    """
    if settings.threshold is not None and not is_time(settings.threshold):
        return datetime.fromisoformat(settings.threshold)
    now = parse_time(compaction_instant, zone)
    return earlier(now, settings.lateness_ms, settings.rounding)


@dataclass(frozen=True, slots=True)
class PlacedCandidates:
    """The file groups to select from, each with the log files that the plan would compact."""

    candidates: list[Candidate]
    extra: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class EventTimeLimit:
    """The event time threshold of a plan: as an instant, and in milliseconds since 1970."""

    instant: InstantTime
    ms: int


def threshold_of(
    strategy: EventTimeBasedCompactionStrategy,
    context: PlanningContext,
    settings: CompactionSettings,
) -> EventTimeLimit:
    """Return the threshold of a plan; InvalidError if it lies in the future."""
    instant = full_time(strategy.calc_event_time_threshold(context.instant, settings))
    if instant > context.instant:
        raise InvalidError(
            "the threshold lies in the future: nothing can be complete up to there yet",
            threshold=instant,
            now=context.instant,
        )
    if settings.threshold is None or not is_time(settings.threshold):
        moment = _threshold_moment(context.instant, settings, strategy.zone)
        if format_time(moment, strategy.zone) == instant:
            return EventTimeLimit(instant, moment_ms(moment))
    return EventTimeLimit(instant, epoch_ms(instant, strategy.zone))


def check_event_time_table(
    snapshot: Snapshot, settings: CompactionSettings, event_time: str | None
) -> None:
    """Raise InvalidError if the table has no event times, or no ordering to split rows by."""
    if event_time is None:
        raise InvalidError(
            "the table keeps no event times: name the column when it is created (event_time=...), "
            "or write with these options",
            table=snapshot.config.name,
            options=["hoodie.payload.event.time.field", "hoodie.write.track.event.time.watermark"],
        )
    if settings.exact_split and snapshot.config.merge_mode is not MergeMode.EVENT_TIME:
        raise InvalidError(
            "rows can be split by event time only where the greatest ordering value wins: "
            "EVENT_TIME_ORDERING",
            table=snapshot.config.name,
            merge_mode=snapshot.config.merge_mode.value,
            option=f"{_OPTIONS}exact.split",
        )


def placed_candidates(
    slices: Sequence[FileSlice],
    context: PlanningContext,
    threshold: EventTimeLimit,
    settings: CompactionSettings,
    skipped: SkippedPartitions,
) -> PlacedCandidates | Skip:
    """Return the candidates of a plan up to a threshold; adds the others to `skipped`."""
    removes_base_rows = settings.exact_split and _has_buckets(context)
    groups = _group_logs(slices, context.snapshot, with_bases=removes_base_rows)
    selected = []
    for group in groups:
        if group.is_before(threshold.ms) or group.base_exceeds(threshold.ms):
            selected.append(group)
        elif group.slice.logs:
            skipped.add(group.slice.partition, f"nothing before {threshold.instant}")
    if not selected:
        return Skip(_why_nothing(groups, threshold))
    placement = choose_plan_instant(selected, threshold.ms, _timeline_constraints(context))
    candidates = [
        candidate(group.slice_at(placement.instant), settings.max_file_size, placement.instant)
        for group in selected
    ]
    extra = _plan_metadata(placement, threshold, settings, context.instant)
    zone = zone_of(context.snapshot.config.timeline_zone)
    if settings.exact_split or epoch_ms(threshold.instant, zone) != threshold.ms:
        extra[EVENT_TIME_THRESHOLD_MS] = str(threshold.ms)
    return PlacedCandidates(candidates, extra)


def _has_buckets(context: PlanningContext) -> bool:
    """Whether rows can be removed from a base file: other indexes could not find them any more."""
    return write_settings(context.snapshot.config, context.options).index_type is IndexType.BUCKET


def _plan_metadata(
    placement: PlanInstant, threshold: EventTimeLimit, settings: CompactionSettings, now: str
) -> dict[str, str]:
    extra = {EVENT_TIME_THRESHOLD: threshold.instant, PLANNED_AT: now}
    if settings.exact_split:
        extra[EXACT_SPLIT] = "true"
    if placement.reason is not None:
        extra[WIDENED] = f"an ordinary compaction, as {placement.reason}"
    return extra


def _why_nothing(groups: Sequence[GroupLogs], threshold: EventTimeLimit) -> str:
    earliest = [(group, *group.earliest()) for group in groups if group.slice.logs]
    group, log, stats = min(earliest, key=lambda item: item[2].order, default=(None, None, None))
    if group is None or log is None or stats is None:
        return "nothing to compact: no log files"
    if stats.min_event_time is None:
        return "nothing to compact: log files hold only deletes that base files reflect already"
    return (
        f"nothing to compact before {threshold.instant}: the least event time is "
        f"{stats.min_event_time} "
        f"({time_text(stats.min_event_time)}) in log file {log.name} of partition "
        f"{group.slice.partition!r}, written by {log.instant}, which stays uncompacted until the "
        "threshold is above that"
    )


def _timeline_constraints(context: PlanningContext) -> TimelineConstraints:
    snapshot = context.snapshot
    timeline = snapshot.timeline
    compactions = [
        *timeline.completed_services(Action.COMPACTION),
        *timeline.pending(Action.COMPACTION, Action.LOG_COMPACTION),
    ]
    archived = load_manifest(snapshot.storage, snapshot.config.history_folder).files
    # A file with an instant below the first write on the active timeline counts as a file of an
    # archived write, even if it is an orphan file of a failed compaction.
    first = (
        timeline.writes_without_savepoint[0].requested_at
        if timeline.writes_without_savepoint
        else ""
    )
    above = [first, *(file.last for file in archived), *(i.requested_at for i in compactions)]
    pending = [i.requested_at for i in timeline.pending(Action.DELTA_COMMIT)]
    used = {time for i in timeline for time in (i.requested_at, i.completed_at) if time}
    # The instant of a plan that was rolled back is not used again: its rollback would count for
    # this plan, and the process that executed it may still be writing.
    used |= {rollback.target.requested_at for rollback in load_rollbacks(snapshot)}
    return TimelineConstraints(
        context.instant, max(above), min(pending, default=None), frozenset(used)
    )


def _group_logs(
    slices: Sequence[FileSlice], snapshot: Snapshot, *, with_bases: bool
) -> list[GroupLogs]:
    """Return the slices with the stats of their log files, and of base files `with_bases`."""
    commits = load_existing_commits(snapshot, {log.instant for item in slices for log in item.logs})
    stats = {
        (stat.partition_path or "", _name(stat)): (commit, stat)
        for commit in commits.values()
        for stat in commit.write_stats()
    }
    view = _completions(slices, snapshot)
    groups = []
    for item in slices:
        recorded = (stats.get((item.partition, log.name)) for log in item.logs)
        completions = (view.completion(log.instant) or log.instant for log in item.logs)
        log_stats = tuple(map(_log_stats, completions, recorded))
        greatest = _max_base_event_time(item, snapshot) if with_bases else None
        groups.append(GroupLogs(item, log_stats, _base_completion(item, view), greatest))
    return groups


def _max_base_event_time(item: FileSlice, snapshot: Snapshot) -> int | None:
    """Return the greatest event time in a base file; None if its write is archived."""
    instant = snapshot.timeline.by_time.get(item.base.instant) if item.base is not None else None
    if instant is None or item.base is None:
        return None
    (commit,) = snapshot.commits([instant])
    stats = commit.stats.get(item.partition, ())
    return next((s.max_event_time for s in stats if _name(s) == item.base.name), None)


def _base_completion(item: FileSlice, view: TimelineView) -> str:
    """Return when the write of a base file completed.

    Empty for a compaction: its rows were visible before it completed.
    """
    if item.base is None or view.timeline.plans.get(item.base.instant) == Action.COMPACTION:
        return ""
    return view.completion(item.base.instant) or ""


def _log_stats(
    completed_at: InstantTime, recorded: tuple[CommitMetadata, WriteStat] | None
) -> LogFileStats:
    if recorded is None:
        return LogFileStats(completed_at)
    commit, stat = recorded
    return LogFileStats(
        completed_at,
        stat.min_event_time,
        stat.max_event_time,
        is_rewrite=(commit.operation or "").upper() in SERVICE_OPERATIONS,
        rows=stat.num_writes,
    )


def _completions(slices: Sequence[FileSlice], snapshot: Snapshot) -> TimelineView:
    files: dict[str, list[DataFile]] = {}
    for item in slices:
        files.setdefault(item.partition, []).extend(item.logs)
    return snapshot.with_completion_times(snapshot.view(), files)


def _name(stat: WriteStat) -> str:
    return (stat.path or "").rpartition("/")[2]
