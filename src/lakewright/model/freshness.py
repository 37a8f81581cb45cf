"""Completion and freshness of the snapshot and read-optimized views, from commit metadata.

Times are event times in milliseconds since 1970. Completion: the view contains all rows up to this
time. Freshness: the event time of the newest row in the view. None means unknown, or no rows.

A commit stores the result as a `FreshnessRecord`, JSON in its extra metadata under
`lakewright.freshness`, so that later commits and readers need not start over. The record names its
own commit and the write that completed before it: other writers may copy the extra metadata of
older commits, and writes may be rolled back.
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

# Stored as the least event time of a log file of deletes that a compaction left uncompacted, if
# their event times are unknown.
UNKNOWN_OPERATION = 0

FutureTime = tuple[str, int]


@dataclass(frozen=True, slots=True)
class ViewFreshness:
    """Completion and freshness of one view."""

    completion: int | None = None
    freshness: int | None = None


@dataclass(frozen=True, slots=True)
class PartitionFreshness:
    """Completion and freshness of both views of one partition."""

    snapshot: ViewFreshness = ViewFreshness()
    read_optimized: ViewFreshness = ViewFreshness()


@dataclass(frozen=True, slots=True)
class UncompactedLog:
    """An uncompacted log file: its path, the instant that wrote it, its least event time.

    An event time of None is unknown and sorts before all known ones.
    """

    path: str
    instant: InstantTime
    event_time: int | None


@dataclass(frozen=True, slots=True)
class CompletionRegression:
    """The reason why read-optimized completion is lower than it was `before`.

    `cause` is the log file with late rows. It is None if the newest ingested rows decide, and no
    uncompacted log file, or if rows were removed.
    """

    before: int
    cause: UncompactedLog | None = None


@dataclass(frozen=True, slots=True)
class Freshness:
    """Completion and freshness of a table's views as of its newest write, `as_of`.

    - `partitions` is loaded lazily, one partition at a time;
    - `uncompacted_logs` is the blocking log file, which limits read-optimized completion; None if
      all log files are compacted;
    - `regression` says why the newest write lowered read-optimized completion, if it did;
    - `future` holds, by partition, greatest event times that are in the future.
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
    """The accumulated effect of a sequence of commits on a table or a partition.

    - `ingested`: whether there was an ingest commit, so that a completion of None means unknown;
    - `uncompacted`: the blocking log file, which is the uncompacted one with the least event time;
      an unknown event time comes first;
    - `recounted`: `uncompacted` was computed from all log files and so supersedes earlier values.
    """

    ingested: bool = False
    rt_completion: int | None = None
    rt_freshness: int | None = None
    ro_freshness: int | None = None
    uncompacted: UncompactedLog | None = None
    recounted: bool = False

    @property
    def ro_completion(self) -> int | None:
        """The event time up to which base files contain all rows; None if unknown.

        Base files contain a part of the snapshot's rows: so never more than for the snapshot.
        """
        if self.uncompacted is None:
            return self.rt_completion
        least = self.uncompacted.event_time
        if least is None or self.rt_completion is None:
            return None
        return min(least - 1, self.rt_completion)

    @property
    def views(self) -> PartitionFreshness:
        """Completion and freshness of the two views."""
        return PartitionFreshness(
            ViewFreshness(self.rt_completion, self.rt_freshness),
            ViewFreshness(self.ro_completion, self.ro_freshness),
        )

    def followed_by(self, later: Watermarks) -> Watermarks:
        """Return the watermarks after these and some later commits."""
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

    def with_log_files(self, uncompacted: UncompactedLog | None) -> Watermarks:
        """Return these watermarks with the blocking log file computed from all log files."""
        return replace(self, uncompacted=uncompacted, recounted=True)


# The watermarks of a table or partition without commits.
NO_WATERMARKS = Watermarks()


def most_urgent(*logs: UncompactedLog | None) -> UncompactedLog | None:
    """Return the blocking log file: one of unknown event time, else the one of the least."""
    present = [log for log in logs if log is not None]
    return min(present, key=_urgency, default=None)


def _urgency(log: UncompactedLog) -> tuple[bool, int, str]:
    return log.event_time is not None, log.event_time or 0, log.path


def max_known(*times: int | None) -> int | None:
    """Return the greatest of the times that are not None; None if there are none."""
    return max((time for time in times if time is not None), default=None)


def is_ingest(commit: CommitMetadata) -> bool:
    """Whether a commit added rows to the table; table services and deletes do not."""
    operation = commit.operation
    if operation in SERVICE_OPERATIONS or operation in DELETING_OPERATIONS:
        return False
    return any(map(_adds_rows, commit.write_stats()))


def _adds_rows(stat: WriteStat) -> bool:
    if stat.min_event_time is not None:
        return True
    if stat.num_inserts is None and stat.num_update_writes is None:
        return bool(stat.num_writes)
    return bool((stat.num_inserts or 0) + (stat.num_update_writes or 0))


def removes_logs(commit: CommitMetadata) -> bool:
    """Whether a commit may have compacted or replaced uncompacted log files."""
    return commit.operation in (_COMPACT, _LOG_COMPACT) or bool(commit.replaced)


