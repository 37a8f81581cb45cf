"""The objects of a batch: positions in an events table, filters, and selection from events.

The checkpoint of the source `cloud` has the text `<completion time>#<key>`: of the commits of the
events table, in completion order, all events up to this key of this commit were read. Without a
key, the whole commit was read. Hudi's own checkpoints (version 1) have the requested time instead;
the commits of the target have one of these as well.

Objects are read in the order of (completion time of the event's commit, key). A batch is a prefix
of the unread events, so that one position describes what was read. Objects with the same position,
which two buckets may have, are read together or not at all.
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
from lakewright.model.instant import Instant, InstantTime, bound_of_range, full_time

_TEXT = re.compile(r"\s*(?P<time>\d{17}|\d{14}|0+)(?:#(?P<key>.+)|\s*)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class ObjectPosition:
    """A position in the events table: the completion time of a commit, and a key in it.

    The key is encoded as in the table. Without a key, the whole commit was read.
    """

    completed_at: InstantTime
    key: str | None = None

    def __str__(self) -> str:
        return self.completed_at if self.key is None else f"{self.completed_at}#{self.key}"

    def is_before(self, completed_at: InstantTime, key: str) -> bool:
        """Whether an event is after this position, and so unread."""
        if completed_at != self.completed_at:
            return completed_at > self.completed_at
        return self.key is not None and key > self.key

    def checkpoint(self, for_hudi: str | None = None) -> Checkpoint:
        """Return the checkpoint for the commit of the target table, with the one for Hudi."""
        return Checkpoint(str(self), Version.V2, for_hudi=for_hudi)


def parse_position(checkpoint: Checkpoint) -> ObjectPosition | None:
    """Parse the text of a checkpoint, whichever time it has; None is the beginning."""
    match = _TEXT.fullmatch(checkpoint.text)
    if match is None:
        raise InvalidError(
            "not a checkpoint of cloud objects, which is `<completion time>` or "
            "`<completion time>#<object key>`: was another source read into the target before?",
            checkpoint=checkpoint.text,
        )
    if not match["time"].strip("0"):
        return None
    return ObjectPosition(full_time(match["time"]), match["key"])


def translated(position: ObjectPosition, instants: Sequence[Instant]) -> ObjectPosition | None:
    """Convert a position by requested time to one by completion time; None is the beginning.

    `instants` are all completed writes, including archived ones. A consumer in the order of
    requested times may not have read a commit that was requested later and completed earlier. The
    position is then before that commit, and some objects are read again.
    """
    completion_times = {full_time(i.requested_at): i.completed_at or "" for i in instants}
    completed_at = completion_times.get(position.completed_at)
    if completed_at is None:
        raise InvalidError(
            "a checkpoint by requested time names a commit that the events table does not have; "
            "give a completion time",
            requested_at=position.completed_at,
        )
    unread = [
        completion
        for requested_at, completion in completion_times.items()
        if requested_at > position.completed_at and completion <= completed_at
    ]
    if not unread:
        return ObjectPosition(completed_at, position.key)
    earlier = [completion for completion in completion_times.values() if completion < min(unread)]
    return ObjectPosition(max(earlier)) if earlier else None


def requested_position(position: ObjectPosition, instants: Iterable[Instant]) -> str:
    """Return a position for Hudi's sources, which read in the order of requested times.

    `instants` are the writes of the events table that are pending or completed at the position or
    later, and may include others. Everything before the result was read here. Where commits overlap
    it is before one that is unread, and Hudi reads some objects again.
    """
    writes = sorted(instants, key=lambda i: i.requested_at)
    unread = [
        i.requested_at
        for i in writes
        if i.completed_at is None or i.completed_at > position.completed_at
    ]
    reached = [
        i.requested_at for i in writes if i.completed_at == position.completed_at and position.key
    ]
    first_unread = min([*unread, *reached], default=None)
    if first_unread is not None and first_unread in reached:
        return f"{first_unread}#{position.key}"
    read = [i.requested_at for i in writes if first_unread is None or i.requested_at < first_unread]
    return read[-1] if read else bound_of_range((first_unread or position.completed_at)[:14])


# Selection of the objects of a batch, from events only.


@dataclass(frozen=True, slots=True)
class CloudObject:
    """An object of an event; `key` is as in the events table, `path` as in the store.

    `completed_at` is the completion time of the event's commit, `time` the time of the event.
    """

    completed_at: InstantTime
    bucket: str
    key: str
    path: str
    size: int
    time: str = ""

    @property
    def position(self) -> tuple[str, str]:
        """The position in the reading order."""
        return self.completed_at, self.key


@dataclass(frozen=True, slots=True)
class Selection:
    """The objects of a batch and the position after it; `waiting` are left for later batches.

    `position` is None if nothing was read so far and there are no events.
    """

    objects: tuple[CloudObject, ...] = ()
    position: ObjectPosition | None = None
    waiting: int = 0
    missing: int = 0

    @property
    def size(self) -> int:
        """The total size of the objects in bytes."""
        return sum(item.size for item in self.objects)

    def without(self, missing: Iterable[CloudObject]) -> Selection:
        """Return the selection without objects that no longer exist."""
        missing_objects = set(missing)
        remaining = tuple(item for item in self.objects if item not in missing_objects)
        return replace(self, objects=remaining, missing=len(self.objects) - len(remaining))


@dataclass(frozen=True, slots=True)
class ObjectFilter:
    """Which keys are selected; serialized for executors."""

    settings: SelectionSettings
    extensions: tuple[str, ...] = ()
    encoded: bool = True

    def path_of(self, key: str | None, size: int | None) -> str | None:
        """Return the name of an object in the store, its decoded key; None if it is not selected.

        `+` is an encoded blank; a literal `+` is encoded as `%2B`, and a literal `%` as `%25`.
        """
        if key is None or size is None or size <= 0:
            return None
        path = unquote_plus(key) if self.encoded else key
        return path if self._selects(path) else None

    def _selects(self, path: str) -> bool:
        settings = self.settings
        if not path.startswith(settings.prefix) or not path.endswith(self.extensions or ("",)):
            return False
        if settings.pattern and re.search(settings.pattern, path) is None:
            return False
        if settings.ignored_prefix and path.startswith(settings.ignored_prefix):
            return False
        return not (settings.ignored_part and settings.ignored_part in path)


def newest(events: Iterable[CloudObject]) -> list[CloudObject]:
    """Return the latest event of each object, in reading order."""
    latest: dict[tuple[str, str], CloudObject] = {}
    for event in events:
        object_id = (event.bucket, event.path)
        previous = latest.get(object_id)
        if previous is None or (previous.time, previous.completed_at) < (
            event.time,
            event.completed_at,
        ):
            latest[object_id] = event
    return sorted(latest.values(), key=lambda event: (*event.position, event.bucket))


def select(
    events: Iterable[CloudObject],
    *,
    after: ObjectPosition | None,
    until: str | None,
    max_files: int,
    max_bytes: int | None = None,
) -> Selection:
    """Select the objects of the next batch after a position.

    `events` are the filtered events of a range of the events table that ends at the completion time
    `until`. They may include events that were read already, and several events of one object. The
    first position is always selected, however large its objects are. If no events are left, the
    position advances to the end of the range, and never goes back.
    """
    unread = [e for e in events if after is None or after.is_before(e.completed_at, e.key)]
    ordered = newest(unread)
    chosen: list[CloudObject] = []
    size = 0
    for _, group in groupby(ordered, key=lambda event: event.position):
        same_position = list(group)
        size += sum(event.size for event in same_position)
        exceeds_files = len(chosen) + len(same_position) > max_files
        if chosen and (exceeds_files or (max_bytes is not None and size > max_bytes)):
            break
        chosen += same_position
    if chosen:
        position = ObjectPosition(*chosen[-1].position)
        return Selection(tuple(chosen), position, len(ordered) - len(chosen))
    return Selection(position=_end(after, until))


def complete_positions(page: Sequence[CloudObject], page_size: int) -> Sequence[CloudObject]:
    """Return the part of a page of ordered events whose last position is complete.

    A page of the requested length may end in the middle of a position. If the result is empty, a
    longer page must be requested.
    """
    if len(page) < page_size:
        return page
    last = page[-1].position
    return [event for event in page if event.position != last]


def _end(after: ObjectPosition | None, until: str | None) -> ObjectPosition | None:
    if until is None or (after is not None and until <= after.completed_at):
        return after
    return ObjectPosition(until)


# The columns of S3 and GCS events in an events table.


@dataclass(frozen=True, slots=True)
class EventShape:
    """The columns and SQL expressions for the events of a store in an events table.

    `columns` are the columns of the table; the other fields are SQL expressions on them. `only` is
    the condition for events of new objects.
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
    """Return the event shape of a table with these columns."""
    for shape in (S3, GCS):
        if set(shape.columns) <= set(columns):
            return shape
    raise InvalidError(
        "not an events table: it has neither the columns of S3 events nor those of GCS events",
        columns=sorted(columns),
        s3=S3.columns,
        gcs=GCS.columns,
    )
