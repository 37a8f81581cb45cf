"""Offsets of a topic: checkpoints in Hudi's form, fair batches, and what Spark is asked for."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.errors import AnalysisException, PySparkException

from lakewright.errors import InvalidError, UnavailableError, UnsupportedError
from lakewright.ingestion.checkpoints import Checkpoint
from lakewright.ingestion.kafka import (
    KafkaSettings,
    KafkaSource,
    OffsetRange,
    Offsets,
    Topic,
    deleted_messages,
    ends_in,
    next_range,
)

OPTIONS = {
    "hoodie.streamer.source.kafka.topic": "t",
    "bootstrap.servers": "here:9092",
    "auto.offset.reset": "earliest",
}


def test_a_checkpoint_is_written_as_hudi_writes_it() -> None:
    offsets = Offsets("my.topic-1_x", {10: 5, 2: 7})
    assert str(offsets) == "my.topic-1_x,2:7,10:5"
    assert Offsets.parse(str(offsets)) == offsets
    assert json.loads(offsets.as_option()) == {"my.topic-1_x": {"2": 7, "10": 5}}


NO_CHECKPOINTS = [
    "",
    "t",
    "t,",
    ",0:1",
    "t,0",
    "t,0:x",
    "t,0:1:2",
    "t,0:-1",
    "t,0:1,0:2",
    "0:1,1:2",
    "1700000000000",
]


@pytest.mark.parametrize("text", NO_CHECKPOINTS)
def test_a_checkpoint_of_another_kind_is_refused(text: str) -> None:
    with pytest.raises(InvalidError, match="no topic's"):
        Offsets.parse(text)


Bounds = dict[int, int]
RANGES: dict[str, tuple[Bounds | None, Bounds, Bounds, int, Bounds, int]] = {
    # after, first, last, most: end and what waits
    "all there is": ({0: 1, 1: 2}, {0: 0, 1: 0}, {0: 5, 1: 6}, 100, {0: 5, 1: 6}, 0),
    "nothing new": ({0: 5}, {0: 0}, {0: 5}, 100, {0: 5}, 0),
    "the same share of each": ({0: 0, 1: 0}, {0: 0, 1: 0}, {0: 9, 1: 9}, 6, {0: 3, 1: 3}, 12),
    "what one does not need the others have": (
        {0: 0, 1: 0}, {0: 0, 1: 0}, {0: 1, 1: 9}, 6, {0: 1, 1: 5}, 4,
    ),
    "fewer than there are partitions": (
        {0: 0, 1: 0, 2: 0}, {0: 0, 1: 0, 2: 0}, {0: 9, 1: 9, 2: 9}, 2, {0: 1, 1: 1, 2: 0}, 25,
    ),
    "a new partition from its beginning": (
        {0: 5}, {0: 0, 1: 3}, {0: 5, 1: 6}, 100, {0: 5, 1: 6}, 0,
    ),
    "no checkpoint, from the beginning": (None, {0: 2, 1: 0}, {0: 5, 1: 1}, 100, {0: 5, 1: 1}, 0),
}  # fmt: skip


@pytest.mark.parametrize(
    ("after", "first", "last", "most", "end", "waiting"), RANGES.values(), ids=list(RANGES)
)
def test_a_batch_ends(
    after: Bounds | None, first: Bounds, last: Bounds, most: int, end: Bounds, waiting: int
) -> None:
    place = Offsets("t", after) if after is not None else None
    offsets = next_range(place, first, last, topic="t", from_latest=False, max_messages=most)
    assert dict(offsets.end.next) == end
    assert offsets.waiting == waiting
    assert offsets.count <= most
    if after is None:
        assert dict(offsets.start.next) == first


def test_the_latest_is_where_the_topic_ends_now() -> None:
    offsets = next_range(None, {0: 0}, {0: 9}, topic="t", from_latest=True, max_messages=5)
    assert offsets == OffsetRange(Offsets("t", {0: 9}), Offsets("t", {0: 9}), 0)


BAD: dict[str, tuple[Offsets, Bounds, str]] = {
    "another topic": (Offsets("other", {0: 1}), {0: 5}, "another topic"),
    "a topic that was made anew": (Offsets("t", {0: 7}), {0: 5}, "made anew"),
    "a partition that was deleted": (Offsets("t", {0: 1, 1: 1}), {0: 5}, "made anew"),
}


@pytest.mark.parametrize(("after", "last", "message"), BAD.values(), ids=list(BAD))
def test_a_checkpoint_does_not_fit(after: Offsets, last: Bounds, message: str) -> None:
    with pytest.raises(InvalidError, match=message):
        next_range(after, {}, last, topic="t", from_latest=False, max_messages=5)


@given(
    st.dictionaries(st.integers(0, 4), st.integers(0, 20), min_size=1),
    st.integers(1, 7),
)
def test_batches_read_every_message_once(last: Bounds, most: int) -> None:
    first = dict.fromkeys(last, 0)
    place: Offsets | None = None
    messages: set[tuple[int, int]] = set()
    while True:
        offsets = next_range(place, first, last, topic="t", from_latest=False, max_messages=most)
        read = {
            (number, offset)
            for number, start in offsets.start.next.items()
            for offset in range(start, offsets.end.next[number])
        }
        assert not messages & read
        assert len(read) == min(most, sum(last.values()) - len(messages))
        messages |= read
        place = Offsets.parse(str(offsets.end))
        if not offsets.count:
            break
    assert len(messages) == sum(last.values())


def test_what_kafka_threw_away_is_counted() -> None:
    assert deleted_messages(Offsets("t", {0: 3, 1: 9, 2: 1}), {0: 5, 1: 9}) == {0: 2}


@dataclass
class FakeTopic:
    """A topic whose rows are the ranges asked for."""

    first: Bounds
    last: Bounds

    def bounds(self) -> tuple[Bounds, Bounds]:
        return dict(self.first), dict(self.last)

    def rows(self, offsets: OffsetRange) -> Any:
        return offsets


def source(topic: FakeTopic, more: dict[str, str] | None = None) -> KafkaSource:
    made = KafkaSource.from_options({**OPTIONS, **(more or {})})
    made._topic = lambda spark: cast(Topic, topic)  # type: ignore[method-assign]
    return made


def test_batches_follow_each_other() -> None:
    topic = FakeTopic({0: 0, 1: 0}, {0: 4, 1: 2})
    made = source(topic, {"hoodie.streamer.kafka.source.maxEvents": "4"})
    first = made.next_batch(cast(Any, None), None)
    assert first.checkpoint == Checkpoint("t,0:2,1:2")
    assert dict(first.facts) == {"objects": 4, "objects_waiting": 2}
    second = made.next_batch(cast(Any, None), first.checkpoint)
    assert (second.checkpoint, second.facts["objects_waiting"]) == (Checkpoint("t,0:4,1:2"), 0)
    third = made.next_batch(cast(Any, None), second.checkpoint)
    assert (third.rows, third.checkpoint) == (None, second.checkpoint)


def test_from_the_latest_on_nothing_is_passed_over() -> None:
    topic = FakeTopic({0: 0}, {0: 4})
    made = source(topic, {"auto.offset.reset": "LATEST"})
    first = made.next_batch(cast(Any, None), None)
    assert (first.rows, first.checkpoint) == (None, Checkpoint("t,0:4"))
    # Its position could not be kept: there is no table yet.
    topic.last = {0: 6}
    second = made.next_batch(cast(Any, None), None)
    assert second.facts["objects"] == 2


def test_expired_messages_are_an_error_by_default() -> None:
    topic = FakeTopic({0: 5}, {0: 9})
    after = Checkpoint("t,0:3")
    with pytest.raises(InvalidError, match=r"lost=\{0: 2\}"):
        source(topic).next_batch(cast(Any, None), after)
    careless = {"hoodie.deltastreamer.source.kafka.enable.failOnDataLoss": "false"}
    batch = source(topic, careless).next_batch(cast(Any, None), after)
    assert batch.facts["objects"] == 4


def test_options_of_kafkas_clients_are_passed_on() -> None:
    more = {"security.protocol": "SASL_SSL", "kafka.sasl.mechanism": "PLAIN", "hoodie.x": "y"}
    made = KafkaSource.from_options({**OPTIONS, **more})
    assert made.client == {
        "kafka.bootstrap.servers": "here:9092",
        "kafka.security.protocol": "SASL_SSL",
        "kafka.sasl.mechanism": "PLAIN",
    }
    assert made.settings == KafkaSettings(topic="t", servers="here:9092", reset="earliest")
    assert made.resume_from("t,0:1") == Checkpoint("t,0:1", reset="t,0:1")


@pytest.mark.parametrize("key", ["hoodie.streamer.source.kafka.topic", "bootstrap.servers"])
def test_an_option_that_is_missing_is_named(key: str) -> None:
    with pytest.raises(InvalidError, match=key):
        KafkaSource.from_options({k: v for k, v in OPTIONS.items() if k != key})


@dataclass
class FakeReader:
    """What Spark's connector would be asked for."""

    received: dict[str, str] = field(default_factory=dict)
    fails: PySparkException | None = None

    def format(self, name: str) -> FakeReader:
        self.received["format"] = name
        return self

    def options(self, **options: str) -> FakeReader:
        self.received |= options
        return self

    def option(self, key: str, value: str) -> FakeReader:
        self.received[key] = value
        return self

    def load(self) -> Any:
        if self.fails is not None:
            raise self.fails
        return SimpleNamespace(selectExpr=lambda *columns: columns)


