"""The source `kafka`: the messages of a topic in ranges of offsets, read by Spark's connector.

Checkpoints are the next offsets of all partitions, in Hudi's format.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Self

import pyarrow as pa
from pyspark.sql import functions as F

from lakewright.errors import InvalidError, UnavailableError, UnsupportedError
from lakewright.ingestion.checkpoints import Checkpoint
from lakewright.ingestion.source import Batch, Source
from lakewright.options import (
    at_least,
    option,
    option_keys,
    parse_bool,
    parse_choice,
    settings_from,
)
from lakewright.spark.worker_environment import SPARK_ERRORS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True)
class Offsets:
    """The offset of the next message to read in each partition.

    The text is in Hudi's format: the topic, then partition and offset of each, as in `t,0:10,1:20`.
    """

    topic: str
    next: Mapping[int, int]

    @classmethod
    def parse(cls, text: str) -> Offsets:
        """Parse a checkpoint; the inverse of `str`."""
        # The name of a topic has neither commas nor colons.
        topic, *parts = text.strip().split(",")
        pairs = [part.split(":") for part in parts]
        is_valid = all(len(pair) == 2 and all(map(_is_number, pair)) for pair in pairs)
        numbers = {int(pair[0]): int(pair[1]) for pair in pairs} if is_valid else {}
        if not topic or ":" in topic or not numbers or len(numbers) < len(pairs):
            raise InvalidError(
                "the checkpoint is no topic's, such as topic,0:10,1:20", checkpoint=text
            )
        return cls(topic, numbers)

    def __str__(self) -> str:
        pairs = [f"{partition}:{offset}" for partition, offset in sorted(self.next.items())]
        return ",".join([self.topic, *pairs])

    def as_option(self) -> str:
        """Return the value of `startingOffsets` or `endingOffsets` for Spark's connector."""
        by_partition = {str(partition): offset for partition, offset in sorted(self.next.items())}
        return json.dumps({self.topic: by_partition})


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal()


@dataclass(frozen=True)
class OffsetRange:
    """The messages of a batch, from `start` up to but not including `end`; `waiting` are left."""

    start: Offsets
    end: Offsets
    waiting: int = 0

    @property
    def count(self) -> int:
        """Number of messages, including those that Kafka has deleted."""
        return _distance(self.start.next, self.end.next)


def next_range(
    after: Offsets | None,
    first: Mapping[int, int],
    last: Mapping[int, int],
    *,
    topic: str,
    from_latest: bool,
    max_messages: int,
) -> OffsetRange:
    """Return the offsets of the next batch of a topic with messages from `first` up to `last`.

    Without a checkpoint, the batch starts at the end or at the beginning. A partition that is not
    in the checkpoint is new and is read from its beginning.

    Raises:
        InvalidError: The checkpoint is of another topic, or after the end of the topic.
    """
    if after is not None:
        _check(after, last, topic)
    next_offsets = after.next if after is not None else (last if from_latest else {})
    start = {partition: next_offsets.get(partition, first.get(partition, 0)) for partition in last}
    end = _share_limit(start, last, max_messages)
    waiting = _distance(end, last)
    return OffsetRange(Offsets(topic, start), Offsets(topic, end), waiting)


def deleted_messages(after: Offsets, first: Mapping[int, int]) -> dict[int, int]:
    """Return the number of unread messages of each partition that Kafka has deleted."""
    gaps = {p: first[p] - offset for p, offset in after.next.items() if p in first}
    return {partition: gap for partition, gap in gaps.items() if gap > 0}


def _check(after: Offsets, last: Mapping[int, int], topic: str) -> None:
    if after.topic != topic:
        raise InvalidError("the checkpoint is of another topic", checkpoint=str(after), topic=topic)
    missing = sorted(after.next.keys() - last.keys())
    ahead = sorted(p for p, offset in after.next.items() if p in last and offset > last[p])
    if missing or ahead:
        raise InvalidError(
            "the topic is not the one that the checkpoint was made for, or was made anew: it ends "
            "before the checkpoint",
            checkpoint=str(after),
            topic=str(Offsets(topic, last)),
        )


