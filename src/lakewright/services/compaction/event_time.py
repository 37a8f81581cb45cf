"""Compaction by event time: base files that hold everything up to a time that can be named.

The threshold is turned into the instant of the plan, which lies in the past: see `place`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta, tzinfo
from math import inf

from lakewright.errors import InvalidError
from lakewright.model.commit_metadata import SERVICE_OPERATIONS, CommitMetadata, WriteStat
from lakewright.model.file_group import FileSlice, LogFile, TimelineView
from lakewright.model.instant import (
    Action,
    InstantTime,
    epoch_ms,
    format_time,
    full_time,
    is_time,
    parse_time,
)
from lakewright.model.plans import EVENT_TIME_THRESHOLD, EXACT_SPLIT, PLANNED_AT, WIDENED, Skip
from lakewright.model.table_config import IndexType, MergeMode
from lakewright.services.base import PlanningContext
from lakewright.services.compaction.options import CompactionSettings, earlier
from lakewright.services.compaction.strategies import Candidate, Unbounded, candidate
from lakewright.services.planning import SkippedPartitions
from lakewright.table.archived_timeline import load_manifest
from lakewright.table.freshness import load_known_commits
from lakewright.table.rollback import load_rollbacks
from lakewright.table.snapshot import DataFile, Snapshot
from lakewright.table.time_generator import next_instant_time
from lakewright.write.options import write_settings


@dataclass(frozen=True, slots=True)
class LogFileStats:
    """What is known of a log file: when its write completed, and its least event time, if told.

    One that `repeats` was written by a service: it holds versions that older files hold, too.
    """

    completed_at: InstantTime
    least: int | None = None
    greatest: int | None = None
    repeats: bool = False
    rows: int | None = None

    @property
    def order(self) -> float:
        """Sorts by what happened first; what nobody waits for comes last."""
        return inf if self.least is None else self.least

    def is_before(self, threshold_ms: int) -> bool:
        """Whether it may hold something that happened before a time."""
        return not self.is_applied and (self.least is None or self.least < threshold_ms)

    @property
    def is_applied(self) -> bool:
        """Whether it holds nothing but deletes that are in the base file as well."""
        return self.repeats and self.rows == 0 and self.least is None


@dataclass(frozen=True, slots=True)
class GroupLogs:
    """A file group, and what is known of each of its log files, in their order.

    `base_greatest` is the greatest event time in the base file, where the timeline tells it.
    """

    slice: FileSlice
    facts: tuple[LogFileStats, ...]
    base_completed_at: str = ""
    base_greatest: int | None = None

    def slice_at(self, instant: InstantTime) -> FileSlice:
        """The slice as a base file at an instant folds it."""
        pairs = zip(self.slice.logs, self.facts, strict=True)
        kept = tuple(log for log, facts in pairs if facts.completed_at < instant)
        return replace(self.slice, logs=kept)

    def min_instant(self, threshold_ms: int) -> str:
        """The time above which a base file must lie that holds all before a threshold."""
        held = (f.completed_at for f in self.facts if f.repeats or f.is_before(threshold_ms))
        return max((self.slice.base_instant, self.base_completed_at, *held))

    def is_before(self, threshold_ms: int) -> bool:
        """Whether some log file may hold something that happened before a time."""
        return any(facts.is_before(threshold_ms) for facts in self.facts)

    def base_exceeds(self, threshold_ms: int) -> bool:
        """Whether the base file is known to hold something from a time on."""
        return self.base_greatest is not None and self.base_greatest >= threshold_ms

    def earliest(self) -> tuple[LogFile, LogFileStats]:
        """The log file that holds what happened first."""
        pairs = list(zip(self.slice.logs, self.facts, strict=True))
        return min(pairs, key=lambda pair: pair[1].order)


@dataclass(frozen=True, slots=True)
class TimelineConstraints:
    """What the timeline demands of the instant of a plan.

    It stays above `above`, below the first write that is `pending`, and takes no time that is
    `taken`. `now` is the instant of an ordinary compaction.
    """

    now: str
    above: str = ""
    pending: str | None = None
    taken: Collection[str] = ()


@dataclass(frozen=True, slots=True)
class PlanInstant:
    """The instant of a plan; `reason` tells why it could not be in the past."""

    instant: InstantTime
    reason: str | None = None


def choose_plan_instant(
    groups: Sequence[GroupLogs], threshold_ms: int, around: TimelineConstraints
) -> PlanInstant:
    """The least instant whose base files hold everything before a threshold, for any reader."""
    floors = (group.min_instant(threshold_ms) for group in groups)
    instant = _free(next_instant_time(max((around.above, *floors))), around)
    for began, completed in _spans(groups):
        if began > instant:
            break
        if completed >= instant:
            instant = _free(next_instant_time(completed), around)
    if instant >= around.now:
        return PlanInstant(around.now, "writes overlap up to now")
    if around.pending is not None and around.pending <= instant:
        return PlanInstant(around.now, f"write {around.pending} is still under way")
    return PlanInstant(instant)


def _spans(groups: Iterable[GroupLogs]) -> list[tuple[str, str]]:
    """When the writes of all log files began and completed, by their beginning."""
    return sorted(
        {
            (log.instant, facts.completed_at)
            for group in groups
            for log, facts in zip(group.slice.logs, group.facts, strict=True)
        }
    )


def _free(instant: InstantTime, around: TimelineConstraints) -> str:
    while instant in around.taken:
        instant = next_instant_time(instant)
    return instant


# ------------------------------------------------------------------------------------------------
# Where in the past a compaction stands that leaves newer log files out. Pure.
#
# A reader attaches a log file to the slice with the greatest base instant that is not above the
# log
# file's completion time. So the instant X of the new base files decides which log files are in
# them:
# those of a file group that completed before X, all of them and no others. For every reader to see
# the same rows at every moment, X must lie in a gap between writes of each group: above the
# completion of what is in, and below the beginning of what is not. Where writes overlap, X moves
# up
# until it is in a gap, and the plan takes more.


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_OPTIONS = "hoodie.compaction.event.time."


@dataclass(frozen=True, slots=True)
class EventTimeBasedCompactionStrategy(Unbounded):
    """Takes the file groups with data before a threshold, as far as that needs.

    `zone` is that of the table's instants. A class of one's own need only tell its threshold.
    """

    zone: tzinfo = UTC

    def calc_event_time_threshold(
        self, compaction_instant: str, settings: CompactionSettings
    ) -> str:
        """The time, as an instant, before which everything is to be in base files."""
        fixed, now = settings.threshold, parse_time(compaction_instant, self.zone)
        derived = settings.lateness_ms is not None or settings.rounding is not None
        if fixed is not None and derived:
            raise InvalidError(
                "a threshold is given, and how to derive one: leave one of them out",
                option=f"{_OPTIONS}threshold",
                also=[f"{_OPTIONS}lateness", f"{_OPTIONS}floor"],
            )
        if fixed is not None:
            return (
                fixed if is_time(fixed) else format_time(datetime.fromisoformat(fixed), self.zone)
            )
        if not derived:
            raise InvalidError(
                "a compaction by event time needs to know how far it goes",
                options=[f"{_OPTIONS}{name}" for name in ("threshold", "lateness", "floor")],
            )
        return format_time(earlier(now, settings.lateness_ms, settings.rounding), self.zone)


@dataclass(frozen=True, slots=True)
class PlacedCandidates:
    """The file groups with something before the threshold, cut to what the plan folds."""

    candidates: list[Candidate]
    extra: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class EventTimeLimit:
    """The event time up to which a plan goes: as an instant, and in milliseconds."""

    instant: InstantTime
    ms: int


def threshold_of(
    strategy: EventTimeBasedCompactionStrategy, sight: PlanningContext, settings: CompactionSettings
) -> EventTimeLimit:
    """The threshold of a plan; InvalidError for one that cannot be kept."""
    instant = full_time(strategy.calc_event_time_threshold(sight.instant, settings))
    if instant > sight.instant:
        raise InvalidError(
            "the threshold lies in the future: nothing can be complete up to there yet",
            threshold=instant,
            now=sight.instant,
        )
    return EventTimeLimit(instant, epoch_ms(instant, strategy.zone))


def check_event_time_table(
    snapshot: Snapshot, settings: CompactionSettings, event_time: str | None
) -> None:
    """InvalidError if the table's rows tell no event times, or no order to split them by."""
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
    sight: PlanningContext,
    threshold: EventTimeLimit,
    settings: CompactionSettings,
    left: SkippedPartitions,
) -> PlacedCandidates | Skip:
    """What a plan up to a threshold may take on; why not the others is noted in `left`."""
    empties = settings.exact_split and _has_buckets(sight)
    waiting = _group_logs(slices, sight.snapshot, with_bases=empties)
    due = []
    for group in waiting:
        if group.is_before(threshold.ms) or group.base_exceeds(threshold.ms):
            due.append(group)
        elif group.slice.logs:
            left.add(group.slice.partition, f"nothing before {threshold.instant}")
    if not due:
        return Skip(_why_nothing(waiting, threshold))
    placement = choose_plan_instant(due, threshold.ms, _timeline_constraints(sight))
    cut = [
        candidate(group.slice_at(placement.instant), settings.max_file_size, placement.instant)
        for group in due
    ]
    return PlacedCandidates(cut, _extra(placement, threshold, settings, sight.instant))