def dropped_partitions(commit: CommitMetadata) -> set[str]:
    """Return the partitions that a commit dropped from the table; a clustering drops none."""
    return set() if commit.operation == _CLUSTER else commit.replaced.keys() - commit.stats.keys()


def watermarks_by_partition(at: str, commit: CommitMetadata) -> dict[str, Watermarks]:
    """Return the watermarks of one commit, requested at `at`, for each partition it wrote to.

    If it removes log files, the caller has to recount those that are still uncompacted.
    """
    ingests = is_ingest(commit)
    return {
        partition: _watermarks(at, commit.operation, stats, ingests=ingests)
        for partition, stats in commit.stats.items()
    }


def _watermarks(
    at: str, operation: str | None, stats: Iterable[WriteStat], *, ingests: bool
) -> Watermarks:
    stats = tuple(stats)
    ingesting = [stat for stat in stats if ingests and _adds_rows(stat)]
    logs = [uncompacted_log_of(at, operation, stat) for stat in stats if is_log(stat)]
    min_times = [stat.min_event_time for stat in ingesting]
    return Watermarks(
        ingested=bool(ingesting),
        rt_completion=_min_known(min_times),
        rt_freshness=max_known(*(stat.max_event_time for stat in ingesting)),
        ro_freshness=max_known(*(stat.max_event_time for stat in stats if not is_log(stat))),
        uncompacted=most_urgent(*logs),
    )


def _min_known(times: Iterable[int | None]) -> int | None:
    """Return the least of the times; None if one of them is unknown, or if there are none."""
    values = []
    for time in times:
        if time is None:
            return None
        values.append(time)
    return min(values, default=None)


def uncompacted_log_of(at: str, operation: str | None, stat: WriteStat) -> UncompactedLog | None:
    """Return the log file of a statistic; None if its base file already contains its changes.

    - A compaction has applied the deletes in its log file to the base file, unless it records an
      event time for them: without one, only rows are uncompacted.
    - The event times of deletes are unknown after a log compaction has rewritten them, and where a
      compaction did not apply them and recorded none.
    """
    if operation == _COMPACT and not stat.num_writes and stat.min_event_time is None:
        return None
    unknown = operation == _LOG_COMPACT and bool(stat.num_deletes)
    unknown |= operation == _COMPACT and stat.min_event_time == UNKNOWN_OPERATION
    return UncompactedLog(stat.path or "", at, None if unknown else stat.min_event_time)


def combine(parts: Iterable[Watermarks]) -> Watermarks:
    """Return the watermarks of the table after one commit, from those of its partitions."""
    parts = tuple(parts)
    ingesting = [part for part in parts if part.ingested]
    return Watermarks(
        ingested=bool(ingesting),
        rt_completion=_min_known(part.rt_completion for part in ingesting),
        rt_freshness=max_known(*(part.rt_freshness for part in parts)),
        ro_freshness=max_known(*(part.ro_freshness for part in parts)),
        uncompacted=most_urgent(*(part.uncompacted for part in parts)),
    )


def detect_regression(before: Watermarks, after: Watermarks) -> CompletionRegression | None:
    """Return why read-optimized completion is lower after a commit than before it; None if not."""
    old, new = before.ro_completion, after.ro_completion
    if old is None or (new is not None and new >= old):
        return None
    if new is None and after.uncompacted is None and not after.ingested:
        return None
    log = after.uncompacted
    is_cause = log is not None and (
        log.event_time is None or (new is not None and log.event_time - 1 <= new)
    )
    return CompletionRegression(old, log if is_cause else None)


def future_times(
    watermarks: Mapping[str, Watermarks], recorded: Iterable[FutureTime], after_ms: int
) -> tuple[FutureTime, ...]:
    """Return, by partition, the greatest event times after `after_ms`, of known and new ones."""
    greatest = dict(recorded)
    for partition, new in watermarks.items():
        time = max_known(new.rt_freshness, greatest.get(partition))
        if time is not None:
            greatest[partition] = time
    return tuple(sorted((path, time) for path, time in greatest.items() if time > after_ms))


# The freshness record of a commit.

FRESHNESS_KEY = "lakewright.freshness"


# Whether a write is still completed: on the active timeline or on the archived one.
WriteExists = Callable[[str], bool]


@dataclass(frozen=True, slots=True)
class PartitionFreshnessRecord:
    """The watermarks of a partition over the commits from `since` on; over all if it is empty."""

    watermarks: Watermarks
    since: str = ""