def _share_limit(start: Mapping[int, int], last: Mapping[int, int], limit: int) -> dict[int, int]:
    """Return the end of each partition, so that all have a similar share of `limit` messages."""
    unread = {partition: last[partition] - start[partition] for partition in start}
    end, budget = dict(start), limit
    # Partitions with few messages come first; the others share what these leave of the limit.
    for processed, partition in enumerate(sorted(unread, key=lambda p: (unread[p], p))):
        share = -(-budget // (len(unread) - processed))
        count = min(unread[partition], share, budget)
        end[partition] += count
        budget -= count
    return end


def _distance(start: Mapping[int, int], end: Mapping[int, int]) -> int:
    return sum(end[partition] - offset for partition, offset in start.items())


# A topic on Spark: the first and last offsets of its partitions, and the rows of its messages.

_NO_CONNECTOR = re.compile(r"Failed to find data source|DATA_SOURCE_NOT_FOUND", re.IGNORECASE)
_META = {
    "_hoodie_kafka_source_offset": "offset",
    "_hoodie_kafka_source_partition": "partition",
    "_hoodie_kafka_source_timestamp": "timestamp",
    "_hoodie_kafka_source_key": "CAST(key AS STRING)",
}


@dataclass(frozen=True)
class Topic:
    """A topic, with the options of Spark's connector."""

    spark: SparkSession
    options: Mapping[str, str]
    schema: str | None = None
    append_offsets: bool = False
    min_partitions: int = 0

    def bounds(self) -> tuple[dict[int, int], dict[int, int]]:
        """Return the first offset of each partition, and the offset after the last one."""
        try:
            last = self._end_offsets()
            first = self._begin_offsets()
        except SPARK_ERRORS as error:
            raise translate_kafka_error(error) from error
        # Kafka may have deleted all messages of a partition between the two queries.
        return {number: min(first.get(number, end), end) for number, end in last.items()}, last

    def rows(self, offsets: OffsetRange) -> DataFrame:
        """Return the messages of a range as a DataFrame, which reads them lazily."""
        reader = self.spark.read.format("kafka").options(**self.options)
        reader = reader.option("startingOffsets", offsets.start.as_option())
        reader = reader.option("endingOffsets", offsets.end.as_option())
        reader = reader.option("failOnDataLoss", "true")
        if self.min_partitions:
            reader = reader.option("minPartitions", str(self.min_partitions))
        try:
            return self._columns(reader.load())
        except SPARK_ERRORS as error:
            raise translate_kafka_error(error) from error

    def _columns(self, messages: DataFrame) -> DataFrame:
        meta = [f"{text} AS {name}" for name, text in _META.items()] if self.append_offsets else []
        if self.schema is None:
            return messages.selectExpr("key", "value", *meta)
        # A message that does not parse is an error: a null would silently lose a row.
        text = F.col("value").cast("string")
        parsed = F.from_json(text, self.schema, {"mode": "FAILFAST"}).alias("_message")
        selected = messages.select(parsed, *(F.expr(expression) for expression in meta))
        return selected.select("_message.*", *_META.keys() if meta else ())

    def _end_offsets(self) -> dict[int, int]:
        """Return the end of each partition, from the progress of a stream that ignores messages."""
        stream = self.spark.readStream.format("kafka").options(**self.options)
        stream = stream.option("startingOffsets", "earliest")
        query = stream.load().writeStream.foreachBatch(_ignore).trigger(availableNow=True).start()
        try:
            query.awaitTermination()
            return ends_in(query.recentProgress, self.options["subscribe"])
        finally:
            query.stop()

    def _begin_offsets(self) -> dict[int, int]:
        """Return the offset of the first message of each partition that has messages."""
        reader = self.spark.read.format("kafka").options(**self.options)
        messages = reader.option("startingOffsets", "earliest").load()
        firsts = messages.select("partition", "offset").mapInArrow(
            _first_row, "partition int, offset long"
        )
        return {row.partition: row.offset for row in firsts.collect()}


def ends_in(progress: list[Any], topic: str) -> dict[int, int]:
    """Return the end offsets of a topic from the progress reports of a stream."""
    for report in reversed(progress):
        for source in json.loads(report.json)["sources"]:
            end = source.get("endOffset")
            offsets = json.loads(end) if isinstance(end, str) else end
            if offsets and topic in offsets:
                return {int(number): int(offset) for number, offset in offsets[topic].items()}
    raise UnavailableError(
        "Spark does not report where the topic ends: does it exist?", topic=topic
    )


def translate_kafka_error(error: Exception) -> Exception:
    """Convert an error of Spark's connector to an error of this library."""
    text = re.sub(r"\s+", " ", str(error))[:500]
    if _NO_CONNECTOR.search(text):
        return UnsupportedError(
            "this Spark session cannot read Kafka: start it with the package "
            "org.apache.spark:spark-sql-kafka-0-10_2.13 of its own version in spark.jars.packages",
            reason=text,
        )
    return UnavailableError("Spark cannot read the topic", reason=text)


def _ignore(messages: DataFrame, batch: int) -> None:
    """Ignore the messages of a batch."""


def _first_row(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the first row of a task, which reads one partition; the rest is not read."""
    for batch in batches:
        if batch.num_rows:
            yield batch.slice(0, 1)
            return


# The source: its options, and the next messages after a checkpoint.

_PREFIX, _OLD_PREFIX = "hoodie.streamer.", "hoodie.deltastreamer."
TOPIC = f"{_PREFIX}source.kafka.topic"
SERVERS = "bootstrap.servers"
_LOSS = f"{_PREFIX}source.kafka.enable.failOnDataLoss"
# Options of Kafka clients: Hudi uses them without a prefix, Spark with this one.
_CLIENT = "kafka."
_CLIENT_OPTIONS = ("security.", "sasl.", "ssl.", "client.", "request.", "isolation.level")


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaSettings:
    """Which topic is read, from where, how much in a batch, and how its messages are parsed."""

    topic: str = option(
        TOPIC,
        "",
        parse=str.strip,
        aliases=(f"{_OLD_PREFIX}source.kafka.topic",),
        doc="The topic.",
    )
    servers: str = option(
        SERVERS,
        "",
        parse=str.strip,
        aliases=(_CLIENT + SERVERS,),
        doc="Where Kafka is: host:port, separated by commas.",
    )
    reset: str = option(
        "auto.offset.reset",
        "latest",
        parse=parse_choice("latest", "earliest"),
        doc="Where to begin without a checkpoint: `latest` or `earliest`.",
    )
    max_events: int = option(
        f"{_PREFIX}kafka.source.maxEvents",
        5_000_000,
        parse=at_least(1),
        aliases=(f"{_OLD_PREFIX}kafka.source.maxEvents",),
        doc="How many messages a batch holds at most; partitions have about the same share.",
    )
    min_partitions: int = option(
        f"{_PREFIX}source.kafka.minPartitions",
        0,
        parse=at_least(0),
        aliases=(f"{_OLD_PREFIX}source.kafka.minPartitions",),
        doc="Into how many tasks Spark splits a batch at least; 0: one for each partition.",
    )
    fail_on_loss: bool = option(
        _LOSS,
        True,
        parse=parse_bool,
        aliases=(f"{_OLD_PREFIX}source.kafka.enable.failOnDataLoss",),
        doc="Whether messages that Kafka deleted before they were read are an error; otherwise "
        "reading continues at the oldest remaining message. Hudi's default is false.",
    )
    append_offsets: bool = option(
        f"{_PREFIX}source.kafka.append.offsets",
        False,
        parse=parse_bool,
        aliases=(f"{_OLD_PREFIX}source.kafka.append.offsets",),
        doc="Add the columns `_hoodie_kafka_source_offset`, `_partition`, `_timestamp` and `_key`.",
    )
    schema: str | None = option(
        "lakewright.source.schema",
        None,
        parse=str.strip,
        doc="The columns of messages that are JSON objects, as DDL. Without it a row has the "
        "columns `key` and `value`, both binary, for a query to parse.",
    )


@dataclass
class KafkaSource(Source):
    """The messages of a topic; `client` holds the options of Kafka clients."""

    settings: KafkaSettings
    client: Mapping[str, str] = field(default_factory=dict)
    _initial_offsets: Offsets | None = None

    name: ClassVar[str] = "kafka"
    keys: ClassVar[frozenset[str]] = option_keys(KafkaSettings)

    @classmethod
    def from_options(cls, options: Mapping[str, str]) -> Self:
        """Create the source from options."""
        settings = settings_from(KafkaSettings, options)
        for key, value in ((TOPIC, settings.topic), (SERVERS, settings.servers)):
            if not value:
                raise InvalidError("a source of messages needs an option", option=key)
        client = {
            _CLIENT + key.removeprefix(_CLIENT): value
            for key, value in options.items()
            if _is_for_client(key)
        }
        return cls(settings, {**client, _CLIENT + SERVERS: settings.servers})

    @classmethod
    def takes(cls, key: str) -> bool:
        """Whether an option belongs to this source or to Kafka clients."""
        return key in cls.keys or _is_for_client(key)

    def resume_from(self, text: str) -> Checkpoint:
        """Parse offsets in Hudi's format."""
        return Checkpoint(str(Offsets.parse(text)), reset=text)

    def next_batch(self, spark: SparkSession, after: Checkpoint | None) -> Batch:
        """Return the next messages of each partition; without any, only the checkpoint."""
        position = self._initial_offsets if after is None else Offsets.parse(after.text)
        topic = self._topic(spark)
        first, last = topic.bounds()
        if position is not None:
            position = self._skip_deleted(position, first)
        batch_range = next_range(
            position,
            first,
            last,
            topic=self.settings.topic,
            from_latest=self.settings.reset == "latest",
            max_messages=self.settings.max_events,
        )
        if after is None:
            # The end of the topic moves on; messages after this first call are to be read.
            self._initial_offsets = batch_range.start
        facts: dict[str, int | str] = {
            "objects": batch_range.count,
            "objects_waiting": batch_range.waiting,
        }
        rows = topic.rows(batch_range) if batch_range.count else None
        return Batch(rows, Checkpoint(str(batch_range.end)), facts)

    def _topic(self, spark: SparkSession) -> Topic:
        settings = self.settings
        options = {**self.client, "subscribe": settings.topic}
        return Topic(
            spark, options, settings.schema, settings.append_offsets, settings.min_partitions
        )

    def _skip_deleted(self, position: Offsets, first: Mapping[int, int]) -> Offsets:
        """Return the position after messages that Kafka deleted, if that is not an error."""
        gaps = deleted_messages(position, first)
        if gaps and self.settings.fail_on_loss:
            raise InvalidError(
                "messages are gone before they were read; to go on with what is left, set the "
                "option to false",
                option=_LOSS,
                lost=gaps,
                checkpoint=str(position),
            )
        moved = {partition: position.next[partition] + gap for partition, gap in gaps.items()}
        return Offsets(position.topic, {**position.next, **moved})


def _is_for_client(key: str) -> bool:
    return key.removeprefix(_CLIENT).startswith(_CLIENT_OPTIONS)
