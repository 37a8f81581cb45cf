"""How far a source was read, as the target's commits keep it: under Hudi's own keys.

A checkpoint is a text whose meaning is the source's affair. The second version of Hudi's keys holds
completion times, the first one everything else: requested times, offsets, modification times.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from enum import IntEnum

from lakewright.clock import zone_of
from lakewright.errors import ConflictError, InvalidError, found_in
from lakewright.model.commit_metadata import CommitMetadata
from lakewright.model.instant import Instant, InstantTime, is_time, parse_time
from lakewright.scan.planner import EARLIEST
from lakewright.table.snapshot import Snapshot, commits_newest_first

RESUME_REQUESTED = "resumeFromInstantRequestTime"
RESUME_COMPLETED = "resumeFromInstantCompletionTime"
# What Hudi writes for the time before all others.
INITIAL = "00000000000000"


class Version(IntEnum):
    """Which of Hudi's keys a checkpoint is kept under."""

    V1 = 1
    V2 = 2


_KEYS = {
    Version.V1: ("deltastreamer.checkpoint.key", "deltastreamer.checkpoint.reset_key"),
    Version.V2: ("streamer.checkpoint.key.v2", "streamer.checkpoint.reset.key.v2"),
}
_RESUMED = {RESUME_REQUESTED: Version.V1, RESUME_COMPLETED: Version.V2}


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """How far a source was read; `reset` is the override that a user once gave for it."""

    text: str
    version: Version = Version.V1
    reset: str | None = None

    def as_extra(self) -> dict[str, str]:
        """What a commit keeps of it."""
        key, reset = _KEYS[self.version]
        return {key: self.text} | ({reset: self.reset} if self.reset is not None else {})


def lag_ms(newest: str, read: str, zone: str) -> int | None:
    """From how far a table was read to its newest completion; None if a time is no date."""
    known = zone_of(zone)
    try:
        behind = parse_time(newest, known) - parse_time(read, known)
    except InvalidError:
        return None
    return max(0, round(behind.total_seconds() * 1000))


def checkpoint_in(extra: Mapping[str, str]) -> Checkpoint | None:
    """The checkpoint that a commit keeps, if it keeps one; an empty text is none."""
    for version in (Version.V2, Version.V1):
        key, reset = _KEYS[version]
        if extra.get(key):
            return Checkpoint(extra[key], version, extra.get(reset))
    return None


def parse_override(text: str) -> Checkpoint:
    """An override in the words that Hudi has for tables: whose time it is, a colon, the time."""
    parts = [part.strip() for part in text.split(":")]
    version = _RESUMED.get(parts[0])
    if len(parts) != 2 or version is None or not _is_position(parts[1]):
        raise InvalidError(
            f"Illegal checkpoint key override `{text}`. Valid format is either "
            f"`{RESUME_REQUESTED}:<checkpoint value>` or `{RESUME_COMPLETED}:<checkpoint value>`"
        )
    return Checkpoint(parts[1], version, reset=text)


def resumed(
    last: Checkpoint | None,
    override: str | None,
    parse: Callable[[str], Checkpoint] = parse_override,
) -> Checkpoint | None:
    """Where to go on: at an override, unless it is the one that `last` came from.

    A job that is started again with the same arguments goes on where it was. Without an override
    the old one is forgotten, and may be given again later.
    """
    if override is None:
        return None if last is None else replace(last, reset=None)
    if last is not None and last.reset == override:
        return last
    return replace(parse(override), reset=override)


@dataclass(frozen=True, slots=True)
class TimelinePosition:
    """A checkpoint as a place on a table's timeline.

    What completed after `begin` is unread, but for the instants `seen`; those make sense only
    up to `through`, so the next checkpoint must not lie before it.
    """

    begin: str
    seen: frozenset[str] = frozenset()
    through: str = ""


def position_of(checkpoint: Checkpoint, snapshot: Snapshot) -> TimelinePosition:
    """Where a checkpoint lies on the timeline of the table that it was made for."""
    if not _is_position(checkpoint.text):
        raise InvalidError(
            "the checkpoint is no instant time: it comes from another kind of source",
            checkpoint=checkpoint.text,
            version=checkpoint.version.name,
        )
    if not checkpoint.text.strip("0"):
        return TimelinePosition(EARLIEST)
    if checkpoint.version is Version.V2:
        return TimelinePosition(checkpoint.text)
    return translated(checkpoint.text, (*snapshot.archived, *snapshot.timeline.completed_writes))