@dataclass(frozen=True, slots=True)
class FreshnessRecord:
    """The record in a commit: the values of the table and of the partitions that it wrote to.

    - `at` is the commit's own requested time; `after` and `after_completed` are the requested and
      completion times of the write that completed just before it, empty for the first write;
    - `over` are the writes that the record includes and that may still be rolled back: completed
      ones that were requested after this commit, and compactions;
    - `logs_in` are the partitions with uncompacted log files; None if there are too many to list;
    - `open` are partitions that are not yet marked as done.
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

    def is_valid(self, instant: Instant, timeline: Timeline, write_exists: WriteExists) -> bool:
        """Whether this commit wrote the record and it is valid on this timeline.

        The write that the record builds on may be archived by now; then no other write may have
        completed between the two.
        """
        previous = _previous_write(instant, timeline)
        if self.follows(previous, instant, write_exists):
            return True
        if previous is not None and (previous.completed_at or "") > self.after_completed:
            return False
        is_archived = bool(self.after) and timeline.is_archived(self.after)
        return is_archived and self.is_written_by(instant, write_exists)

    def follows(
        self, previous_write: Instant | None, instant: Instant, write_exists: WriteExists
    ) -> bool:
        """Whether this commit wrote the record and it builds on `previous_write`."""
        previous = (
            ("", "")
            if previous_write is None
            else (previous_write.requested_at, previous_write.completed_at)
        )
        return previous == (self.after, self.after_completed) and self.is_written_by(
            instant, write_exists
        )

    def is_written_by(self, instant: Instant, write_exists: WriteExists) -> bool:
        """Whether this commit wrote the record and no write that it includes was rolled back."""
        return self.at == instant.requested_at and all(map(write_exists, self.over))


def _previous_write(instant: Instant, timeline: Timeline) -> Instant | None:
    """Return the write that completed last before `instant`; None if there is none."""
    writes = timeline.by_completion
    position = writes.index(instant) if instant in writes else 0
    return writes[position - 1] if position else None


def removable(at: str, timeline: Timeline) -> tuple[str, ...]:
    """Return the completed writes that may be rolled back even after a write at `at` completes.

    They were requested after it, or are compactions, which later log files do not protect from
    being rolled back.
    """
    later = (i for i in timeline.completed_writes if i.requested_at > at)
    times = {i.requested_at for i in (*later, *timeline.completed_services(Action.COMPACTION))}
    return tuple(sorted(times - {at}))


def format_freshness_record(stored: FreshnessRecord) -> str:
    """Return the JSON text of a record; the inverse of `parse_freshness_record`."""
    tree = {
        "at": stored.at,
        "after": stored.after,
        "after_completed": stored.after_completed,
        "over": list(stored.over),
        "table": {
            **_watermarks_json(stored.watermarks),
            "fell": _regression_json(stored.regression),
            "future": [list(pair) for pair in stored.future],
            "logs_in": None if stored.logs_in is None else sorted(stored.logs_in),
            "open": list(stored.open),
        },
        "partitions": {
            path: {**_watermarks_json(entry.watermarks), "since": entry.since}
            for path, entry in sorted(stored.partitions.items())
        },
    }
    return json.dumps(tree, separators=(",", ":"))


def parse_freshness_record(extra: Mapping[str, str]) -> FreshnessRecord | None:
    """Return the record in the extra metadata of a commit; None if there is no valid one."""
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
            watermarks=_parse_watermarks(table),
            regression=_parse_regression(table["fell"]),
            future=tuple((str(path), int(time)) for path, time in table["future"]),
            logs_in=None if (paths := table["logs_in"]) is None else frozenset(map(str, paths)),
            open=tuple(map(str, table["open"])),
            partitions={
                str(path): PartitionFreshnessRecord(_parse_watermarks(entry), str(entry["since"]))
                for path, entry in tree["partitions"].items()
            },
        )
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None


def _watermarks_json(watermarks: Watermarks) -> dict[str, Any]:
    return {
        "snapshot_completion": watermarks.rt_completion,
        "snapshot_freshness": watermarks.rt_freshness,
        "read_optimized_completion": watermarks.ro_completion,
        "read_optimized_freshness": watermarks.ro_freshness,
        "ingested": watermarks.ingested,
        "recounted": watermarks.recounted,
        "waiting": _log_json(watermarks.uncompacted),
    }


def _parse_watermarks(tree: Mapping[str, Any]) -> Watermarks:
    return Watermarks(
        ingested=bool(tree["ingested"]),
        rt_completion=_parse_time(tree["snapshot_completion"]),
        rt_freshness=_parse_time(tree["snapshot_freshness"]),
        ro_freshness=_parse_time(tree["read_optimized_freshness"]),
        uncompacted=_parse_log(tree["waiting"]),
        recounted=bool(tree["recounted"]),
    )


def _log_json(log: UncompactedLog | None) -> dict[str, Any] | None:
    if log is None:
        return None
    return {"log": log.path, "instant": log.instant, "event_time": log.event_time}


def _parse_log(tree: Mapping[str, Any] | None) -> UncompactedLog | None:
    if tree is None:
        return None
    return UncompactedLog(str(tree["log"]), str(tree["instant"]), _parse_time(tree["event_time"]))


def _regression_json(regression: CompletionRegression | None) -> dict[str, Any] | None:
    return (
        None
        if regression is None
        else {"before": regression.before, "cause": _log_json(regression.cause)}
    )


def _parse_regression(tree: Mapping[str, Any] | None) -> CompletionRegression | None:
    return (
        None
        if tree is None
        else CompletionRegression(int(tree["before"]), _parse_log(tree["cause"]))
    )


def _parse_time(value: Any) -> int | None:
    return None if value is None else int(value)
