"""From messages in a queue to the rows of an events table."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, cast

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from lakewright.errors import CorruptError, InvalidError
from lakewright.ingestion.checkpoints import Checkpoint, Version
from lakewright.ingestion.cloud.events import (
    EventsSource,
    GcsEventsSource,
    S3EventsSource,
    read_gcs,
    read_s3,
)
from lakewright.ingestion.cloud.queues import Message
from lakewright.scan.planner import plan_snapshot
from lakewright.storage.factory import storage_for
from lakewright.table.snapshot import load_snapshot
from lakewright.testing.clock import ManualClock
from lakewright.testing.local_reads import read_plan
from support.ingestion import FakeQueue

TIME, MS = "2026-01-01T00:00:01.500Z", 1_767_225_601_500


def record(key: str = "in/a%2Bb.json", size: Any = 7, **others: Any) -> dict[str, Any]:
    return {
        "eventVersion": "2.1",
        "eventTime": TIME,
        "eventName": "ObjectCreated:Put",
        "responseElements": {"x-amz-request-id": "ABC"},
        "s3": {"bucket": {"name": "lake"}, "object": {"key": key, "size": size, "eTag": "e"}},
        **others,
    }


def s3_body(*records: Any) -> str:
    return json.dumps({"Records": list(records or (record(),))})


TEST_EVENT = json.dumps({"Service": "Amazon S3", "Event": "s3:TestEvent", "Bucket": "lake"})


def by_sns(body: str) -> str:
    return json.dumps({"Type": "Notification", "TopicArn": "arn:x", "Message": body})


GCS_OBJECT = {
    "kind": "storage#object", "id": "lake/a+b.json/17", "bucket": "lake", "name": "a+b.json",
    "size": "370", "updated": TIME, "timeCreated": TIME, "generation": "17",
    "metadata": {"who": "me"},
}  # fmt: skip
FINALIZE = {"eventType": "OBJECT_FINALIZE", "payloadFormat": "JSON_API_V1"}


class ArrowSpark:
    """Returns the rows that a frame would be made of."""

    def createDataFrame(self, rows: pa.Table) -> pa.Table:
        return rows


SPARK = cast(SparkSession, ArrowSpark())


def s3(queue: FakeQueue, **options: str) -> S3EventsSource:
    source_options = {key.replace("_", "."): value for key, value in options.items()}
    return S3EventsSource.from_options(source_options, queue=queue, clock=ManualClock())


def gcs(queue: FakeQueue, **options: str) -> GcsEventsSource:
    source_options = {key.replace("_", "."): value for key, value in options.items()}
    return GcsEventsSource.from_options(source_options, queue=queue, clock=ManualClock())


def rows(source: EventsSource, after: Checkpoint | None = None) -> list[dict[str, Any]]:
    table = source.next_batch(SPARK, after).rows
    return [] if table is None else cast(pa.Table, table).to_pylist()


S3_MESSAGES = {
    "an event": (s3_body(), ["in/a%2Bb.json"], None),
    "an event by way of SNS": (by_sns(s3_body()), ["in/a%2Bb.json"], None),
    "two events in a message": (s3_body(record("a"), record("b")), ["a", "b"], None),
    "an event of a multipart upload": (
        s3_body(record("a", eventName="ObjectCreated:CompleteMultipartUpload")), ["a"], None),
    "an event as other servers name it": (
        s3_body(record(eventName="s3:ObjectCreated:Put")), ["in/a%2Bb.json"], None),
    "an object that was removed is no event": (
        s3_body(record(eventName="ObjectRemoved:Delete")), [], None),
    "a test event is no event": (TEST_EVENT, [], None),
    "a test event by way of SNS is no event": (by_sns(TEST_EVENT), [], None),
    "no JSON": ("hello", [], "it is not JSON"),
    "no JSON by way of SNS": (by_sns("hello"), [], "it is not JSON"),
    "no object": ("[1]", [], "it is no JSON object"),
    "no records": ("{}", [], "it has no list of records"),
    "a record without a name": (s3_body({"s3": {}}), [], "a record has no eventName"),
    "a record of no object": (s3_body(record(s3={})), [], "a record names no object"),
    "a record that is no object": (s3_body("x"), [], "a record has no eventName"),
    "a size that is no number": (s3_body(record(size="x")), [], "a size is no whole number"),
    "no size": (s3_body(record(size=None)), [], "a record has no size"),
    "no time": (s3_body(record(eventTime=None)), [], "an event has no time"),
    "a good record and a bad one": (
        s3_body(record("a"), {}), ["a"], "a record has no eventName"),
}  # fmt: skip


@pytest.mark.parametrize(("body", "keys", "problem"), S3_MESSAGES.values(), ids=list(S3_MESSAGES))
def test_reads_messages_of_s3(body: str, keys: list[str], problem: str | None) -> None:
    events = read_s3(body)
    assert [row["s3"]["object"]["key"] for row in events.rows] == keys
    assert events.problem == problem
    assert events.newest_ms == (MS if keys else 0)


GCS_MESSAGES = {
    "a new object": (json.dumps(GCS_OBJECT), FINALIZE, ["a+b.json"], None),
    "an overwritten object is new": (
        json.dumps(GCS_OBJECT), {**FINALIZE, "overwroteGeneration": "1"}, ["a+b.json"], None),
    "a deleted object is no event": ("", {"eventType": "OBJECT_DELETE"}, [], None),
    "no kind of event": (json.dumps(GCS_OBJECT), {}, [], "it has no attribute eventType"),
    "no payload": ("", FINALIZE, [], "it is not JSON"),
    "no name": (
        json.dumps({**GCS_OBJECT, "name": None}), FINALIZE, [],
        "it has no name; the payload format must be JSON_API_V1"),
    "no size": (json.dumps({**GCS_OBJECT, "size": "x"}), FINALIZE, [], "its size is no number"),
    "no time": (
        json.dumps({**GCS_OBJECT, "updated": None, "timeCreated": None}), FINALIZE, [],
        "an event has no time"),
}  # fmt: skip


@pytest.mark.parametrize(
    ("body", "attributes", "names", "problem"), GCS_MESSAGES.values(), ids=list(GCS_MESSAGES)
)
def test_reads_messages_of_gcs(
    body: str, attributes: Mapping[str, str], names: list[str], problem: str | None
) -> None:
    events = read_gcs(body, attributes)
    assert [row["name"] for row in events.rows] == names
    assert events.problem == problem


def test_a_row_of_s3_has_the_stores_own_columns_but_not_its_answers() -> None:
    (row,) = rows(s3(FakeQueue(s3_body())))
    assert row["s3"]["bucket"]["name"] == "lake"
    assert row["s3"]["object"] == {
        "key": "in/a%2Bb.json", "size": 7, "eTag": "e", "versionId": None, "sequencer": None,
    }  # fmt: skip
    assert "responseElements" not in row


def test_a_row_of_gcs_keeps_the_size_as_a_text() -> None:
    (row,) = rows(gcs(FakeQueue(json.dumps(GCS_OBJECT), attributes=FINALIZE)))
    assert (row["size"], row["generation"], row["updated"]) == ("370", "17", TIME)


def test_an_empty_queue_brings_nothing_and_leaves_the_checkpoint() -> None:
    for after in (None, Checkpoint("12", Version.V1)):
        queue = FakeQueue()
        batch = s3(queue).next_batch(SPARK, after)
        assert (batch.rows, batch.checkpoint) == (None, after)
        assert [ids for ids in queue.deletions if ids] == []


def test_messages_are_deleted_after_the_commit_and_not_before() -> None:
    queue = FakeQueue(s3_body(record("a")), s3_body(record("b")))
    batch = s3(queue).next_batch(SPARK, None)
    assert len(queue.there) == 2
    batch.committed()
    assert queue.there == {}
    batch.committed()


def test_what_was_not_committed_comes_again() -> None:
    queue = FakeQueue(s3_body(record("a")))
    first = rows(s3(queue))
    queue.forget()
    assert rows(s3(queue)) == first


def test_messages_without_new_objects_are_deleted_at_once() -> None:
    queue = FakeQueue(TEST_EVENT, s3_body(record(eventName="ObjectRemoved:Delete")))
    batch = s3(queue).next_batch(SPARK, None)
    assert batch.rows is None
    assert queue.there == {}


LIMITS = {
    "a batch takes no more than it may": ({"batch": "5", "request": "10"}, 5, [(5, True)]),
    "requests are as large as they may be": (
        {"batch": "5", "request": "2"}, 5, [(2, True), (2, False), (1, False)]),
    "only the first request waits, and an empty one ends the batch": (
        {"batch": "99", "request": "10"}, 12, [(10, True), (10, False), (10, False)]),
}  # fmt: skip


@pytest.mark.parametrize(("limits", "count", "requests"), LIMITS.values(), ids=list(LIMITS))
def test_limits_of_a_batch(
    limits: Mapping[str, str], count: int, requests: list[tuple[int, bool]]
) -> None:
    queue = FakeQueue(*(s3_body(record(str(n))) for n in range(12)))
    prefix = "hoodie.streamer.s3.source.queue.max.messages.per."
    source = s3(queue, **{prefix + name: value for name, value in limits.items()})
    assert len(rows(source)) == count
    assert queue.requests == requests


def test_a_batch_of_pubsub_ends_in_time() -> None:
    clock = ManualClock()
    queue = FakeQueue(*[json.dumps(GCS_OBJECT)] * 50, attributes=FINALIZE)
    slow = queue.receive

    def receive(most: int, *, wait: bool) -> list[Message]:
        clock.advance(40_000)
        return slow(most, wait=wait)

    queue.receive = receive  # type: ignore[method-assign]
    source = GcsEventsSource.from_options({}, queue=queue, clock=clock)
    assert len(rows(source)) == 20


def test_a_message_that_comes_twice_in_a_batch_counts_once() -> None:
    queue = FakeQueue(s3_body(record("a")), s3_body(record("b")))
    queue.there["again"] = Message("m0", "again", s3_body(record("a")))
    batch = s3(queue).next_batch(SPARK, None)
    assert cast(pa.Table, batch.rows).num_rows == 2
    batch.committed()
    assert queue.deletions[-1] == ["again", "r1"]


def test_the_checkpoint_is_the_latest_event_and_never_goes_back() -> None:
    later = s3_body(record(eventTime="2026-01-01T00:00:02Z"))
    batch = s3(FakeQueue(later, s3_body())).next_batch(SPARK, None)
    assert batch.checkpoint == Checkpoint(str(MS + 500), Version.V1)
    after = Checkpoint(str(MS + 9000))
    assert s3(FakeQueue(later)).next_batch(SPARK, after).checkpoint == after


def test_a_checkpoint_of_another_source_is_refused_before_a_message_is_received() -> None:
    queue = FakeQueue(s3_body())
    with pytest.raises(InvalidError, match="not a checkpoint of an events source"):
        s3(queue).next_batch(SPARK, Checkpoint("topic,0:1"))
    assert queue.requests == []


def test_a_message_that_is_no_event_is_an_error_and_stays() -> None:
    queue = FakeQueue(s3_body(), "hello")
    with pytest.raises(CorruptError, match="no event") as caught:
        s3(queue).next_batch(SPARK, None)
    assert caught.value.facts["option"] == "lakewright.source.bad.messages"
    assert len(queue.there) == 2


def test_a_message_that_is_no_event_may_be_skipped_with_a_warning() -> None:
    queue = FakeQueue(s3_body(), "hello")
    with pytest.warns(RuntimeWarning, match="it is not JSON: hello"):
        batch = s3(queue, lakewright_source_bad_messages="skip").next_batch(SPARK, None)
    assert cast(pa.Table, batch.rows).num_rows == 1
    assert list(queue.there) == ["r0"]


def test_a_message_that_is_no_event_may_be_kept_in_quarantine() -> None:
    path = "memory://quarantine-of-messages"
    queue = FakeQueue("hello", s3_body(record("a"), {}))
    source = s3(
        queue,
        lakewright_source_bad_messages="quarantine",
        lakewright_source_quarantine_path=path,
    )
    assert len(rows(source)) == 1
    queue.forget()
    # The one that holds an event as well is still there, and noted once more.
    assert len(rows(source)) == 1
    storage = storage_for(path)
    quarantined = read_plan(storage, plan_snapshot(load_snapshot(storage))).to_pylist()
    assert {(row["place"], row["source"], row["reason"]) for row in quarantined} == {
        ("m0", "s3-events", "it is not JSON"),
        ("m1", "s3-events", "a record has no eventName"),
    }
    assert {row["content"] for row in quarantined} >= {"hello"}


def test_a_quarantine_needs_a_table() -> None:
    with pytest.raises(InvalidError, match="needs a table"):
        s3(FakeQueue(), lakewright_source_bad_messages="quarantine")


def test_a_queue_needs_an_address() -> None:
    with pytest.raises(InvalidError, match="missing") as caught:
        S3EventsSource.from_options({})
    assert caught.value.facts["option"] == "hoodie.streamer.s3.source.queue.url"
    with pytest.raises(InvalidError, match="missing"):
        GcsEventsSource.from_options({})
