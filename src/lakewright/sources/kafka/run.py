"""A topic on Spark: where its partitions begin and end, and rows of its messages."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql import functions as F

from lakewright.errors import UnavailableError, UnsupportedError
from lakewright.read.workers.run import SPARK_ERRORS
from lakewright.sources.kafka.offsets import OffsetRange

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_NO_CONNECTOR = re.compile(r"Failed to find data source|DATA_SOURCE_NOT_FOUND", re.IGNORECASE)
_META = {
    "_hoodie_kafka_source_offset": "offset",
    "_hoodie_kafka_source_partition": "partition",
    "_hoodie_kafka_source_timestamp": "timestamp",
    "_hoodie_kafka_source_key": "CAST(key AS STRING)",
}


@dataclass(frozen=True)
class Topic:
    """A topic, by the options that Spark's connector knows it by."""

    spark: SparkSession
    options: Mapping[str, str]
    schema: str | None = None
    append_offsets: bool = False
    min_partitions: int = 0

    def bounds(self) -> tuple[dict[int, int], dict[int, int]]:
        """Of each partition the first offset that has a message, and the one after the last."""
        try:
            last = self._ends()
            first = self._beginnings()
        except SPARK_ERRORS as error:
            raise failure_of(error) from error
        # Between the two looks Kafka may have thrown all of a partition away.
        return {number: min(first.get(number, end), end) for number, end in last.items()}, last

    def rows(self, wanted: OffsetRange) -> DataFrame:
        """The messages of a range; read when somebody asks for them, as often as they do."""
        reader = self.spark.read.format("kafka").options(**self.options)
        reader = reader.option("startingOffsets", wanted.start.as_option())
        reader = reader.option("endingOffsets", wanted.end.as_option())
        reader = reader.option("failOnDataLoss", "true")
        if self.min_partitions:
            reader = reader.option("minPartitions", str(self.min_partitions))
        try:
            return self._columns(reader.load())
        except SPARK_ERRORS as error:
            raise failure_of(error) from error

    def _columns(self, messages: DataFrame) -> DataFrame:
        meta = [f"{text} AS {name}" for name, text in _META.items()] if self.append_offsets else []
        if self.schema is None:
            return messages.selectExpr("key", "value", *meta)
        # A message that is no such object is an error: a null would be a row that is lost.
        text = F.col("value").cast("string")
        parsed = F.from_json(text, self.schema, {"mode": "FAILFAST"}).alias("_message")
        named = messages.select(parsed, *(F.expr(each) for each in meta))
        return named.select("_message.*", *_META.keys() if meta else ())

    def _ends(self) -> dict[int, int]:
        """Where the partitions end: a stream that reads nothing tells its offsets."""
        stream = self.spark.readStream.format("kafka").options(**self.options)
        stream = stream.option("startingOffsets", "earliest")
        query = stream.load().writeStream.foreachBatch(_ignore).trigger(availableNow=True).start()
        try:
            query.awaitTermination()
            return ends_in(query.recentProgress, self.options["subscribe"])
        finally:
            query.stop()

    def _beginnings(self) -> dict[int, int]:
        """Where the partitions begin: of each the first message, of those that have any."""
        reader = self.spark.read.format("kafka").options(**self.options)
        messages = reader.option("startingOffsets", "earliest").load()
        firsts = messages.select("partition", "offset").mapInArrow(
            _first_row, "partition int, offset long"
        )
        return {row.partition: row.offset for row in firsts.collect()}


def ends_in(progress: list[Any], topic: str) -> dict[int, int]:
    """The offsets at which a stream has seen a topic end, from what it tells of its progress."""
    for each in reversed(progress):
        for source in json.loads(each.json)["sources"]:
            end = source.get("endOffset")
            offsets = json.loads(end) if isinstance(end, str) else end
            if offsets and topic in offsets:
                return {int(number): int(offset) for number, offset in offsets[topic].items()}
    raise UnavailableError("Spark does not tell where the topic ends: is it there?", topic=topic)


def failure_of(error: Exception) -> Exception:
    """An error of Spark's connector as one of ours."""
    text = re.sub(r"\s+", " ", str(error))[:500]
    if _NO_CONNECTOR.search(text):
        return UnsupportedError(
            "this Spark session cannot read Kafka: start it with the package "
            "org.apache.spark:spark-sql-kafka-0-10_2.13 of its own version in spark.jars.packages",
            reason=text,
        )
    return UnavailableError("Spark cannot read the topic", reason=text)


def _ignore(messages: DataFrame, batch: int) -> None:
    """What becomes of messages that nobody wants to see."""


def _first_row(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The first row of a task, which reads one partition; the rest is left unread."""
    for batch in batches:
        if batch.num_rows:
            yield batch.slice(0, 1)
            return
