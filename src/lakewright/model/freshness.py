"""Completion and freshness of the snapshot and read-optimized views, from commit metadata.

Times are event times in milliseconds since 1970. Completion: the view contains all rows up to this
time, by the RFC's definition. Watermark: the same by the watermark (`model/watermark.py`), if a
lateness is set. Freshness: the event time of the newest row in the view. None means unknown, or no
rows.

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
from lakewright.model.plans import EVENT_TIME_THRESHOLD_MS, EXACT_SPLIT, WITHDRAWN
from lakewright.model.timeline import Timeline
from lakewright.model.watermark import CompletionDefinition, parse_watermark_record

_CLUSTER = "CLUSTER"
_COMPACT = "COMPACT"
_LOG_COMPACT = "LOG_COMPACT"

# Stored as the least event time of a log file of deletes that a compaction left uncompacted, if
# their event times are unknown.
UNKNOWN_OPERATION = 0

FutureTime = tuple[str, int]


@dataclass(frozen=True, slots=True)
class ViewFreshness:
    """Completion and freshness of one view; `watermark` is None if no lateness is set."""

    completion: int | None = None
    freshness: int | None = None
    watermark: int | None = None

    def complete_until(self, definition: CompletionDefinition) -> int | None:
        """Return the event time up to which the view is complete, by a definition."""
        is_watermark = definition is CompletionDefinition.WATERMARK
        return self.watermark if is_watermark else self.completion


@dataclass(frozen=True, slots=True)
class PartitionFreshness:
    """Completion and freshness of both views of one partition.

    `late_rows` are its rows that came at or before the watermark of the table.
    """

    snapshot: ViewFreshness = ViewFreshness()
    read_optimized: ViewFreshness = ViewFreshness()
    late_rows: int = 0


@dataclass(frozen=True, slots=True)
class UncompactedLog:
    """An uncompacted log file: its path, the instant that wrote it, its least event time.

    An event time of None is unknown and sorts before all known ones. `held_at` is set if the
    watermark had passed the event time before the log file was written: the log file then holds
    the watermark of the read-optimized view at `held_at`, and does not lower it.
    """

    path: str
    instant: InstantTime
    event_time: int | None
    held_at: int | None = None

    @property
    def watermark(self) -> int | None:
        """The greatest watermark that the read-optimized view can have; None if unknown."""
        return self.held_at if self.held_at is not None else self._before_event_time

    @property
    def _before_event_time(self) -> int | None:
        return None if self.event_time is None else self.event_time - 1

    def held_at_least(self, watermark: int | None) -> UncompactedLog:
        """Return the log file, where the read-optimized view has already reached a watermark."""
        allowed = self.watermark
        is_late = watermark is not None and (allowed is None or allowed < watermark)
        return replace(self, held_at=watermark) if is_late else self


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
    - `future` holds, by partition, greatest event times that are in the future;
    - `definition` is the one that waits and marks of this table go by; with a lateness that is the
      watermark. `late_rows` are the rows that came at or before it.
    """

    snapshot: ViewFreshness
    read_optimized: ViewFreshness
    as_of: str | None = None
    uncompacted_logs: UncompactedLog | None = None
    regression: CompletionRegression | None = None
    future: tuple[FutureTime, ...] = ()
    lateness_ms: int | None = None
    late_rows: int = 0
    partitions: Mapping[str, PartitionFreshness] = field(
        default_factory=dict, compare=False, repr=False
    )

    @property
    def definition(self) -> CompletionDefinition:
        """The definition of completion that counts for this table."""
        return completion_definition(self.lateness_ms)


def completion_definition(lateness_ms: int | None) -> CompletionDefinition:
    """Return the definition of completion that counts: the watermark, if a lateness is set."""
    if lateness_ms is None:
        return CompletionDefinition.LAST_COMMIT
    return CompletionDefinition.WATERMARK


