"""The offsets of a streaming read, by completion time, and where its next batch ends.

An offset has the same form as Hudi's. Spark stores the end of each batch, and asks for the begin of
the first batch again when it replays that batch; by then the newest instant may be another one, and
a user may have given another start. So the end of the first batch also records where that batch
begins.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from lakewright.errors import CorruptError, InvalidError
from lakewright.model.instant import (
    REWRITES,
    Instant,
    InstantTime,
    bound_of_range,
    full_time,
    is_time,
)
from lakewright.model.timeline import Timeline
from lakewright.scan.planner import EARLIEST, IncrementalQueryAnalyzer, QueryContext
from lakewright.table.snapshot import Snapshot

LATEST = "latest"
# Before all times, as Hudi writes it.
BEGINNING = "0" * 14
_UP_TO, _SINCE, _START = "offsetCommitTime", "since", "startOffset"


@dataclass(frozen=True, slots=True)
class StreamStart:
    """Where a stream without a checkpoint begins: `earliest`, `latest` or a completion time."""

    word: str

    def position(self, newest: str) -> str:
        """Return the completion time after which the stream begins."""
        return {EARLIEST: BEGINNING, LATEST: newest}.get(self.word, self.word)

    def as_json(self) -> dict[str, str]:
        """Return the JSON that Spark stores."""
        return {_START: self.word}


@dataclass(frozen=True, slots=True)
class Offset:
    """The end of a batch: all writes up to `completed_at` were read, in a first batch from `since`.

    Both are completion times; `completed_at` is included, `since` is not.
    """

    completed_at: InstantTime
    since: str | None = None

    def as_json(self) -> dict[str, str]:
        """Return the JSON that Spark stores."""
        since = {} if self.since is None else {_SINCE: self.since}
        return {_UP_TO: self.completed_at, **since}


def parse_start(text: str) -> str:
    """Parse a start given by a user: `earliest`, `latest` or a completion time."""
    value = text.strip().lower()
    if value in (EARLIEST, LATEST):
        return value
    if value and not value.strip("0"):
        return EARLIEST
    if not is_time(value):
        raise ValueError("earliest, latest or a completion time (17 or 14 digits) expected")
    return bound_of_range(value)


def parse_offset(value: Mapping[str, object]) -> StreamStart | Offset:
    """Parse the JSON of an offset that Spark stored."""
    start, completed_at, since = (value.get(key) for key in (_START, _UP_TO, _SINCE))
    if isinstance(start, str):
        return StreamStart(start)
    valid = isinstance(completed_at, str) and (since is None or isinstance(since, str))
    if not valid:
        raise CorruptError("the checkpoint of a stream holds no offset of a table", offset=value)
    assert isinstance(completed_at, str)
    assert since is None or isinstance(since, str)
    return Offset(_full_time(completed_at), None if since is None else _full_time(since))


def newest_completion(timeline: Timeline) -> str:
    """Return the completion time of the last write that may have added rows."""
    return max((i.completed_at or "" for i in _writes(timeline)), default=BEGINNING)


def next_offset(
    start: StreamStart | Offset, snapshot: Snapshot, *, until: str, limit: int | None = None
) -> Offset | None:
    """Return where the batch after `start` ends, `until` at the latest; None if there is no batch.

    A batch has at most `limit` writes. For a stream that begins at the latest instant, the first
    batch is empty, and ends where it begins: otherwise a restarted stream would begin elsewhere.
    """
    begin = start.position(until) if isinstance(start, StreamStart) else start.completed_at
    since = begin if isinstance(start, StreamStart) else None
    if begin < until:
        end = until if limit is None else _end_of_batch(snapshot, begin, until, limit)
        return Offset(end, since)
    return Offset(begin, since) if start == StreamStart(LATEST) else None


def batch_context(
    snapshot: Snapshot, start: StreamStart | Offset, end: Offset
) -> QueryContext | None:
    """Return the instants of a batch, the same at every call; None for an empty batch."""
    begin = _begin(start, end)
    if begin >= end.completed_at:
        return None
    return _range_analyzer(snapshot, begin, end.completed_at).analyze()


def _begin(start: StreamStart | Offset, end: Offset) -> str:
    if isinstance(start, Offset):
        return start.completed_at
    if end.since is not None:
        return end.since
    if start.word == LATEST:
        raise InvalidError(
            "the checkpoint does not record where the stream's first batch begins: give a "
            "completion time, or earliest",
            option="hoodie.datasource.streaming.startOffset",
            value=LATEST,
        )
    return start.position(BEGINNING)


def _end_of_batch(snapshot: Snapshot, begin: str, until: str, limit: int) -> str:
    """Return where a batch of at most `limit` writes ends; services do not count."""
    active_writes = {i.requested_at for i in _writes(snapshot.timeline)}
    active_instants = snapshot.timeline.by_time
    completion_times = [
        instant.completed_at or until
        for instant in _range_analyzer(snapshot, begin, until).analyze().instants
        if instant.requested_at in active_writes or instant.requested_at not in active_instants
    ]
    return completion_times[limit - 1] if len(completion_times) > limit else until


def _writes(timeline: Timeline) -> list[Instant]:
    """Return the completed writes that are not known to be services."""
    services = {i for action in REWRITES for i in timeline.completed_services(action)}
    return [i for i in timeline.completed_writes if i not in services]


def _range_analyzer(snapshot: Snapshot, begin: str, end: str) -> IncrementalQueryAnalyzer:
    first = EARLIEST if begin == BEGINNING else begin
    return IncrementalQueryAnalyzer(snapshot=snapshot, begin=first, end=end)


def _full_time(time: str) -> str:
    """Return a time with milliseconds, which old writers omit; BEGINNING stays as it is."""
    return full_time(time) if time.strip("0") else BEGINNING
