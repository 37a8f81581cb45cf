"""How complete and how fresh the two views of a table are, from what commits record. Pure.

Times are event times in milliseconds since 1970. Completion: all rows up to it are in the view.
Freshness: the newest row in the view. None is unknown, or that there is nothing.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from lakewright.model.commit_metadata import (
    DELETING_OPERATIONS,
    SERVICE_OPERATIONS,
    CommitMetadata,
    WriteStat,
    is_log,
)
from lakewright.model.instant import Action, Instant, InstantTime
from lakewright.model.timeline import Timeline

_CLUSTER = "CLUSTER"
_COMPACT = "COMPACT"
_LOG_COMPACT = "LOG_COMPACT"

# The least event time of deletes that a compaction left beside a base file, where they tell none.
UNKNOWN_OPERATION = 0

FutureTime = tuple[str, int]


@dataclass(frozen=True, slots=True)
class ViewFreshness:
    """Completion and freshness of one view."""

    completion: int | None = None
    freshness: int | None = None


@dataclass(frozen=True, slots=True)
class PartitionFreshness:
    """Completion and freshness of one partition."""

    snapshot: ViewFreshness = ViewFreshness()
    read_optimized: ViewFreshness = ViewFreshness()


@dataclass(frozen=True, slots=True)
class UncompactedLog:
    """A log file that no base file holds yet: its path, who wrote it, its least event time.

    An event time of None is unknown, which is less than all that are known.
    """

    path: str
    instant: InstantTime
    event_time: int | None


@dataclass(frozen=True, slots=True)
class CompletionRegression:
    """Why read-optimized completion is lower than it was `before`.

    `cause` is the log file that came late; None where no log file waits, and the newest ingested
    rows decide, or where rows were taken out.
    """

    before: int
    cause: UncompactedLog | None = None


@dataclass(frozen=True, slots=True)
class Freshness:
    """Completion and freshness of a table's views as of its newest write, `as_of`.

    - `partitions` are looked up when they are asked for: a partition that nobody asks for costs
      nothing;
    - `waiting` is the log file that holds read-optimized completion back, None if there is none;
    - `regression` tells why the newest write lowered read-optimized completion, if it did;
    - `future` are the greatest event times, by partition, that lie after the present.
    """

    snapshot: ViewFreshness
    read_optimized: ViewFreshness
    as_of: str | None = None
    uncompacted_logs: UncompactedLog | None = None
    regression: CompletionRegression | None = None
    future: tuple[FutureTime, ...] = ()
    partitions: Mapping[str, PartitionFreshness] = field(
        default_factory=dict, compare=False, repr=False
    )


@dataclass(frozen=True, slots=True)
class Watermarks:
    """What commits, one after the other, have made of a table or of a partition.

    - `ingested`: whether there was an ingest commit, so that a completion of None is unknown;
    - `waiting`: the waiting log file with the least event time, one that is unknown before all;
    - `recounted`: `waiting` is of all log files, whatever there was before.
    """

    ingested: bool = False
    rt_completion: int | None = None
    rt_freshness: int | None = None
    ro_freshness: int | None = None
    uncompacted: UncompactedLog | None = None
    recounted: bool = False

    @property
    def ro_completion(self) -> int | None:
        """What is in base files up to this time."""
        if self.uncompacted is None:
            return self.rt_completion
        least = self.uncompacted.event_time
        return None if least is None else least - 1

    @property
    def views(self) -> PartitionFreshness:
        """What they say about the two views."""
        return PartitionFreshness(
            ViewFreshness(self.rt_completion, self.rt_freshness),
            ViewFreshness(self.ro_completion, self.ro_freshness),
        )

    def followed_by(self, later: Watermarks) -> Watermarks:
        """These, followed by what later commits made of them."""
        newest = later if later.ingested else self
        return Watermarks(
            ingested=self.ingested or later.ingested,
            rt_completion=newest.rt_completion,
            rt_freshness=max_known(self.rt_freshness, later.rt_freshness),
            ro_freshness=max_known(self.ro_freshness, later.ro_freshness),
            uncompacted=later.uncompacted
            if later.recounted
            else most_urgent(self.uncompacted, later.uncompacted),
            recounted=self.recounted or later.recounted,
        )

    def with_log_files(self, waiting: UncompactedLog | None) -> Watermarks:
        """These, with the log files counted anew."""
        return replace(self, uncompacted=waiting, recounted=True)


# Of what nobody has written to yet.
NO_WATERMARKS = Watermarks()


def most_urgent(*logs: UncompactedLog | None) -> UncompactedLog | None:
    """The log file that holds completion back most: of an unknown time, else of the least."""
    known = [log for log in logs if log is not None]
    return min(known, key=_urgency, default=None)


def _urgency(log: UncompactedLog) -> tuple[bool, int, str]:
    return log.event_time is not None, log.event_time or 0, log.path


def max_known(*times: int | None) -> int | None:
    """The greatest of the times that are known."""
    return max((time for time in times if time is not None), default=None)


def is_ingest(commit: CommitMetadata) -> bool:
    """Whether a commit brought rows to the table; moving rows or deleting them brings none."""
    word = commit.operation
    if word in SERVICE_OPERATIONS or word in DELETING_OPERATIONS:
        return False
    return any(map(_brings, commit.write_stats()))


def _brings(stat: WriteStat) -> bool:
    if stat.min_event_time is not None:
        return True
    if stat.num_inserts is None and stat.num_update_writes is None:
        return bool(stat.num_writes)
    return bool((stat.num_inserts or 0) + (stat.num_update_writes or 0))


def removes_logs(commit: CommitMetadata) -> bool:
    """Whether a commit may have taken log files out of what waits."""
    return commit.operation in (_COMPACT, _LOG_COMPACT) or bool(commit.replaced)


def dropped_partitions(commit: CommitMetadata) -> set[str]:
    """The partitions that a commit took out of the table; a clustering takes out none."""
    return set() if commit.operation == _CLUSTER else commit.replaced.keys() - commit.stats.keys()


def watermarks_by_partition(at: str, commit: CommitMetadata) -> dict[str, Watermarks]:
    """What a commit alone says about each partition that it wrote to; `at` is its own time.

    Where it removes log files, those that are left have to be counted by somebody else.
    """
    ingests = is_ingest(commit)
    return {
        partition: _marks(at, commit.operation, stats, ingests=ingests)
        for partition, stats in commit.stats.items()
    }


def _marks(
    at: str, operation: str | None, stats: Iterable[WriteStat], *, ingests: bool
) -> Watermarks:
    stats = tuple(stats)
    brought = [stat for stat in stats if ingests and _brings(stat)]
    logs = [uncompacted_log_of(at, operation, stat) for stat in stats if is_log(stat)]
    times = [stat.min_event_time for stat in brought]
    return Watermarks(
        ingested=bool(brought),
        rt_completion=_min_known(times),
        rt_freshness=max_known(*(stat.max_event_time for stat in brought)),
        ro_freshness=max_known(*(stat.max_event_time for stat in stats if not is_log(stat))),
        uncompacted=most_urgent(*logs),
    )


def _min_known(times: Iterable[int | None]) -> int | None:
    """The least of the times; None, unknown, if one of them is, and if there are none."""
    known = []
    for time in times:
        if time is None:
            return None
        known.append(time)
    return min(known, default=None)


def uncompacted_log_of(at: str, operation: str | None, stat: WriteStat) -> UncompactedLog | None:
    """The log file of a statistic; None if it holds nothing that a base file does not hold.

    - The deletes in a log file of a compaction were applied to its base file, unless it tells when
      they happened: only rows wait.
    - Of deletes that were logged once more nobody knows the event times any more, nor of those that
      a compaction did not apply and that tell none.
    """
    if operation == _COMPACT and not stat.num_writes and stat.min_event_time is None:
        return None
    lost = operation == _LOG_COMPACT and bool(stat.num_deletes)
    lost |= operation == _COMPACT and stat.min_event_time == UNKNOWN_OPERATION
    return UncompactedLog(stat.path or "", at, None if lost else stat.min_event_time)


def combine(parts: Iterable[Watermarks]) -> Watermarks:
    """What the partitions of one commit say about the table."""
    parts = tuple(parts)
    brought = [part for part in parts if part.ingested]
    return Watermarks(
        ingested=bool(brought),
        rt_completion=_min_known(part.rt_completion for part in brought),
        rt_freshness=max_known(*(part.rt_freshness for part in parts)),
        ro_freshness=max_known(*(part.ro_freshness for part in parts)),
        uncompacted=most_urgent(*(part.uncompacted for part in parts)),
    )


def detect_regression(before: Watermarks, after: Watermarks) -> CompletionRegression | None:
    """Why read-optimized completion is lower after a commit than before it, if it is."""
    old, new = before.ro_completion, after.ro_completion
    if old is None or (new is not None and new >= old):
        return None
    if new is None and after.uncompacted is None and not after.ingested:
        return None
    return CompletionRegression(old, after.uncompacted)


def future_times(
    marks: Mapping[str, Watermarks], known: Iterable[FutureTime], after_ms: int
) -> tuple[FutureTime, ...]:
    """The event times after a moment: the greatest of each partition, of the known and new ones."""
    found = dict(known)
    for partition, each in marks.items():
        time = max_known(each.rt_freshness, found.get(partition))
        if time is not None:
            found[partition] = time
    return tuple(sorted((path, time) for path, time in found.items() if time > after_ms))


# ------------------------------------------------------------------------------------------------
# The text in which a commit keeps completion and freshness, for whoever comes after it. Pure.
#
# It is JSON under `lakewright.freshness`. It tells whose it is and on which write it builds: other
# writers may copy the extra metadata of older commits, and writes may be rolled back.


FRESHNESS_KEY = "lakewright.freshness"


# Whether a completed write is still on the timeline, or in history.
IsThere = Callable[[str], bool]


@dataclass(frozen=True, slots=True)
class PartitionFreshnessRecord:
    """The marks of a partition, of the commits from `since` on; all there are if it is empty."""

    watermarks: Watermarks
    since: str = ""


@dataclass(frozen=True, slots=True)
class FreshnessRecord:
    """What a commit keeps: the table's values, and those of the partitions that it touched.

    - `at` is the commit's own requested time, `after` that of the write that completed before it,
      `after_completed` when that was; both empty for the first one;
    - `over` are the writes that may be rolled back from under it: those requested after it that had
      completed, and the compactions;
    - `logs_in` are the partitions in which log files wait; None if they are too many to tell;
    - `open` are partitions that wait to be marked as done.
    """

    at: str
    after: str = ""
    after_completed: str = ""
    over: tuple[str, ...] = ()
    watermarks: Watermarks = NO_WATERMARKS
    regression: CompletionRegression | None = None
    future: tuple[FutureTime, ...] = ()
    logs_in: frozenset[str] | None = frozenset()
    open: tuple[str, ...] = ()
    partitions: Mapping[str, PartitionFreshnessRecord] = field(default_factory=dict)

    def holds(self, instant: Instant, timeline: Timeline, is_there: IsThere) -> bool:
        """Whether it is the word of this commit, on the table as the timeline has it.

        The write that it builds on may be archived; then nothing may have come between them.
        """
        before = _before(instant, timeline)
        if self.follows(before, instant, is_there):
            return True
        if before is not None and (before.completed_at or "") > self.after_completed:
            return False
        gone = bool(self.after) and timeline.is_archived(self.after)
        return gone and self.is_of(instant, is_there)

    def follows(self, before: Instant | None, instant: Instant, is_there: IsThere) -> bool:
        """Whether it is the word of this commit, if `before` is the one that completed before."""
        known = ("", "") if before is None else (before.requested_at, before.completed_at)
        return known == (self.after, self.after_completed) and self.is_of(instant, is_there)

    def is_of(self, instant: Instant, is_there: IsThere) -> bool:
        """Whether it is the word of this commit, and nothing was taken from under it since."""
        return self.at == instant.requested_at and all(map(is_there, self.over))


def _before(instant: Instant, timeline: Timeline) -> Instant | None:
    """The write that completed last before another."""
    order = timeline.by_completion
    place = order.index(instant) if instant in order else 0
    return order[place - 1] if place else None


def removable(at: str, timeline: Timeline) -> tuple[str, ...]:
    """The completed writes that may be rolled back though a write at `at` completes after them.

    They were requested after it, or are compactions, which later log files do not keep in place.
    """
    later = (i for i in timeline.completed_writes if i.requested_at > at)
    found = {i.requested_at for i in (*later, *timeline.completed_services(Action.COMPACTION))}
    return tuple(sorted(found - {at}))


def format_freshness_record(stored: FreshnessRecord) -> str:
    """The text that a commit keeps; the inverse of `parse_freshness_record`."""
    tree = {
        "at": stored.at,
        "after": stored.after,
        "after_completed": stored.after_completed,
        "over": list(stored.over),
        "table": {
            **_marks_tree(stored.watermarks),
            "fell": _fall_tree(stored.regression),
            "future": [list(pair) for pair in stored.future],
            "logs_in": None if stored.logs_in is None else sorted(stored.logs_in),
            "open": list(stored.open),
        },
        "partitions": {
            path: {**_marks_tree(entry.watermarks), "since": entry.since}
            for path, entry in sorted(stored.partitions.items())
        },
    }
    return json.dumps(tree, separators=(",", ":"))


def parse_freshness_record(extra: Mapping[str, str]) -> FreshnessRecord | None:
    """What a commit keeps among its extra metadata; None if it keeps nothing that can be read."""
    text = extra.get(FRESHNESS_KEY)
    if not text:
        return None
    try:
        tree = json.loads(text)
        table = tree["table"]
        return FreshnessRecord(
            at=str(tree["at"]),
            after=str(tree["after"]),
            after_completed=str(tree["after_completed"]),
            over=tuple(map(str, tree["over"])),
            watermarks=_parse_marks(table),
            regression=_fall(table["fell"]),
            future=tuple((str(path), int(time)) for path, time in table["future"]),
            logs_in=None if (paths := table["logs_in"]) is None else frozenset(map(str, paths)),
            open=tuple(map(str, table["open"])),
            partitions={
                str(path): PartitionFreshnessRecord(_parse_marks(item), str(item["since"]))
                for path, item in tree["partitions"].items()
            },
        )
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None


def _marks_tree(marks: Watermarks) -> dict[str, Any]:
    return {
        "snapshot_completion": marks.rt_completion,
        "snapshot_freshness": marks.rt_freshness,
        "read_optimized_completion": marks.ro_completion,
        "read_optimized_freshness": marks.ro_freshness,
        "ingested": marks.ingested,
        "recounted": marks.recounted,
        "waiting": _waiting_tree(marks.uncompacted),
    }


def _parse_marks(tree: Mapping[str, Any]) -> Watermarks:
    return Watermarks(
        ingested=bool(tree["ingested"]),
        rt_completion=_time(tree["snapshot_completion"]),
        rt_freshness=_time(tree["snapshot_freshness"]),
        ro_freshness=_time(tree["read_optimized_freshness"]),
        uncompacted=_waiting(tree["waiting"]),
        recounted=bool(tree["recounted"]),
    )


def _waiting_tree(waiting: UncompactedLog | None) -> dict[str, Any] | None:
    if waiting is None:
        return None
    return {"log": waiting.path, "instant": waiting.instant, "event_time": waiting.event_time}


def _waiting(tree: Mapping[str, Any] | None) -> UncompactedLog | None:
    if tree is None:
        return None
    return UncompactedLog(str(tree["log"]), str(tree["instant"]), _time(tree["event_time"]))


def _fall_tree(fell: CompletionRegression | None) -> dict[str, Any] | None:
    return None if fell is None else {"before": fell.before, "cause": _waiting_tree(fell.cause)}


def _fall(tree: Mapping[str, Any] | None) -> CompletionRegression | None:
    return (
        None if tree is None else CompletionRegression(int(tree["before"]), _waiting(tree["cause"]))
    )


def _time(value: Any) -> int | None:
    return None if value is None else int(value)