def _has_buckets(sight: PlanningContext) -> bool:
    """Whether rows can be taken out of a base file: another index would not find them again."""
    return write_settings(sight.snapshot.config, sight.options).index_type is IndexType.BUCKET


def _extra(
    placement: PlanInstant, threshold: EventTimeLimit, settings: CompactionSettings, now: str
) -> dict[str, str]:
    told = {EVENT_TIME_THRESHOLD: threshold.instant, PLANNED_AT: now}
    if settings.exact_split:
        told[EXACT_SPLIT] = "true"
    if placement.reason is not None:
        told[WIDENED] = f"an ordinary compaction, as {placement.reason}"
    return told


def _why_nothing(waiting: Sequence[GroupLogs], threshold: EventTimeLimit) -> str:
    told = [(group, *group.earliest()) for group in waiting if group.slice.logs]
    group, log, facts = min(told, key=lambda item: item[2].order, default=(None, None, None))
    if group is None or log is None or facts is None:
        return "nothing to compact: no log files"
    if facts.least is None:
        return "nothing to compact: log files hold only deletes that base files have seen"
    until = _EPOCH + timedelta(milliseconds=facts.least)
    return (
        f"nothing to compact before {threshold.instant}: what happened first is at {facts.least} "
        f"({until.isoformat(timespec='milliseconds')}) in log file {log.name} of partition "
        f"{group.slice.partition!r}, written by {log.instant}, and waits until the threshold is "
        "above that"
    )


