"""What stores write into their notifications: message bodies to rows of an events table.

Keys stay as the store wrote them, which is URL-encoded for S3: who reads objects decodes them, and
once.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import pyarrow as pa

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
