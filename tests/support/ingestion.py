"""Sources, events tables, ingestions and streaming queries without Spark."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import quote_plus

import pyarrow as pa
from pyspark.sql import types as T
from pyspark.sql.streaming.datasource import ReadAllAvailable

from lakewright.client.write_client import WriteClient
from lakewright.clock import Clock
from lakewright.datasource.stream_source import HudiStreamReader, stream_schema
from lakewright.engine.local import ArrowRows, LocalEngine
from lakewright.ingestion.checkpoints import Checkpoint
from lakewright.ingestion.cloud.events import GCS_SCHEMA, S3_SCHEMA
from lakewright.ingestion.cloud.queues import Message
from lakewright.ingestion.cloud.source import CloudObjectsSource
from lakewright.ingestion.ingester import IncomingBatch, Ingester
from lakewright.ingestion.source import Batch, Source
from lakewright.model.instant import Action, Instant
from lakewright.scan.options import stream_settings
from lakewright.storage.base import Storage
from lakewright.storage.local import LocalStorage
from lakewright.testing.table_builder import TableBuilder
from support.tables import SCHEMA, Row, WrittenTable, row

INGESTION_OPTIONS = {
    "hoodie.table.name": "t",
    "hoodie.datasource.write.recordkey.field": "id",
    "hoodie.datasource.write.partitionpath.field": "day",
    "hoodie.datasource.write.precombine.field": "ts",
    # Duplicates are visible after inserts only.
    "hoodie.datasource.write.operation": "insert",
}


@dataclass
class CountingSource(Source):
    """Rows k0, k1, ... in batches of a few; the checkpoint is how many were read.

    Rows with a number in `hidden` are skipped, as by a filter. `on_read` runs during each read.
    """

    total: int = 10
    size: int = 4
    hidden: frozenset[int] = frozenset()
    acknowledged: list[int] = field(default_factory=list)
    asked: list[str | None] = field(default_factory=list)
    on_read: Callable[[], object] = lambda: None

    name: ClassVar[str] = "counting"

    def next_batch(self, spark: Any, after: Checkpoint | None) -> Batch:
        self.asked.append(after.text if after is not None else None)
        start = int(after.text) if after is not None else 0
        end = min(start + self.size, self.total)
        numbers = [number for number in range(start, end) if number not in self.hidden]
        self.on_read()
        if not numbers:
            moved = Checkpoint(str(end)) if end > start else after
            return Batch(None, moved)
        table = pa.Table.from_pylist([_numbered(number) for number in numbers], SCHEMA)
        facts = {"bytes": 10 * len(numbers), "objects_waiting": self.total - end, "lag_ms": 7}
        return Batch(table, Checkpoint(str(end)), facts, lambda: self.acknowledged.append(end))


def _numbered(number: int) -> Row:
    return row(f"k{number:03}", day=f"d{number % 2}")


def arrow_rows(table: Any) -> IncomingBatch:
    return IncomingBatch(ArrowRows(table), lambda: len(table))


def ingester(
    storage: Storage,
    source: Source,
    clock: Clock,
    options: Mapping[str, str] | None = None,
    **facts: Any,
) -> Ingester:
    made = WriteClient.create(storage, {**INGESTION_OPTIONS, **(options or {})}, clock)
    return Ingester(source, replace(made, engine=LocalEngine), incoming=arrow_rows, **facts)


def stored_keys(storage: Storage) -> list[str]:
    """The keys of all rows, duplicates included."""
    return sorted(record["id"] for record in WrittenTable(storage).rows())


def first_keys(count: int) -> list[str]:
    return [f"k{number:03}" for number in range(count)]


CLOUD_DATA = "hoodie.streamer.source.cloud.data."


@dataclass
class EventsTable:
    """An events table and buckets in one folder; `put` writes an object and returns its event."""

    folder: Path
    store: str = "s3"
    builder: TableBuilder = field(init=False)
    events: int = 0

    def __post_init__(self) -> None:
        schema = S3_SCHEMA if self.store == "s3" else GCS_SCHEMA
        self.builder = TableBuilder(
            LocalStorage(str(self.folder / "events")),
            schema,
            key="eventTime" if self.store == "s3" else "id",
            partition_by=None,
            ordering=None,
            table_type="COPY_ON_WRITE",
            properties={"hoodie.record.merge.mode": "COMMIT_TIME_ORDERING"},
        ).create()

    def put(
        self,
        path: str,
        data: bytes | None = b"{}",
        *,
        bucket: str = "lake",
        size: int | None = None,
    ) -> dict[str, object]:
        """The event of a new object; without data the object does not exist."""
        if data is not None:
            file = self.folder / bucket / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(data)
        self.events += 1
        length = size if size is not None else len(data or b"?")
        time = f"2026-01-01T00:00:{self.events // 1000:02d}.{self.events % 1000:03d}Z"
        if self.store == "gcs":
            names = {"bucket": bucket, "name": path, "size": str(length), "updated": time}
            return {**names, "id": f"{bucket}/{path}/{self.events}"}
        item = {"key": quote_plus(path), "size": length}
        s3 = {"bucket": {"name": bucket}, "object": item}
        return {"eventName": "ObjectCreated:Put", "eventTime": time, "s3": s3}

    def commit(self, *events: dict[str, object], instant: str | None = None) -> Instant:
        """Write events; `instant` is the requested time, if it shall not be the next."""
        rows = pa.Table.from_pylist(list(events), self.builder.schema)
        at = instant or self.builder.tick()
        return self.builder.commit({("", f"f-{at}"): rows}, instant=at, action=Action.COMMIT)

    def source(self, options: dict[str, str] | None = None) -> CloudObjectsSource:
        """A source of the objects, by default JSON."""
        settings = {
            "hoodie.streamer.source.hoodieincr.path": str(self.folder / "events"),
            "lakewright.source.bucket.address": f"{self.folder}/{{bucket}}",
            CLOUD_DATA + "datafile.format": "json",
            **(options or {}),
        }
        return CloudObjectsSource.from_options(settings)


class FakeQueue:
    """Messages that stay until they are deleted; each is received by one request at a time."""

    def __init__(self, *bodies: str, attributes: Mapping[str, str] | None = None) -> None:
        self.there: dict[str, Message] = {}
        self.attributes = attributes or {}
        self.sent = 0
        for body in bodies:
            self.put(body)
        self.taken: set[str] = set()
        self.requests: list[tuple[int, bool]] = []
        self.deletions: list[list[str]] = []

    def put(self, body: str) -> None:
        """A new message, with an id and a receipt that count up."""
        message = Message(f"m{self.sent}", f"r{self.sent}", body, self.attributes)
        self.there[message.receipt] = message
        self.sent += 1

    def receive(self, most: int, *, wait: bool) -> list[Message]:
        self.requests.append((most, wait))
        messages = [m for m in self.there.values() if m.receipt not in self.taken][:most]
        self.taken |= {message.receipt for message in messages}
        return messages

    def delete(self, receipts: Sequence[str]) -> None:
        self.deletions.append(list(receipts))
        for receipt in receipts:
            self.there.pop(receipt, None)

    def forget(self) -> None:
        """Make messages that were received and not deleted visible again."""
        self.taken.clear()


def checkpoint_text(checkpoint: Checkpoint | None) -> str:
    """The text of a checkpoint."""
    assert checkpoint is not None
    return checkpoint.text


class RunEnd(Enum):
    """Where a run ends."""

    OF_ITSELF = "when there is nothing new"
    PLANNED = "killed when the offset of a batch was stored, and nothing else"
    WRITTEN = "killed when a batch was written, and Spark has not noted it"


@dataclass
class StreamingQuery:
    """A query whose checkpoint and sink outlive its runs.

    The sink knows batches by their numbers: one that is replayed replaces what it had.
    """

    storage: Storage
    options: Mapping[str, str] = field(default_factory=dict)
    schema: T.StructType | None = None
    offsets: list[str] = field(default_factory=list)
    committed: int = 0
    batches: dict[int, list[Row]] = field(default_factory=dict)

    def run(
        self, end: RunEnd = RunEnd.OF_ITSELF, *, now: bool = True, once: bool = False
    ) -> StreamingQuery:
        """Start, and read until nothing is new; with `now`, only what is there at the start."""
        reader = self.started()
        initial = json.dumps(reader.initialOffset())
        if now:
            reader.prepareForTriggerAvailableNow()
        limit = ReadAllAvailable() if once else reader.getDefaultReadLimit()
        while True:
            start = self.offsets[self.committed - 1] if self.committed else initial
            if len(self.offsets) == self.committed:
                latest = json.dumps(reader.latestOffset(json.loads(start), limit))
                if latest == start:
                    return self
                self.offsets.append(latest)
            if end is RunEnd.PLANNED:
                return self
            self.batches[self.committed] = batch_rows(reader, start, self.offsets[-1])
            if end is RunEnd.WRITTEN:
                return self
            self.committed += 1
            if once:
                return self

    def started(self) -> HudiStreamReader:
        """A reader as the start of a run makes it: with the columns that the table has then."""
        settings = stream_settings(self.options)
        columns = stream_schema({"path": self.storage.root, **self.options}, self.schema)
        return HudiStreamReader(self.storage, settings, columns)

    @property
    def handed_over(self) -> list[list[tuple[str, Any]]]:
        """The key and the note of all rows, batch by batch; batches without rows are omitted."""
        batches = [
            sorted((row["id"], row["note"]) for row in rows)
            for _, rows in sorted(self.batches.items())
        ]
        return [rows for rows in batches if rows]


def batch_rows(reader: HudiStreamReader, start: str, end: str) -> list[Row]:
    """The rows of a batch, task by task."""
    tasks = reader.partitions(json.loads(start), json.loads(end))
    return [row for task in tasks for batch in reader.read(task) for row in batch.to_pylist()]