@dataclass(frozen=True, slots=True)
class Watermarks:
    """The accumulated effect of a sequence of commits on a table or a partition.

    - `ingested`: whether there was an ingest commit, so that a completion of None means unknown;
    - `uncompacted`: the blocking log file, which is the uncompacted one with the least event time;
      an unknown event time comes first;
    - `recounted`: `uncompacted` was computed from all log files and so supersedes earlier values;
    - `watermark`: the greatest event time, less the lateness that was allowed at the time;
    - `late_rows`: how many rows came at or before the table's watermark.
    """

    ingested: bool = False
    rt_completion: int | None = None
    rt_freshness: int | None = None
    ro_freshness: int | None = None
    uncompacted: UncompactedLog | None = None
    recounted: bool = False
    watermark: int | None = None
    late_rows: int = 0

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

    def rt_watermark(self, lateness_ms: int | None) -> int | None:
        """Return the watermark of the snapshot; it never falls, even if the lateness grows."""
        if lateness_ms is None or self.rt_freshness is None:
            return None
        return max_known(self.watermark, self.rt_freshness - lateness_ms)

    def ro_watermark(self, lateness_ms: int | None) -> int | None:
        """Return the watermark of the read-optimized view: up to it base files have all rows.

        Late rows in log files hold it, and do not lower it.
        """
        reached = self.rt_watermark(lateness_ms)
        if reached is None or self.uncompacted is None:
            return reached
        limit = self.uncompacted.watermark
        return None if limit is None else min(limit, reached)

    def without_recorded_watermark(self) -> Watermarks:
        """Return these watermarks for another lateness than the commits were written with."""
        log = self.uncompacted
        return replace(
            self,
            watermark=None,
            late_rows=0,
            uncompacted=None if log is None else replace(log, held_at=None),
        )

    def views(self, lateness_ms: int | None = None) -> PartitionFreshness:
        """Return completion and freshness of the two views, with a lateness also watermarks."""
        return PartitionFreshness(
            ViewFreshness(self.rt_completion, self.rt_freshness, self.rt_watermark(lateness_ms)),
            ViewFreshness(self.ro_completion, self.ro_freshness, self.ro_watermark(lateness_ms)),
            self.late_rows,
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
            watermark=max_known(self.watermark, later.watermark),
            late_rows=self.late_rows + later.late_rows,
        )

    def with_log_files(
        self, uncompacted: UncompactedLog | None, reached: int | None = None
    ) -> Watermarks:
        """Return these watermarks with the blocking log file computed from all log files.

        `reached` is the watermark that the read-optimized view had before: what removes log files
        does not lower it.
        """
        log = None if uncompacted is None else uncompacted.held_at_least(reached)
        return replace(self, uncompacted=log, recounted=True)


# The watermarks of a table or partition without commits.
NO_WATERMARKS = Watermarks()


def most_urgent(*logs: UncompactedLog | None) -> UncompactedLog | None:
    """Return the blocking log file: one of unknown event time, else the one of the least.

    It allows no greater watermark than any of the others.
    """
    present = [log for log in logs if log is not None]
    if not present:
        return None
    limit = _min_known(log.watermark for log in present)
    return replace(min(present, key=_urgency), held_at=None).held_at_least(limit)


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


def withdraws_rows(commit: CommitMetadata) -> bool:
    """Whether a commit may have taken rows out of base files that it left in log files."""
    return EXACT_SPLIT in commit.extra and commit.extra.get(WITHDRAWN) != "0"


def split_threshold_ms(commit: CommitMetadata) -> int | None:
    """Return the threshold of the exact split that a commit made; None if it is not recorded."""
    try:
        return int(commit.extra[EVENT_TIME_THRESHOLD_MS])
    except (KeyError, ValueError):
        return None


def dropped_partitions(commit: CommitMetadata) -> set[str]:
    """Return the partitions that a commit dropped from the table; a clustering drops none."""
    return set() if commit.operation == _CLUSTER else commit.replaced.keys() - commit.stats.keys()


def watermarks_by_partition(
    at: str, commit: CommitMetadata, reached: int | None = None
) -> dict[str, Watermarks]:
    """Return the watermarks of one commit, requested at `at`, for each partition it wrote to.

    If it removes log files, the caller has to recount those that are still uncompacted. `reached`
    is the watermark before the commit, for commits that do not record it.
    """
    record = parse_watermark_record(commit.extra, at)
    before = reached if record is None else record.before
    ingests = is_ingest(commit)
    parts = {
        partition: _watermarks(at, commit.operation, stats, before, ingests=ingests)
        for partition, stats in commit.stats.items()
    }
    if record is None or record.lateness_ms is None:
        return parts
    return {
        partition: replace(
            part,
            watermark=None if part.rt_freshness is None else part.rt_freshness - record.lateness_ms,
            late_rows=record.late_rows.get(partition, 0),
        )
        for partition, part in parts.items()
    }


