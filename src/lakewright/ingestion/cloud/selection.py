"""How far the objects of an events table were read: the checkpoint of stage two.

Its text is `<completion time>#<key>`: of the commits of the events table, in the order in which
they completed, everything up to this key of this one was read. Without a key the whole commit was.
Real Hudi's own checkpoints (V1) have the requested time in its place.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from urllib.parse import unquote_plus

from lakewright.errors import InvalidError
from lakewright.ingestion.checkpoints import Checkpoint, Version
from lakewright.ingestion.cloud.options import SelectionSettings
from lakewright.model.instant import Instant, InstantTime, full_time

_TEXT = re.compile(r"\s*(?P<time>\d{17}|\d{14}|0+)(?:#(?P<key>.+)|\s*)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class ObjectPosition:
    """A place in the events table: a commit, by its completion time, and a key in it.

    The key is that of the table, encoded as it is there. Without one the commit was read whole.
    """

    completed_at: InstantTime
    key: str | None = None

    def __str__(self) -> str:
        return self.completed_at if self.key is None else f"{self.completed_at}#{self.key}"

    def is_before(self, completed_at: InstantTime, key: str) -> bool:
        """Whether an event was not read yet."""
        if completed_at != self.completed_at:
            return completed_at > self.completed_at
        return self.key is not None and key > self.key

    def checkpoint(self) -> Checkpoint:
        """What the target's commit keeps."""
        return Checkpoint(str(self), Version.V2)


def parse_position(checkpoint: Checkpoint) -> ObjectPosition | None:
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
    return ObjectPosition(full_time(found["time"]), found["key"])


def translated(position: ObjectPosition, instants: Sequence[Instant]) -> ObjectPosition | None:
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
        return ObjectPosition(completed_at, position.key)
    earlier = [time for time in requested.values() if time < min(unread)]
    return ObjectPosition(max(earlier)) if earlier else None


# ------------------------------------------------------------------------------------------------
# Which objects the next batch reads: decided from the events alone.
#
# Objects are read in the order of (completion time of their event's commit, key). A batch is a
# beginning of what is left, so a single place says what was read: objects at the same place, which
# two buckets may have, are read together or not at all.


@dataclass(frozen=True, slots=True)
class CloudObject:
    """An object that an event tells of; `key` is as in the events table, `path` as in the store.

    `completed_at` is when the event's commit completed, `time` when the event was.
    """

    completed_at: InstantTime
    bucket: str
    key: str
    path: str
    size: int
    time: str = ""

    @property
    def place(self) -> tuple[str, str]:
        """Where it stands in the order of reading."""
        return self.completed_at, self.key


@dataclass(frozen=True, slots=True)
class Selection:
    """The objects of a batch, and how far it goes; `waiting` were seen and left for the next.

    `position` is None if nothing was read yet, and there is nothing.
    """

    objects: tuple[CloudObject, ...] = ()
    position: ObjectPosition | None = None
    waiting: int = 0
    missing: int = 0

    @property
    def size(self) -> int:
        """The bytes of all objects."""
        return sum(item.size for item in self.objects)

    def without(self, missing: Iterable[CloudObject]) -> Selection:
        """The same batch, less the objects that are not there any more."""
        gone = set(missing)
        left = tuple(item for item in self.objects if item not in gone)
        return replace(self, objects=left, missing=len(self.objects) - len(left))


@dataclass(frozen=True, slots=True)
class ObjectFilter:
    """Which keys are wanted; plain data that travels to workers."""

    settings: SelectionSettings
    extensions: tuple[str, ...] = ()
    encoded: bool = True

    def path_of(self, key: str | None, size: int | None) -> str | None:
        """The object's name in the store, if it is wanted: its key, decoded once.

        `+` stands for a blank; a real one came as `%2B`, and a real `%` as `%25`.
        """
        if key is None or size is None or size <= 0:
            return None
        path = unquote_plus(key) if self.encoded else key
        return path if self._wants(path) else None

    def _wants(self, path: str) -> bool:
        told = self.settings
        if not path.startswith(told.prefix) or not path.endswith(self.extensions or ("",)):
            return False
        if told.pattern and re.search(told.pattern, path) is None:
            return False
        if told.ignored_prefix and path.startswith(told.ignored_prefix):
            return False
        return not (told.ignored_part and told.ignored_part in path)


