"""Compaction by event time: base files that hold everything up to a time that can be named.

The threshold is turned into the instant of the plan, which lies in the past: see `placing.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta, tzinfo

from lakewright.core.commits import SERVICE_OPERATIONS, CommitMetadata, WriteStat
from lakewright.core.instant import epoch_ms, format_time, full_time, is_time, parse_time
from lakewright.core.plans import (
    EVENT_TIME_THRESHOLD,
    EXACT_SPLIT,
    PLANNED_AT,
    WIDENED,
    Skip,
)
from lakewright.core.slices import FileSlice, View
from lakewright.core.table_config import MergeMode
from lakewright.core.table_options import IndexType
from lakewright.errors import InvalidError
from lakewright.services.compaction.candidates import Candidate, candidate
from lakewright.services.compaction.placing import (
    LogFacts,
    Placement,
    Surroundings,
    Waiting,
    place,
)
from lakewright.services.compaction.settings import CompactionSettings
from lakewright.services.compaction.strategies import Unbounded
from lakewright.services.compaction.thresholds import earlier
from lakewright.services.reasons import Left
from lakewright.services.service import Sight
from lakewright.table.history import load_manifest
from lakewright.table.listing import DataFile
from lakewright.table.rolled_back import load_rollbacks
from lakewright.table.snapshot import Snapshot
from lakewright.table.waiting_logs import known_commits
from lakewright.write.options import write_settings

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
        derived = settings.lateness_ms is not None or settings.floor is not None
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
        return format_time(earlier(now, settings.lateness_ms, settings.floor), self.zone)


@dataclass(frozen=True, slots=True)
class Placed:
    """The file groups with something before the threshold, cut to what the plan folds."""

    candidates: list[Candidate]
    extra: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Threshold:
    """The event time up to which a plan goes: as an instant, and in milliseconds."""

    instant: str
    ms: int


def threshold_of(
    strategy: EventTimeBasedCompactionStrategy, sight: Sight, settings: CompactionSettings
) -> Threshold:
    """The threshold of a plan; InvalidError for one that cannot be kept."""
    instant = full_time(strategy.calc_event_time_threshold(sight.instant, settings))
    if instant > sight.instant:
        raise InvalidError(
            "the threshold lies in the future: nothing can be complete up to there yet",
            threshold=instant,
            now=sight.instant,
        )
    return Threshold(instant, epoch_ms(instant, strategy.zone))


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
    sight: Sight,
    threshold: Threshold,
    settings: CompactionSettings,
    left: Left,
) -> Placed | Skip:
    """What a plan up to a threshold may take on; why not the others is noted in `left`."""
    empties = settings.exact_split and _has_buckets(sight)
    waiting = _waiting(slices, sight.snapshot, with_bases=empties)
    due = []
    for group in waiting:
        if group.is_before(threshold.ms) or group.is_beyond(threshold.ms):
            due.append(group)
        elif group.slice.logs:
            left.because(group.slice.partition, f"nothing before {threshold.instant}")
    if not due:
        return Skip(_why_nothing(waiting, threshold))
    placement = place(due, threshold.ms, _surroundings(sight))
    cut = [
        candidate(group.until(placement.instant), settings.max_file_size, placement.instant)
        for group in due
    ]
    return Placed(cut, _extra(placement, threshold, settings, sight.instant))


def _has_buckets(sight: Sight) -> bool:
    """Whether rows can be taken out of a base file: another index would not find them again."""
    return write_settings(sight.snapshot.config, sight.options).index_type is IndexType.BUCKET


def _extra(
    placement: Placement, threshold: Threshold, settings: CompactionSettings, now: str
) -> dict[str, str]:
    told = {EVENT_TIME_THRESHOLD: threshold.instant, PLANNED_AT: now}
    if settings.exact_split:
        told[EXACT_SPLIT] = "true"
    if placement.reason is not None:
        told[WIDENED] = f"an ordinary compaction, as {placement.reason}"
    return told


def _why_nothing(waiting: Sequence[Waiting], threshold: Threshold) -> str:
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


def _surroundings(sight: Sight) -> Surroundings:
    snapshot = sight.snapshot
    timeline = snapshot.timeline
    compactions = [
        *timeline.completed_services("compaction"),
        *timeline.pending("compaction", "logcompaction"),
    ]
    archived = load_manifest(snapshot.storage, snapshot.config.history_folder).files
    # Below the first write on the timeline a file that is left behind would count as archived.
    first = timeline.unsaved_writes[0].requested_at if timeline.unsaved_writes else ""
    above = [first, *(file.last for file in archived), *(i.requested_at for i in compactions)]
    pending = [i.requested_at for i in timeline.pending("deltacommit")]
    taken = {time for i in timeline for time in (i.requested_at, i.completed_at) if time}
    # What is told of a plan that was rolled back must not be taken for told of this one; who was
    # executing that one may still come late.
    taken |= {each.target.requested_at for each in load_rollbacks(snapshot)}
    return Surroundings(sight.instant, max(above), min(pending, default=None), frozenset(taken))


def _waiting(slices: Sequence[FileSlice], snapshot: Snapshot, *, with_bases: bool) -> list[Waiting]:
    """The slices with what the commits of their log files tell, and of base files if asked for."""
    commits = known_commits(snapshot, {log.instant for item in slices for log in item.logs})
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
        found.append(Waiting(item, facts, _base_completion(item, view), greatest))
    return found


def _base_greatest(item: FileSlice, snapshot: Snapshot) -> int | None:
    """The greatest event time in a base file; of archived writes, which are long past, none."""
    instant = snapshot.timeline.by_time.get(item.base.instant) if item.base is not None else None
    if instant is None or item.base is None:
        return None
    (commit,) = snapshot.commits([instant])
    stats = commit.stats.get(item.partition, ())
    return next((s.max_event_time for s in stats if _name(s) == item.base.name), None)


def _base_completion(item: FileSlice, view: View) -> str:
    """When the rows of a base file were there; those of a compaction were there before it."""
    if item.base is None or view.timeline.plans.get(item.base.instant) == "compaction":
        return ""
    return view.completion(item.base.instant) or ""


def _facts(completed_at: str, told: tuple[CommitMetadata, WriteStat] | None) -> LogFacts:
    if told is None:
        return LogFacts(completed_at)
    commit, stat = told
    return LogFacts(
        completed_at,
        stat.min_event_time,
        stat.max_event_time,
        repeats=(commit.operation or "").upper() in SERVICE_OPERATIONS,
        rows=stat.num_writes,
    )


def _completions(slices: Sequence[FileSlice], snapshot: Snapshot) -> View:
    files: dict[str, list[DataFile]] = {}
    for item in slices:
        files.setdefault(item.partition, []).extend(item.logs)
    return snapshot.with_completions(snapshot.view(), files)


def _name(stat: WriteStat) -> str:
    return (stat.path or "").rpartition("/")[2]