def topic_of(reader: FakeReader, **facts: Any) -> Topic:
    spark = SimpleNamespace(read=reader, readStream=reader)
    options = {"subscribe": "t", "kafka.bootstrap.servers": "here:9092"}
    return Topic(cast(Any, spark), options, **facts)


OFFSETS = OffsetRange(Offsets("t", {0: 1}), Offsets("t", {0: 5}))


def test_spark_reads_a_range_of_offsets() -> None:
    reader = FakeReader()
    columns = topic_of(reader, min_partitions=7).rows(OFFSETS)
    assert cast(Any, columns) == ("key", "value")
    assert reader.received == {
        "format": "kafka",
        "subscribe": "t",
        "kafka.bootstrap.servers": "here:9092",
        "startingOffsets": '{"t": {"0": 1}}',
        "endingOffsets": '{"t": {"0": 5}}',
        "failOnDataLoss": "true",
        "minPartitions": "7",
    }


def test_columns_hold_the_position_of_a_message() -> None:
    columns = cast(Any, topic_of(FakeReader(), append_offsets=True).rows(OFFSETS))
    assert "offset AS _hoodie_kafka_source_offset" in columns


FAILURES: dict[str, tuple[PySparkException, type[Exception], str]] = {
    "the connector is not there": (
        AnalysisException("Failed to find data source: kafka."),
        UnsupportedError,
        "spark-sql-kafka",
    ),
    "Kafka is not there": (AnalysisException("timed out"), UnavailableError, "timed out"),
}


@pytest.mark.parametrize(("error", "kind", "message"), FAILURES.values(), ids=list(FAILURES))
def test_failures_are_reported(
    error: PySparkException, kind: type[Exception], message: str
) -> None:
    topic = topic_of(FakeReader(fails=error))
    calls: list[Callable[[], object]] = [topic.bounds, lambda: topic.rows(OFFSETS)]
    for call in calls:
        with pytest.raises(kind, match=message):
            call()


def test_a_stream_finds_the_end_of_a_topic() -> None:
    def progress(end: object) -> Any:
        return SimpleNamespace(json=json.dumps({"sources": [{"endOffset": end}]}))

    assert ends_in([progress({"t": {"0": 4, "1": 2}})], "t") == {0: 4, 1: 2}
    assert ends_in([progress(None), progress('{"t": {"0": 4}}'), progress(None)], "t") == {0: 4}
    with pytest.raises(UnavailableError, match="topic='t'"):
        ends_in([progress(None)], "t")
