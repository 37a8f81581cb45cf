"""Events tables by hand, and the objects that they tell of in folders that stand for buckets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote_plus

import pyarrow as pa

from lakewright.ingestion.checkpoints import Checkpoint
from lakewright.ingestion.cloud.events import GCS_SCHEMA, S3_SCHEMA
from lakewright.ingestion.cloud.queues import Message
from lakewright.ingestion.cloud.source import CloudObjectsSource
from lakewright.model.instant import Action, Instant
from lakewright.storage.local import LocalStorage
from lakewright.testing.table_builder import TableBuilder

DATA = "hoodie.streamer.source.cloud.data."


@dataclass
class EventsTable:
    """An events table and buckets in one folder; `put` writes an object and gives its event."""

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
        """The event of an object; without data there is none, for the event tells of it only."""
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
        told = {"bucket": {"name": bucket}, "object": item}
        return {"eventName": "ObjectCreated:Put", "eventTime": time, "s3": told}

    def commit(self, *events: dict[str, object], instant: str | None = None) -> Instant:
        """Write events; `instant` is the requested time, if it shall not be the next."""
        rows = pa.Table.from_pylist(list(events), self.builder.schema)
        at = instant or self.builder.tick()
        return self.builder.commit({("", f"f-{at}"): rows}, instant=at, action=Action.COMMIT)

    def source(self, options: dict[str, str] | None = None) -> CloudObjectsSource:
        """The objects of the table, as JSON unless options say otherwise."""
        told = {
            "hoodie.streamer.source.hoodieincr.path": str(self.folder / "events"),
            "lakewright.source.bucket.address": f"{self.folder}/{{bucket}}",
            DATA + "datafile.format": "json",
            **(options or {}),
        }
        return CloudObjectsSource.from_options(told)


class FakeQueue:
    """Messages that stay until they are deleted; each is seen by one request at a time."""

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
        found = [m for m in self.there.values() if m.receipt not in self.taken][:most]
        self.taken |= {message.receipt for message in found}
        return found

    def delete(self, receipts: Sequence[str]) -> None:
        self.deletions.append(list(receipts))
        for receipt in receipts:
            self.there.pop(receipt, None)

    def forget(self) -> None:
        """What was taken and not deleted is seen again."""
        self.taken.clear()


def text_of(checkpoint: Checkpoint | None) -> str:
    """What a checkpoint says."""
    assert checkpoint is not None
    return checkpoint.text
