"""What stores write into their notifications: message bodies to rows of an events table.

Keys stay as the store wrote them, which is URL-encoded for S3: who reads objects decodes them, and
once.
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
"""The columns of S3 events: the store's own, without what it answered to who put the object."""

# GCS itself gives numbers as texts.
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

_CREATED = ("ObjectCreated", "s3:ObjectCreated")
_FINALIZED = "OBJECT_FINALIZE"


@dataclass(frozen=True, slots=True)
class Notification:
    """The events in a message; `problem` says why it is none, or not only events.

    With neither it tells of something else: a test, or an object that is gone. `newest_ms` is the
    time of the latest event.
    """

    rows: tuple[Row, ...] = ()
    problem: str | None = None
    newest_ms: int = 0


class _NoEventError(Exception):
    """A part of a message is no event, for the reason given."""


def read_s3(body: str, attributes: Mapping[str, str] | None = None) -> Notification:
    """Read a message of S3, sent straight to the queue or by way of SNS."""
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
    """Read a message of GCS; overwritten objects are new ones too."""
    kind = (attributes or {}).get("eventType")
    if kind is None:
        return Notification(problem="it has no attribute eventType")
    if kind != _FINALIZED:
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
    """The row of a created object; None for other events."""
    if not isinstance(record, dict) or not isinstance(record.get("eventName"), str):
        raise _NoEventError("a record has no eventName")
    if not record["eventName"].startswith(_CREATED):
        return None
    row: Row = _fitted(record, S3_SCHEMA)
    found = row["s3"] or {}
    bucket, item = found.get("bucket") or {}, found.get("object") or {}
    if not bucket.get("name") or not item.get("key"):
        raise _NoEventError("a record names no object")
    if item.get("size") is None:
        raise _NoEventError("a record has no size")
    return row


def _fitted(value: Mapping[str, Any], fields: Any) -> Row:
    """The named parts of a JSON object, as texts, whole numbers and structs."""
    return {field.name: _fit(value.get(field.name), field.type) for field in fields}


def _fit(value: object, kind: pa.DataType) -> Any:
    if value is None:
        return None
    if pa.types.is_struct(kind):
        return _fitted(value, kind) if isinstance(value, dict) else None
    if pa.types.is_integer(kind):
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
        moment = datetime.fromisoformat(text or "")
        if moment.tzinfo is None:
            raise ValueError("no zone")
        return int(moment.timestamp() * 1000)
    except (ValueError, OverflowError) as error:
        raise _NoEventError("an event has no time") from error


# ------------------------------------------------------------------------------------------------
# Stage one of cloud events: from a queue of notifications to the rows of an events table.
#
# Messages are deleted when their events are committed, not before: a crash has them come again,
# and
# the same events are written once more. An events table with a key holds them once.


_SHOWN = 200


@dataclass(frozen=True, slots=True)
class QueuePull:
    """How many messages a batch takes, and for how long it goes on asking."""

    per_batch: int
    per_request: int
    most_s: int | None = None


class EventsSource(Source):
    """Notifications of a store, from a queue."""

    schema: ClassVar[pa.Schema]

    def __init__(
        self,
        queue: Queue,
        pull: QueuePull,
        read: Callable[[str, Mapping[str, str]], Notification],
        *,
        bad: UnreadablePolicy = UnreadablePolicy.ERROR,
        quarantine: Quarantine | None = None,
        clock: Clock | None = None,
    ) -> None:
        if bad is UnreadablePolicy.QUARANTINE and quarantine is None:
            raise InvalidError(
                "a quarantine needs a table", option="lakewright.source.quarantine.path"
            )
        self._queue = queue
        self._pull = pull
        self._read = read
        self._bad = bad
        self._quarantine = quarantine
        self._clock = clock or SystemClock()

    def next_batch(self, spark: SparkSession, after: Checkpoint | None) -> Batch:
        """The events that are in the queue now; without any the checkpoint stays as it is.

        The checkpoint is the time of the latest event, in milliseconds: it only tells people how
        far things are, the queue itself knows what was taken.
        """
        before = _milliseconds_of(after)
        messages = take(self._queue, self._pull, self._clock)
        told = [(message, self._read(message.body, message.attributes)) for message in messages]
        self._put_aside([(message, note.problem) for message, note in told if note.problem])
        # What tells of nothing, or is put aside, is done with.
        self._queue.delete([message.receipt for message, note in told if not note.rows])
        rows: list[Row] = [row for _, note in told for row in note.rows]
        if not rows:
            return Batch(None, after)
        receipts = [message.receipt for message, note in told if note.rows]
        newest = max(note.newest_ms for _, note in told)
        facts = {
            "messages": len(messages),
            "events": len(rows),
            "lag_ms": max(0, self._clock.now_ms() - newest),
        }
        frame = spark.createDataFrame(pa.Table.from_pylist(rows, self.schema))
        checkpoint = Checkpoint(str(max(before, newest)))
        return Batch(frame, checkpoint, facts, partial(self._queue.delete, receipts))

    def _put_aside(self, bad: Sequence[tuple[Message, str]]) -> None:
        """Do what is to be done with messages that are no events."""
        if not bad:
            return
        message, problem = bad[0]
        if self._bad is UnreadablePolicy.ERROR:
            raise CorruptError(
                "a message in the queue is no event; it may be passed over",
                reason=problem,
                id=message.id,
                body=message.body[:_SHOWN],
                option="lakewright.source.bad.messages",
            )
        if self._quarantine is not None and self._bad is UnreadablePolicy.QUARANTINE:
            self._quarantine.put(
                [QuarantinedRecord(m.id, why, m.body, len(m.body)) for m, why in bad]
            )
            return
        warnings.warn(
            f"{len(bad)} messages that are no events were deleted: {problem}: "
            f"{message.body[:_SHOWN]}",
            RuntimeWarning,
            stacklevel=3,
        )


