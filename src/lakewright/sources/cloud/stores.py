"""How the events of a store look in an events table."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from lakewright.errors import InvalidError


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
