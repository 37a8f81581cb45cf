"""How far a stream has read a table, by completion time, and where its next batch ends.

An offset has the shape that real Hudi's has. Spark keeps the end of each batch, and asks for the
beginning of the first one anew when it is replayed; by then the newest instant is another one, and
a user may have given another start. So the end of the first batch tells where that batch begins.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from lakewright.errors import CorruptError, InvalidError
from lakewright.model.instant import REWRITES, Instant, InstantTime, full_time, is_time
from lakewright.model.timeline import Timeline
from lakewright.scan.planner import EARLIEST, IncrementalQueryAnalyzer, QueryContext
from lakewright.table.snapshot import Snapshot

LATEST = "latest"
# Before all times, in the word that real Hudi has for it.
BEGINNING = "0" * 14
_UP_TO, _SINCE, _START = "offsetCommitTime", "since", "startOffset"


@dataclass(frozen=True, slots=True)
class StreamStart:
    """Where a stream is to begin that has read nothing yet: a word, or a completion time."""

    word: str

    def position(self, newest: str) -> str:
        """The completion time that the stream begins after."""
        return {EARLIEST: BEGINNING, LATEST: newest}.get(self.word, self.word)

    def as_json(self) -> dict[str, str]:
        """What Spark keeps of it."""
        return {_START: self.word}


@dataclass(frozen=True, slots=True)
class Offset:
    """All that completed until `completed_at` was read; in a first batch: what did after `since`.

    `completed_at` itself is read, `since` is not.
    """

    completed_at: InstantTime
    since: str | None = None

    def as_json(self) -> dict[str, str]:
        """What Spark keeps of it."""
        told = {} if self.since is None else {_SINCE: self.since}
        return {_UP_TO: self.completed_at, **told}


def parse_start(text: str) -> str:
    """Where a stream begins, as people write it: `earliest`, `latest` or a completion time."""
    word = text.strip().lower()
    if word in (EARLIEST, LATEST):
        return word
    if word and not word.strip("0"):
        return EARLIEST
    if not is_time(word):
        raise ValueError("earliest, latest or a completion time (17 digits) expected")
    return full_time(word)


def parse_offset(value: Mapping[str, object]) -> StreamStart | Offset:
    """What Spark has kept of an offset."""
    start, completed_at, since = (value.get(key) for key in (_START, _UP_TO, _SINCE))
    if isinstance(start, str):
        return StreamStart(start)
    known = isinstance(completed_at, str) and (since is None or isinstance(since, str))
    if not known:
        raise CorruptError("the checkpoint of a stream holds no offset of a table", offset=value)
    assert isinstance(completed_at, str)
    assert since is None or isinstance(since, str)
    return Offset(_padded(completed_at), None if since is None else _padded(since))


def newest_completion(timeline: Timeline) -> str:
    """When the write completed last that may have brought rows."""
    return max((i.completed_at or "" for i in _writes(timeline)), default=BEGINNING)


def next_offset(
    start: StreamStart | Offset, snapshot: Snapshot, *, until: str, limit: int | None = None
) -> Offset | None:
    """Where the batch after `start` ends, at `until` at the latest; None if there is none.

    A batch has at most `limit` writes. A stream that begins with the latest ends a batch without
    rows where it begins: else it would begin elsewhere when it is started again.
    """
    begin = start.position(until) if isinstance(start, StreamStart) else start.completed_at
    since = begin if isinstance(start, StreamStart) else None
    if begin < until:
        end = until if limit is None else _limited(snapshot, begin, until, limit)
        return Offset(end, since)
    return Offset(begin, since) if start == StreamStart(LATEST) else None


def batch_context(
    snapshot: Snapshot, start: StreamStart | Offset, end: Offset
) -> QueryContext | None:
    """The instants of a batch, the same whenever it is asked for; None for one without any."""
    begin = _begin(start, end)
    if begin >= end.completed_at:
        return None
    return _analyzer(snapshot, begin, end.completed_at).analyze()


def _begin(start: StreamStart | Offset, end: Offset) -> str:
    if isinstance(start, Offset):
        return start.completed_at
    if end.since is not None:
        return end.since
    if start.word == LATEST:
        raise InvalidError(
            "the checkpoint does not tell where the stream's first batch begins: give a completion "
            "time, or earliest",
            option="hoodie.datasource.streaming.startOffset",
            value=LATEST,
        )
    return start.position(BEGINNING)


def _limited(snapshot: Snapshot, begin: str, until: str, limit: int) -> str:
    """Where a batch of at most so many writes ends; services bring no rows and do not count."""
    active = {i.requested_at for i in _writes(snapshot.timeline)}
    known = snapshot.timeline.by_time
    found = [
        instant.completed_at or until
        for instant in _analyzer(snapshot, begin, until).analyze().instants
        if instant.requested_at in active or instant.requested_at not in known
    ]
    return found[limit - 1] if len(found) > limit else until


def _writes(timeline: Timeline) -> list[Instant]:
    """The completed writes that are not known to be services."""
    services = {i for action in REWRITES for i in timeline.completed_services(action)}
    return [i for i in timeline.completed_writes if i not in services]


def _analyzer(snapshot: Snapshot, begin: str, end: str) -> IncrementalQueryAnalyzer:
    first = EARLIEST if begin == BEGINNING else begin
    return IncrementalQueryAnalyzer(snapshot=snapshot, begin=first, end=end)


def _padded(time: str) -> str:
    """A time of old writers in milliseconds; the beginning stays as it is."""
    return full_time(time) if time.strip("0") else BEGINNING