def take(queue: Queue, pull: QueuePull, clock: Clock) -> list[Message]:
    """Take messages until there are enough, or no more; only the first request waits for some.

    One that comes twice counts once, by its latest receipt.
    """
    taken: dict[str, Message] = {}
    began = clock.monotonic_ms()
    while len(taken) < pull.per_batch:
        if pull.most_s is not None and clock.monotonic_ms() - began >= pull.most_s * 1000:
            break
        most = min(pull.per_request, pull.per_batch - len(taken))
        found = queue.receive(most, wait=not taken)
        known = len(taken)
        taken |= {message.id: message for message in found}
        if len(taken) == known:
            break
    return list(taken.values())


def quarantine_of(
    settings: QuarantineSettings, options: Mapping[str, str], source: str, clock: Clock | None
) -> Quarantine | None:
    """The quarantine table that options name."""
    if settings.quarantine is None:
        return None
    storage = storage_for(settings.quarantine, storage_options(options))
    return Quarantine(storage, clock or SystemClock(), source)


def _milliseconds_of(after: Checkpoint | None) -> int:
    """The time that a checkpoint of an events source is."""
    if after is None:
        return 0
    if not after.text.isdigit():
        raise InvalidError(
            "not a checkpoint of an events source, which is a time in milliseconds: was another "
            "source read into the target before?",
            checkpoint=after.text,
        )
    return int(after.text)


# ------------------------------------------------------------------------------------------------
# Notifications of GCS, from a subscription of Pub/Sub.


class GcsEventsSource(EventsSource):
    """Objects that were put into GCS, as it tells a topic of Pub/Sub."""

    name: ClassVar[str] = "gcs-events"
    keys: ClassVar[frozenset[str]] = PUBSUB_KEYS
    schema = GCS_SCHEMA

    @classmethod
    def from_options(
        cls, options: Mapping[str, str], *, queue: Queue | None = None, clock: Clock | None = None
    ) -> Self:
        """The source that options describe; another `queue` may take the place of Pub/Sub."""
        settings = settings_from(PubSubSettings, options)
        holding = settings_from(QuarantineSettings, options)
        return cls(
            queue or PubSubQueue(settings),
            QueuePull(settings.per_batch, settings.per_request, settings.most_s),
            read_gcs,
            bad=holding.bad_messages,
            quarantine=quarantine_of(holding, options, cls.name, clock),
            clock=clock,
        )


# ------------------------------------------------------------------------------------------------
# Notifications of S3, from a queue of SQS.


class S3EventsSource(EventsSource):
    """Objects that were put into S3, as it tells a queue, directly or by way of SNS."""

    name: ClassVar[str] = "s3-events"
    keys: ClassVar[frozenset[str]] = SQS_KEYS
    schema = S3_SCHEMA

    @classmethod
    def from_options(
        cls, options: Mapping[str, str], *, queue: Queue | None = None, clock: Clock | None = None
    ) -> Self:
        """The source that options describe; another `queue` may take the place of SQS."""
        settings = settings_from(SqsSettings, options)
        holding = settings_from(QuarantineSettings, options)
        return cls(
            queue or SqsQueue(settings, options),
            QueuePull(settings.per_batch, settings.per_request),
            read_s3,
            bad=holding.bad_messages,
            quarantine=quarantine_of(holding, options, cls.name, clock),
            clock=clock,
        )
