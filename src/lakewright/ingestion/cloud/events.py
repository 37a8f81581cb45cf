"""The sources `s3-events` and `gcs-events`: from a queue of notifications to an events table.

This is the first stage of ingesting cloud objects. Messages are deleted after their events were
committed: after a crash, the queue delivers them again, and the same events are written again. An
events table with a record key then contains them once.

Object keys are stored as the store sent them, which is URL-encoded for S3. The second stage, which
reads the objects, decodes them.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Self

import pyarrow as pa

from lakewright.clock import Clock, SystemClock
from lakewright.errors import CorruptError, InvalidError
from lakewright.ingestion.checkpoints import Checkpoint
from lakewright.ingestion.cloud.options import (
    PUBSUB_KEYS,
    SQS_KEYS,
    PubSubSettings,
    QuarantineSettings,
    SqsSettings,
    UnreadablePolicy,
)
from lakewright.ingestion.cloud.quarantine import Quarantine, QuarantinedRecord
from lakewright.ingestion.cloud.queues import Message, PubSubQueue, Queue, SqsQueue
from lakewright.ingestion.source import Batch, Source
from lakewright.options import settings_from
from lakewright.storage.factory import storage_for, storage_options

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Row = dict[str, Any]

_TEXT = pa.string()
_PRINCIPAL = pa.struct([("principalId", _TEXT)])

S3_SCHEMA = pa.schema(
    [
        ("eventVersion", _TEXT),
        ("eventSource", _TEXT),
        ("awsRegion", _TEXT),
        ("eventTime", _TEXT),
        ("eventName", _TEXT),
        ("userIdentity", _PRINCIPAL),
        ("requestParameters", pa.struct([("sourceIPAddress", _TEXT)])),
        (
            "s3",
            pa.struct(
                [
                    ("s3SchemaVersion", _TEXT),
                    ("configurationId", _TEXT),
                    (
                        "bucket",
                        pa.struct([("name", _TEXT), ("ownerIdentity", _PRINCIPAL), ("arn", _TEXT)]),
                    ),
                    (
                        "object",
                        pa.struct(
                            [
                                ("key", _TEXT),
                                ("size", pa.int64()),
                                ("eTag", _TEXT),
                                ("versionId", _TEXT),
                                ("sequencer", _TEXT),
                            ]
                        ),
                    ),
                ]
            ),
        ),
    ]
)
"""The columns of S3 events, without the response elements of the request."""

# GCS sends numbers as strings.
GCS_SCHEMA = pa.schema(
    [
        (name, _TEXT)
        for name in (
            "bucket", "name", "size", "updated", "timeCreated", "generation", "metageneration",
            "id", "kind", "contentType", "storageClass", "timeStorageClassUpdated", "md5Hash",
            "crc32c", "etag", "selfLink", "mediaLink",
        )
    ]
)  # fmt: skip
"""The columns of GCS events."""

_S3_CREATED = ("ObjectCreated", "s3:ObjectCreated")
_GCS_CREATED = "OBJECT_FINALIZE"


@dataclass(frozen=True, slots=True)
class Notification:
    """The events in a message; `problem` says why the message, or a part of it, is no event.

    Without events and problem, the message is of another kind, such as a test or the deletion of an
    object. `newest_ms` is the time of the latest event.
    """

    rows: tuple[Row, ...] = ()
    problem: str | None = None
    newest_ms: int = 0


class _NoEventError(Exception):
    """A message, or a part of it, is not an event; the text is the reason."""


def read_s3(body: str, attributes: Mapping[str, str] | None = None) -> Notification:
    """Parse a message of S3, sent directly to the queue or through SNS."""
    try:
        content = _object(body)
        if "Records" not in content and isinstance(content.get("Message"), str):
            content = _object(content["Message"])
        if content.get("Event") == "s3:TestEvent":
            return Notification()
        records = content.get("Records")
        if not isinstance(records, list):
            raise _NoEventError("it has no list of records")
    except _NoEventError as error:
        return Notification(problem=str(error))
    rows, problem, newest = [], None, 0
    for record in records:
        try:
            row = _s3_row(record)
            if row is not None:
                newest = max(newest, _milliseconds(row["eventTime"]))
                rows.append(row)
        except _NoEventError as error:
            problem = str(error)
    return Notification(tuple(rows), problem, newest)


def read_gcs(body: str, attributes: Mapping[str, str] | None = None) -> Notification:
    """Parse a message of GCS; an overwritten object is a new one, too."""
    event_type = (attributes or {}).get("eventType")
    if event_type is None:
        return Notification(problem="it has no attribute eventType")
    if event_type != _GCS_CREATED:
        return Notification()
    try:
        content = _object(body)
        for name in ("bucket", "name", "size"):
            if not isinstance(content.get(name), str | int):
                raise _NoEventError(f"it has no {name}; the payload format must be JSON_API_V1")
        row = {name: _text(content.get(name)) for name in GCS_SCHEMA.names}
        if not (row["size"] or "").isdigit():
            raise _NoEventError("its size is no number")
        newest = _milliseconds(row["updated"] or row["timeCreated"])
    except _NoEventError as error:
        return Notification(problem=str(error))
    return Notification((row,), newest_ms=newest)


def _s3_row(record: object) -> Row | None:
    """Return the row of a created object; None for other events."""
    if not isinstance(record, dict) or not isinstance(record.get("eventName"), str):
        raise _NoEventError("a record has no eventName")
    if not record["eventName"].startswith(_S3_CREATED):
        return None
    row: Row = _struct_values(record, S3_SCHEMA)
    s3 = row["s3"] or {}
    bucket, item = s3.get("bucket") or {}, s3.get("object") or {}
    if not bucket.get("name") or not item.get("key"):
        raise _NoEventError("a record names no object")
    if item.get("size") is None:
        raise _NoEventError("a record has no size")
    return row


def _struct_values(value: Mapping[str, Any], fields: Any) -> Row:
    """Return the values of the given fields of a JSON object, converted to their types."""
    return {field.name: _typed_value(value.get(field.name), field.type) for field in fields}


def _typed_value(value: object, data_type: pa.DataType) -> Any:
    if value is None:
        return None
    if pa.types.is_struct(data_type):
        return _struct_values(value, data_type) if isinstance(value, dict) else None
    if pa.types.is_integer(data_type):
        try:
            return int(str(value))
        except ValueError as error:
            raise _NoEventError("a size is no whole number") from error
    return _text(value)


def _text(value: object) -> str | None:
    if value is None or isinstance(value, str):
        return value
    return json.dumps(value)


def _object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _NoEventError("it is not JSON") from error
    if not isinstance(value, dict):
        raise _NoEventError("it is no JSON object")
    return value


def _milliseconds(text: str | None) -> int:
    try:
        time = datetime.fromisoformat(text or "")
        if time.tzinfo is None:
            raise ValueError("no zone")
        return int(time.timestamp() * 1000)
    except (ValueError, OverflowError) as error:
        raise _NoEventError("an event has no time") from error


# Sources that read notifications from a queue.

_MAX_SHOWN_CHARS = 200


@dataclass(frozen=True, slots=True)
class QueuePull:
    """How many messages a batch receives, and for how long it requests more."""

    per_batch: int
    per_request: int
    max_s: int | None = None


class EventsSource(Source):
    """Notifications of a store, from a queue."""

    schema: ClassVar[pa.Schema]

    def __init__(
        self,
        queue: Queue,
        pull: QueuePull,
        read: Callable[[str, Mapping[str, str]], Notification],
        *,
        unreadable_policy: UnreadablePolicy = UnreadablePolicy.ERROR,
        quarantine: Quarantine | None = None,
        clock: Clock | None = None,
    ) -> None:
        if unreadable_policy is UnreadablePolicy.QUARANTINE and quarantine is None:
            raise InvalidError(
                "a quarantine needs a table", option="lakewright.source.quarantine.path"
            )
        self._queue = queue
        self._pull = pull
        self._read = read
        self._unreadable_policy = unreadable_policy
        self._quarantine = quarantine
        self._clock = clock or SystemClock()

    def next_batch(self, spark: SparkSession, after: Checkpoint | None) -> Batch:
        """Return the events in the queue; without events, the checkpoint stays the same.

        The checkpoint is the time of the latest event in milliseconds. It is informational only:
        the queue itself tracks which messages were received.
        """
        last_ms = _checkpoint_ms(after)
        messages = take(self._queue, self._pull, self._clock)
        notifications = [
            (message, self._read(message.body, message.attributes)) for message in messages
        ]
        self._handle_unreadable(
            [
                (message, notification.problem)
                for message, notification in notifications
                if notification.problem
            ]
        )
        # Messages without events, and those in quarantine, need not wait for a commit.
        self._queue.delete(
            [message.receipt for message, notification in notifications if not notification.rows]
        )
        rows: list[Row] = [row for _, notification in notifications for row in notification.rows]
        if not rows:
            return Batch(None, after)
        receipts = [message.receipt for message, notification in notifications if notification.rows]
        newest = max(notification.newest_ms for _, notification in notifications)
        facts = {
            "messages": len(messages),
            "events": len(rows),
            "lag_ms": max(0, self._clock.now_ms() - newest),
        }
        frame = spark.createDataFrame(pa.Table.from_pylist(rows, self.schema))
        checkpoint = Checkpoint(str(max(last_ms, newest)))
        return Batch(frame, checkpoint, facts, partial(self._queue.delete, receipts))

    def _handle_unreadable(self, unreadable: Sequence[tuple[Message, str]]) -> None:
        """Raise an error for messages that are no events, quarantine them, or warn."""
        if not unreadable:
            return
        message, problem = unreadable[0]
        if self._unreadable_policy is UnreadablePolicy.ERROR:
            raise CorruptError(
                "a message in the queue is no event; it may be passed over",
                reason=problem,
                id=message.id,
                body=message.body[:_MAX_SHOWN_CHARS],
                option="lakewright.source.bad.messages",
            )
        if self._quarantine is not None and self._unreadable_policy is UnreadablePolicy.QUARANTINE:
            self._quarantine.put(
                [
                    QuarantinedRecord(item.id, reason, item.body, len(item.body))
                    for item, reason in unreadable
                ]
            )
            return
        warnings.warn(
            f"{len(unreadable)} messages that are no events were deleted: {problem}: "
            f"{message.body[:_MAX_SHOWN_CHARS]}",
            RuntimeWarning,
            stacklevel=3,
        )


def take(queue: Queue, pull: QueuePull, clock: Clock) -> list[Message]:
    """Receive messages until there are enough or no more; only the first request waits.

    A message that is received twice counts once, with its latest receipt.
    """
    messages: dict[str, Message] = {}
    started = clock.monotonic_ms()
    while len(messages) < pull.per_batch:
        if pull.max_s is not None and clock.monotonic_ms() - started >= pull.max_s * 1000:
            break
        max_messages = min(pull.per_request, pull.per_batch - len(messages))
        received = queue.receive(max_messages, wait=not messages)
        count = len(messages)
        messages |= {message.id: message for message in received}
        if len(messages) == count:
            break
    return list(messages.values())


def quarantine_of(
    settings: QuarantineSettings, options: Mapping[str, str], source: str, clock: Clock | None
) -> Quarantine | None:
    """Return the quarantine that the settings name, if any."""
    if settings.quarantine is None:
        return None
    storage = storage_for(settings.quarantine, storage_options(options))
    return Quarantine(storage, clock or SystemClock(), source)


def _checkpoint_ms(after: Checkpoint | None) -> int:
    """Return the time in a checkpoint of an events source."""
    if after is None:
        return 0
    if not after.text.isdigit():
        raise InvalidError(
            "not a checkpoint of an events source, which is a time in milliseconds: was another "
            "source read into the target before?",
            checkpoint=after.text,
        )
    return int(after.text)


class GcsEventsSource(EventsSource):
    """Notifications of objects created in GCS, from a Pub/Sub subscription."""

    name: ClassVar[str] = "gcs-events"
    keys: ClassVar[frozenset[str]] = PUBSUB_KEYS
    schema = GCS_SCHEMA

    @classmethod
    def from_options(
        cls, options: Mapping[str, str], *, queue: Queue | None = None, clock: Clock | None = None
    ) -> Self:
        """Create the source from options; `queue` replaces Pub/Sub."""
        settings = settings_from(PubSubSettings, options)
        quarantine_settings = settings_from(QuarantineSettings, options)
        return cls(
            queue or PubSubQueue(settings),
            QueuePull(settings.per_batch, settings.per_request, settings.max_s),
            read_gcs,
            unreadable_policy=quarantine_settings.bad_messages,
            quarantine=quarantine_of(quarantine_settings, options, cls.name, clock),
            clock=clock,
        )


class S3EventsSource(EventsSource):
    """Notifications of objects created in S3, from an SQS queue, directly or through SNS."""

    name: ClassVar[str] = "s3-events"
    keys: ClassVar[frozenset[str]] = SQS_KEYS
    schema = S3_SCHEMA

    @classmethod
    def from_options(
        cls, options: Mapping[str, str], *, queue: Queue | None = None, clock: Clock | None = None
    ) -> Self:
        """Create the source from options; `queue` replaces SQS."""
        settings = settings_from(SqsSettings, options)
        quarantine_settings = settings_from(QuarantineSettings, options)
        return cls(
            queue or SqsQueue(settings, options),
            QueuePull(settings.per_batch, settings.per_request),
            read_s3,
            unreadable_policy=quarantine_settings.bad_messages,
            quarantine=quarantine_of(quarantine_settings, options, cls.name, clock),
            clock=clock,
        )
