"""A topic as a source: its options, and the next messages after a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Self

from lakewright.errors import InvalidError
from lakewright.settings import (
    at_least,
    option,
    option_keys,
    parse_bool,
    parse_choice,
    settings_from,
)
from lakewright.sources.checkpoints import Checkpoint
from lakewright.sources.kafka.offsets import Offsets, lost, next_range
from lakewright.sources.kafka.run import Topic
from lakewright.sources.source import Batch, Source

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_PREFIX, _OLD_PREFIX = "hoodie.streamer.", "hoodie.deltastreamer."
TOPIC = f"{_PREFIX}source.kafka.topic"
SERVERS = "bootstrap.servers"
_LOSS = f"{_PREFIX}source.kafka.enable.failOnDataLoss"
# What Kafka's own clients are told; Hudi takes them without a prefix, Spark with this one.
_CLIENT = "kafka."
_CLIENT_OPTIONS = ("security.", "sasl.", "ssl.", "client.", "request.", "isolation.level")


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaSettings:
    """Which topic is read, from where on, how much at a time, and what its messages are."""

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
        doc="Whether messages that Kafka threw away before they were read are an error; else "
        "reading goes on at the oldest one that is left. Hudi's default is false.",
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
        "columns `key` and `value`, both binary, for a query to make something of.",
    )


@dataclass
class KafkaSource(Source):
    """The messages of a topic, in ranges of offsets; `client` are options of Kafka's clients."""

    settings: KafkaSettings
    client: Mapping[str, str] = field(default_factory=dict)
    _began: Offsets | None = None

    name: ClassVar[str] = "kafka"
    keys: ClassVar[frozenset[str]] = option_keys(KafkaSettings)

    @classmethod
    def from_options(cls, options: Mapping[str, str]) -> Self:
        """The topic that options describe."""
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
        """Its own options, and those of Kafka's clients."""
        return key in cls.keys or _is_for_client(key)

    def resume_from(self, text: str) -> Checkpoint:
        """Offsets in Hudi's form."""
        return Checkpoint(str(Offsets.parse(text)), reset=text)

    def next_batch(self, spark: SparkSession, after: Checkpoint | None) -> Batch:
        """The next messages of each partition; with none the checkpoint tells where that is."""
        place = self._began if after is None else Offsets.parse(after.text)
        topic = self._topic(spark)
        first, last = topic.bounds()
        if place is not None:
            place = self._kept(place, first)
        found = next_range(
            place,
            first,
            last,
            topic=self.settings.topic,
            from_latest=self.settings.reset == "latest",
            most=self.settings.max_events,
        )
        if after is None:
            # The end of the topic moves on: what comes after this first look is wanted.
            self._began = found.start
        facts: dict[str, int | str] = {"objects": found.count, "objects_waiting": found.waiting}
        rows = topic.rows(found) if found.count else None
        return Batch(rows, Checkpoint(str(found.end)), facts)

    def _topic(self, spark: SparkSession) -> Topic:
        settings = self.settings
        options = {**self.client, "subscribe": settings.topic}
        return Topic(
            spark, options, settings.schema, settings.append_offsets, settings.min_partitions
        )

    def _kept(self, place: Offsets, first: Mapping[int, int]) -> Offsets:
        """Where to go on, now that Kafka may have thrown messages away that were not read."""
        gaps = lost(place, first)
        if gaps and self.settings.fail_on_loss:
            raise InvalidError(
                "messages are gone before they were read; to go on with what is left, set the "
                "option to false",
                option=_LOSS,
                lost=gaps,
                checkpoint=str(place),
            )
        moved = {partition: place.next[partition] + gap for partition, gap in gaps.items()}
        return Offsets(place.topic, {**place.next, **moved})


def _is_for_client(key: str) -> bool:
    return key.removeprefix(_CLIENT).startswith(_CLIENT_OPTIONS)
