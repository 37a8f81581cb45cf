"""How far the objects of an events table were read: the checkpoint of stage two.

Its text is `<completion time>#<key>`: of the commits of the events table, in the order in which
they completed, everything up to this key of this one was read. Without a key the whole commit was.
Real Hudi's own checkpoints (V1) have the requested time in its place.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from lakewright.core.instant import Instant, full_time
from lakewright.errors import InvalidError
from lakewright.sources.checkpoints import Checkpoint, Version

_TEXT = re.compile(r"\s*(?P<time>\d{17}|\d{14}|0+)(?:#(?P<key>.+)|\s*)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Position:
    """A place in the events table: a commit, by its completion time, and a key in it.

    The key is that of the table, encoded as it is there. Without one the commit was read whole.
    """

    completed_at: str
    key: str | None = None

    def __str__(self) -> str:
        return self.completed_at if self.key is None else f"{self.completed_at}#{self.key}"

    def is_before(self, completed_at: str, key: str) -> bool:
        """Whether an event was not read yet."""
        if completed_at != self.completed_at:
            return completed_at > self.completed_at
        return self.key is not None and key > self.key

    def checkpoint(self) -> Checkpoint:
        """What the target's commit keeps."""
        return Checkpoint(str(self), Version.V2)


def parse_position(checkpoint: Checkpoint) -> Position | None:
    """Read a checkpoint's text, whatever its time means; None is the beginning."""
    found = _TEXT.fullmatch(checkpoint.text)
    if found is None:
        raise InvalidError(
            "not a checkpoint of cloud objects, which is `<completion time>` or "
            "`<completion time>#<object key>`: was another source read into the target before?",
            checkpoint=checkpoint.text,
        )
    if not found["time"].strip("0"):
        return None
    return Position(full_time(found["time"]), found["key"])


def translated(position: Position, instants: Sequence[Instant]) -> Position | None:
    """The place by completion time that a place by requested time means; None is the beginning.

    `instants` are all writes that completed, archived ones too. Who read in the order of requests
    may not have read a commit that was requested later and completed earlier: the place is then
    before that commit, and some objects are read again.
    """
    requested = {full_time(i.requested_at): i.completed_at or "" for i in instants}
    completed_at = requested.get(position.completed_at)
    if completed_at is None:
        raise InvalidError(
            "a checkpoint by requested time names a commit that the events table does not have; "
            "give a completion time",
            requested_at=position.completed_at,
        )
    unread = [
        time
        for at, time in requested.items()
        if at > position.completed_at and time <= completed_at
    ]
    if not unread:
        return Position(completed_at, position.key)
    earlier = [time for time in requested.values() if time < min(unread)]
    return Position(max(earlier)) if earlier else None