def translated(requested_at: InstantTime, instants: Iterable[Instant]) -> TimelinePosition:
    """Where a consumer stands that has read what was requested up to a time.

    Writes that were requested later but completed earlier are behind the completion time of that
    one, and unread. Those requested earlier that completed later may be read or not: they are read
    once more rather than never.
    """
    done = [(i.completed_at, i.requested_at) for i in instants if i.completed_at is not None]
    through = next((completed for completed, at in done if at == requested_at), None)
    if through is None:
        raise InvalidError(
            f"Unable to find completion time for {requested_at}: neither the active nor the "
            f"archived timeline has it. Say where to go on with `{RESUME_COMPLETED}:<time>`"
        )
    missed = [at for completed, at in done if at > requested_at and completed <= through]
    if not missed:
        return TimelinePosition(through)
    begin = min(missed)
    seen = [at for completed, at in done if at <= requested_at and begin < completed <= through]
    return TimelinePosition(begin, frozenset(seen), through)


def _is_position(text: str) -> bool:
    return is_time(text) or (text.isdecimal() and not text.strip("0"))


# ------------------------------------------------------------------------------------------------
# How far a source was read into a table, as the table's own commits tell it.
#
# A position belongs to a source. Who alone fills a table needs no name for it, as in Hudi; sources
# that share a table each have one, which their commits carry beside the checkpoint.


SOURCE = "lakewright.ingest.source"
BATCH = "lakewright.ingest.batch"


@dataclass(frozen=True, slots=True)
class CommittedCheckpoint:
    """A commit that brought rows of a source, and how far the source was read with it."""

    instant: Instant
    metadata: CommitMetadata
    checkpoint: Checkpoint | None
    batch: str | None = None


def note(checkpoint: Checkpoint | None, *, batch: str, source: str | None = None) -> dict[str, str]:
    """What the commit of a batch carries; `batch` is an id that no other batch has."""
    return {
        **(checkpoint.as_extra() if checkpoint is not None else {}),
        BATCH: batch,
        **({SOURCE: source} if source is not None else {}),
    }


@dataclass
class CommittedCheckpoints:
    """The positions of a source, `None` for the one without a name; each commit is read once."""

    source: str | None = None
    _seen: Snapshot | None = None
    _newest: CommittedCheckpoint | None = None

    def newest(self, snapshot: Snapshot) -> CommittedCheckpoint | None:
        """The position that the table, as it is in a snapshot, was brought to last."""
        found = self._find(snapshot, self._seen)
        if self._newest is not None and self._is_doubtful(found, snapshot):
            found = self._newest = self._find(snapshot, None)
        self._newest = found or self._newest
        # Without the commits that it has read.
        self._seen = Snapshot(snapshot.storage, snapshot.config, snapshot.timeline)
        return self._newest

    def _is_doubtful(self, found: CommittedCheckpoint | None, snapshot: Snapshot) -> bool:
        """Whether what is new since the last look does not tell which position is the newest."""
        assert self._newest is not None
        if found is None:
            # The last one was archived, or taken back: then an older one counts again.
            return not _is_there(self._newest, snapshot)
        # Somebody got in between the last look, which saw a later one and not this.
        last = self._newest.instant.completed_at or ""
        return (found.instant.completed_at or "") < last

    def _find(self, snapshot: Snapshot, before: Snapshot | None) -> CommittedCheckpoint | None:
        for instant, commit in commits_newest_first(snapshot, before):
            with found_in(instant.file_name):
                position = self._position(instant, commit)
            if position is not None:
                return position
        return None

    def _position(self, instant: Instant, commit: CommitMetadata) -> CommittedCheckpoint | None:
        extra: Mapping[str, str] = commit.extra
        if extra.get(SOURCE) != self.source:
            return None
        checkpoint = checkpoint_in(extra)
        if checkpoint is None and BATCH not in extra:
            return None
        return CommittedCheckpoint(instant, commit, checkpoint, extra.get(BATCH))


def _is_there(position: CommittedCheckpoint, snapshot: Snapshot) -> bool:
    found = snapshot.timeline.by_time.get(position.instant.requested_at)
    return found is not None and found.is_completed


@dataclass
class CheckpointValidator:
    """Refuses a batch unless the table is still where the batch was read from."""

    positions: CommittedCheckpoints
    base: CommittedCheckpoint | None

    def __post_init__(self) -> None:
        self.positions = replace(self.positions)

    def validate(self, current: Snapshot) -> None:
        """Raise ConflictError, with the unexpected commit, if the checkpoint has changed."""
        found = self.positions.newest(current)
        if _time(found) != _time(self.base):
            raise ConflictError(
                "the source was read on by somebody else, or a commit was taken back: go on from "
                "where the table is now",
                expected=_time(self.base),
                instant=_time(found),
            )


def _time(position: CommittedCheckpoint | None) -> str | None:
    return position.instant.requested_at if position is not None else None
