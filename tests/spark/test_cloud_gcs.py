"""Objects of GCS come into a table by way of Pub/Sub.

The messages in `gcs_messages.json` were recorded: fake-gcs-server sent them to Pub/Sub's own test
server, from where this library's client took them.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import lakewright as lw
from lakewright.errors import UnavailableError
from lakewright.ingestion.cloud.events import GcsEventsSource
from lakewright.ingestion.cloud.queues import Message
from support.ingestion import CLOUD_DATA, FakeQueue

RECORDED = json.loads(Path(__file__).with_name("gcs_messages.json").read_text("utf-8"))
EVENTS = {
    "hoodie.table.name": "events",
    "hoodie.datasource.write.recordkey.field": "bucket,name,generation",
    "hoodie.datasource.insert.dup.policy": "drop",
}
TARGET = {
    "hoodie.table.name": "target",
    "hoodie.datasource.write.recordkey.field": "name",
    CLOUD_DATA + "datafile.format": "json",
}


class Subscription(FakeQueue):
    """The recorded messages; the first acknowledgement fails."""

    def __init__(self) -> None:
        super().__init__()
        self.there = {
            f"ack{n}": Message(f"m{n}", f"ack{n}", json.dumps(record["body"]), record["attributes"])
            for n, record in enumerate(RECORDED)
        }
        self.deaf = True

    def delete(self, receipts: Sequence[str]) -> None:
        if self.deaf and "ack0" in receipts:
            self.deaf = False
            self.forget()
            raise UnavailableError("no answer")
        super().delete(receipts)


def test_every_row_of_every_object_comes_once(spark: SparkSession, tmp_path: Path) -> None:
    for record in RECORDED[:2]:
        name = record["body"]["name"]
        file = tmp_path / "lake" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps({"name": name}), "utf-8")
        assert file.stat().st_size == int(record["body"]["size"])
    queue, events = Subscription(), str(tmp_path / "events")
    source = GcsEventsSource.from_options({}, queue=queue)
    with pytest.warns(RuntimeWarning, match="could not be notified"):
        lw.ingest(spark, source, events, options=EVENTS, operation="insert")
    again = lw.ingest(spark, source, events, options=EVENTS, operation="insert")
    assert (again.rows, again.inserted) == (2, 0)
    assert queue.there == {}
    idle = lw.ingest(spark, source, events, options=EVENTS, operation="insert")
    assert idle.commit is None
    options = {
        **TARGET,
        "hoodie.streamer.source.hoodieincr.path": events,
        "lakewright.source.bucket.address": f"{tmp_path}/{{bucket}}",
    }
    target = str(tmp_path / "target")
    first = lw.ingest(spark, "cloud", target, options=options, operation="insert")
    assert first.rows == 2
    # The second commit of the events table has no events: it is passed over, once.
    while lw.ingest(spark, "cloud", target, options=options, operation="insert").commit:
        pass
    rows = lw.open(target, spark=spark).read().collect()
    assert sorted(row["name"] for row in rows) == ["in/a+b %.json", "in/c.json"]