def _watermarks(
    at: str,
    operation: str | None,
    stats: Iterable[WriteStat],
    before: int | None,
    *,
    ingests: bool,
) -> Watermarks:
    stats = tuple(stats)
    ingesting = [stat for stat in stats if ingests and _adds_rows(stat)]
    logs = [uncompacted_log_of(at, operation, stat, before) for stat in stats if is_log(stat)]
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


def uncompacted_log_of(
    at: str, operation: str | None, stat: WriteStat, before: int | None = None
) -> UncompactedLog | None:
    """Return the log file of a statistic; None if its base file already contains its changes.

    `before` is the watermark that was reached before its commit.

    - A compaction has applied the deletes in its log file to the base file, unless it records an
      event time for them: without one, only rows are uncompacted.
    - The event times of deletes are unknown after a log compaction has rewritten them, and where a
      compaction did not apply them and recorded none.
    """
    if operation == _COMPACT and not stat.num_writes and stat.min_event_time is None:
        return None
    unknown = operation == _LOG_COMPACT and bool(stat.num_deletes)
    unknown |= operation == _COMPACT and stat.min_event_time == UNKNOWN_OPERATION
    log = UncompactedLog(stat.path or "", at, None if unknown else stat.min_event_time)
    return log.held_at_least(before)


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
        watermark=max_known(*(part.watermark for part in parts)),
        late_rows=sum(part.late_rows for part in parts),
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
    - `open` are partitions that are not yet marked as done;
    - `lateness_ms` is the lateness that the watermark allows, None if the table has none.
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
    lateness_ms: int | None = None

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
            **_lateness_json(stored),
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
            lateness_ms=_parse_time(table.get("lateness")),
        )
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None


def _lateness_json(stored: FreshnessRecord) -> dict[str, Any]:
    """Return what a record adds where a lateness is set; without one it is as before."""
    lateness = stored.lateness_ms
    if lateness is None:
        return {}
    return {
        "lateness": lateness,
        "read_optimized_watermark": stored.watermarks.ro_watermark(lateness),
    }


def _watermarks_json(watermarks: Watermarks) -> dict[str, Any]:
    return {
        **_watermark_json(watermarks),
        "snapshot_completion": watermarks.rt_completion,
        "snapshot_freshness": watermarks.rt_freshness,
        "read_optimized_completion": watermarks.ro_completion,
        "read_optimized_freshness": watermarks.ro_freshness,
        "ingested": watermarks.ingested,
        "recounted": watermarks.recounted,
        "waiting": _log_json(watermarks.uncompacted),
    }


def _watermark_json(watermarks: Watermarks) -> dict[str, Any]:
    known = {} if watermarks.watermark is None else {"snapshot_watermark": watermarks.watermark}
    return {**known, **({"late_rows": watermarks.late_rows} if watermarks.late_rows else {})}


def _parse_watermarks(tree: Mapping[str, Any]) -> Watermarks:
    return Watermarks(
        ingested=bool(tree["ingested"]),
        rt_completion=_parse_time(tree["snapshot_completion"]),
        rt_freshness=_parse_time(tree["snapshot_freshness"]),
        ro_freshness=_parse_time(tree["read_optimized_freshness"]),
        uncompacted=_parse_log(tree["waiting"]),
        recounted=bool(tree["recounted"]),
        watermark=_parse_time(tree.get("snapshot_watermark")),
        late_rows=int(tree.get("late_rows", 0)),
    )


def _log_json(log: UncompactedLog | None) -> dict[str, Any] | None:
    if log is None:
        return None
    tree = {"log": log.path, "instant": log.instant, "event_time": log.event_time}
    return tree if log.held_at is None else {**tree, "held_at": log.held_at}


def _parse_log(tree: Mapping[str, Any] | None) -> UncompactedLog | None:
    if tree is None:
        return None
    times = _parse_time(tree["event_time"]), _parse_time(tree.get("held_at"))
    return UncompactedLog(str(tree["log"]), str(tree["instant"]), *times)


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
