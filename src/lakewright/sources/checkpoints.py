"""How far a source was read, as the target's commits keep it: under Hudi's own keys.

A checkpoint is a text whose meaning is the source's affair. The second version of Hudi's keys holds
completion times, the first one everything else: requested times, offsets, modification times.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from enum import IntEnum

from lakewright.clock import zone_of
from lakewright.core.instant import Instant, is_time, parse_time
from lakewright.errors import InvalidError
from lakewright.read.incremental import EARLIEST
from lakewright.table.snapshot import Snapshot

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
class Position:
    """A checkpoint as a place on a table's timeline.

    What completed after `begin` is unread, but for the instants `seen`; those make sense only
    up to `through`, so the next checkpoint must not lie before it.
    """

    begin: str
    seen: frozenset[str] = frozenset()
    through: str = ""


def position_of(checkpoint: Checkpoint, snapshot: Snapshot) -> Position:
    """Where a checkpoint lies on the timeline of the table that it was made for."""
    if not _is_position(checkpoint.text):
        raise InvalidError(
            "the checkpoint is no instant time: it comes from another kind of source",
            checkpoint=checkpoint.text,
            version=checkpoint.version.name,
        )
    if not checkpoint.text.strip("0"):
        return Position(EARLIEST)
    if checkpoint.version is Version.V2:
        return Position(checkpoint.text)
    return translated(checkpoint.text, (*snapshot.archived, *snapshot.timeline.completed_writes))


def translated(requested_at: str, instants: Iterable[Instant]) -> Position:
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
        return Position(through)
    begin = min(missed)
    seen = [at for completed, at in done if at <= requested_at and begin < completed <= through]
    return Position(begin, frozenset(seen), through)


def _is_position(text: str) -> bool:
    return is_time(text) or (text.isdecimal() and not text.strip("0"))