def newest(events: Iterable[CloudObject]) -> list[CloudObject]:
    """Of the events of each object the latest one, in the order of reading."""
    latest: dict[tuple[str, str], CloudObject] = {}
    for event in events:
        name = (event.bucket, event.path)
        known = latest.get(name)
        if known is None or (known.time, known.completed_at) < (event.time, event.completed_at):
            latest[name] = event
    return sorted(latest.values(), key=lambda event: (*event.place, event.bucket))


def select(
    events: Iterable[CloudObject],
    *,
    after: ObjectPosition | None,
    until: str | None,
    most_files: int,
    most_bytes: int | None = None,
) -> Selection:
    """Choose the objects of the next batch after a place.

    `events` are those of a range of the events table that ends at the completion time `until`,
    filtered; there may be ones that were read already, and several of one object. The first place
    is always taken, however large its objects are. Where none is left the position goes to the end
    of the range, unless it is there already, and never back.
    """
    left = [e for e in events if after is None or after.is_before(e.completed_at, e.key)]
    ordered = newest(left)
    chosen: list[CloudObject] = []
    size = 0
    for _, group in groupby(ordered, key=lambda event: event.place):
        together = list(group)
        size += sum(event.size for event in together)
        full = len(chosen) + len(together) > most_files
        if chosen and (full or (most_bytes is not None and size > most_bytes)):
            break
        chosen += together
    if chosen:
        position = ObjectPosition(*chosen[-1].place)
        return Selection(tuple(chosen), position, len(ordered) - len(chosen))
    return Selection(position=_end(after, until))


def complete_places(page: Sequence[CloudObject], asked: int) -> Sequence[CloudObject]:
    """The part of a page of ordered events whose last place is surely there as a whole.

    A page that is as long as was asked for may have been cut within a place; empty, it must be
    asked for again, longer.
    """
    if len(page) < asked:
        return page
    last = page[-1].place
    return [event for event in page if event.place != last]


def _end(after: ObjectPosition | None, until: str | None) -> ObjectPosition | None:
    if until is None or (after is not None and until <= after.completed_at):
        return after
    return ObjectPosition(until)


# ------------------------------------------------------------------------------------------------
# How the events of a store look in an events table.


@dataclass(frozen=True, slots=True)
class EventShape:
    """Where the columns of an events table tell which object is meant.

    `columns` are whole columns of the table; the others are SQL on them. Only rows for which `only`
    holds tell of a new object.
    """

    name: str
    scheme: str
    columns: tuple[str, ...]
    bucket: str
    key: str
    size: str
    time: str
    only: str
    encoded: bool


S3 = EventShape(
    name="s3",
    scheme="s3",
    columns=("eventName", "eventTime", "s3"),
    bucket="s3.bucket.name",
    key="s3.object.key",
    size="CAST(s3.object.size AS BIGINT)",
    time="CAST(eventTime AS STRING)",
    only="eventName LIKE 'ObjectCreated%' OR eventName LIKE 's3:ObjectCreated%'",
    encoded=True,
)
GCS = EventShape(
    name="gcs",
    scheme="gs",
    columns=("bucket", "name", "size", "updated", "timeCreated"),
    bucket="bucket",
    key="name",
    size="CAST(size AS BIGINT)",
    time="CAST(coalesce(updated, timeCreated) AS STRING)",
    only="true",
    encoded=False,
)


def shape_of(columns: Collection[str]) -> EventShape:
    """Whose events a table with these columns holds."""
    for shape in (S3, GCS):
        if set(shape.columns) <= set(columns):
            return shape
    raise InvalidError(
        "not an events table: it has neither the columns of S3 events nor those of GCS events",
        columns=sorted(columns),
        s3=S3.columns,
        gcs=GCS.columns,
    )