def _timeline_constraints(sight: PlanningContext) -> TimelineConstraints:
    snapshot = sight.snapshot
    timeline = snapshot.timeline
    compactions = [
        *timeline.completed_services(Action.COMPACTION),
        *timeline.pending(Action.COMPACTION, Action.LOG_COMPACTION),
    ]
    archived = load_manifest(snapshot.storage, snapshot.config.history_folder).files
    # Below the first write on the timeline a file that is left behind would count as archived.
    first = (
        timeline.writes_without_savepoint[0].requested_at
        if timeline.writes_without_savepoint
        else ""
    )
    above = [first, *(file.last for file in archived), *(i.requested_at for i in compactions)]
    pending = [i.requested_at for i in timeline.pending(Action.DELTA_COMMIT)]
    taken = {time for i in timeline for time in (i.requested_at, i.completed_at) if time}
    # What is told of a plan that was rolled back must not be taken for told of this one; who was
    # executing that one may still come late.
    taken |= {each.target.requested_at for each in load_rollbacks(snapshot)}
    return TimelineConstraints(
        sight.instant, max(above), min(pending, default=None), frozenset(taken)
    )


def _group_logs(
    slices: Sequence[FileSlice], snapshot: Snapshot, *, with_bases: bool
) -> list[GroupLogs]:
    """The slices with what the commits of their log files tell, and of base files if asked for."""
    commits = load_known_commits(snapshot, {log.instant for item in slices for log in item.logs})
    stats = {
        (stat.partition_path or "", _name(stat)): (commit, stat)
        for commit in commits.values()
        for stat in commit.write_stats()
    }
    view = _completions(slices, snapshot)
    found = []
    for item in slices:
        told = (stats.get((item.partition, log.name)) for log in item.logs)
        ends = (view.completion(log.instant) or log.instant for log in item.logs)
        facts = tuple(map(_facts, ends, told))
        greatest = _base_greatest(item, snapshot) if with_bases else None
        found.append(GroupLogs(item, facts, _base_completion(item, view), greatest))
    return found


def _base_greatest(item: FileSlice, snapshot: Snapshot) -> int | None:
    """The greatest event time in a base file; of archived writes, which are long past, none."""
    instant = snapshot.timeline.by_time.get(item.base.instant) if item.base is not None else None
    if instant is None or item.base is None:
        return None
    (commit,) = snapshot.commits([instant])
    stats = commit.stats.get(item.partition, ())
    return next((s.max_event_time for s in stats if _name(s) == item.base.name), None)


def _base_completion(item: FileSlice, view: TimelineView) -> str:
    """When the rows of a base file were there; those of a compaction were there before it."""
    if item.base is None or view.timeline.plans.get(item.base.instant) == "compaction":
        return ""
    return view.completion(item.base.instant) or ""


def _facts(
    completed_at: InstantTime, told: tuple[CommitMetadata, WriteStat] | None
) -> LogFileStats:
    if told is None:
        return LogFileStats(completed_at)
    commit, stat = told
    return LogFileStats(
        completed_at,
        stat.min_event_time,
        stat.max_event_time,
        repeats=(commit.operation or "").upper() in SERVICE_OPERATIONS,
        rows=stat.num_writes,
    )


def _completions(slices: Sequence[FileSlice], snapshot: Snapshot) -> TimelineView:
    files: dict[str, list[DataFile]] = {}
    for item in slices:
        files.setdefault(item.partition, []).extend(item.logs)
    return snapshot.with_completion_times(snapshot.view(), files)


def _name(stat: WriteStat) -> str:
    return (stat.path or "").rpartition("/")[2]
