"""Kinds of tables: features, and as few tables as possible in which all combinations occur."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, product
from random import Random

FEATURES: Mapping[str, Sequence[str]] = {
    "index": ("simple", "bloom", "bucket"),
    "partitions": ("one", "two", "none"),
    "style": ("plain", "hive", "encoded"),
    "files": ("cow", "mor-parquet", "mor-avro"),
    "merge": ("event", "commit"),
    "keys": ("single", "composite"),
    "version": ("9", "8"),
    "evolution": ("added", "widened"),
    "metadata": ("listed", "indexed"),
}
BUCKETS = "2"
_SEED = 24  # of those tried, the one with which pairs need the fewest tables
KEYS = {"single": ("id",), "composite": ("id", "region")}
PARTITIONS = {"one": ("day",), "two": ("region", "day"), "none": ()}


@dataclass(frozen=True)
class Kind:
    """One value of each feature; `metadata` is whether real Hudi keeps a metadata table."""

    index: str = "simple"
    partitions: str = "one"
    style: str = "plain"
    files: str = "cow"
    merge: str = "event"
    keys: str = "single"
    version: str = "9"
    evolution: str = "added"
    metadata: str = "listed"

    def __str__(self) -> str:
        return " ".join(getattr(self, name) for name in FEATURES)

    @property
    def merge_on_read(self) -> bool:
        return self.files != "cow"

    @property
    def table_type(self) -> str:
        return "MERGE_ON_READ" if self.merge_on_read else "COPY_ON_WRITE"

    @property
    def by_event(self) -> bool:
        return self.merge == "event"

    @property
    def record_key(self) -> tuple[str, ...]:
        return KEYS[self.keys]

    @property
    def partition_by(self) -> tuple[str, ...]:
        return PARTITIONS[self.partitions]

    @property
    def ordering(self) -> tuple[str, ...]:
        return ("ts",) if self.by_event else ()

    @property
    def table_options(self) -> dict[str, str]:
        """What is said when the table is created, in the words of both."""
        options = {
            "hoodie.datasource.write.hive_style_partitioning": str(self.style == "hive").lower(),
            "hoodie.datasource.write.partitionpath.urlencode": str(self.style == "encoded").lower(),
            "hoodie.write.table.version": self.version,
            "hoodie.index.type": self.index.upper(),
        }
        if self.index == "bucket":
            options["hoodie.bucket.index.num.buckets"] = BUCKETS
        return options

    @property
    def write_options(self) -> dict[str, str]:
        """What is said with every write, in the words of both."""
        if not self.merge_on_read:
            return {}
        return {"hoodie.logfile.data.block.format": self.files.removeprefix("mor-")}

    @property
    def their_options(self) -> dict[str, str]:
        """What real Hudi is told with every write: it remembers little."""
        options = {
            **self.table_options,
            **self.write_options,
            "hoodie.datasource.write.recordkey.field": ",".join(self.record_key),
            "hoodie.datasource.write.partitionpath.field": ",".join(self.partition_by),
            "hoodie.datasource.write.table.type": self.table_type,
            "hoodie.datasource.write.keygenerator.type": self._generator,
            "hoodie.metadata.enable": str(self.metadata == "indexed").lower(),
            "hoodie.write.auto.upgrade": "false",
            "hoodie.table.timeline.timezone": "UTC",
            "hoodie.clean.automatic": "false",
            "hoodie.archive.automatic": "false",
            "hoodie.compact.inline": "false",
            "hoodie.upsert.shuffle.parallelism": "2",
        }
        if self.by_event:
            return {**options, "hoodie.datasource.write.precombine.field": "ts"}
        return {**options, "hoodie.record.merge.mode": "COMMIT_TIME_ORDERING"}

    @property
    def _generator(self) -> str:
        if not self.partition_by:
            return "NON_PARTITION"
        several = max(len(self.partition_by), len(self.record_key)) > 1
        return "COMPLEX" if several else "SIMPLE"


Choice = frozenset[tuple[str, str]]


def choices(kind: Kind, strength: int) -> Iterator[Choice]:
    """The combinations of so many features that a kind shows."""
    pairs = [(name, getattr(kind, name)) for name in FEATURES]
    return map(frozenset, combinations(pairs, strength))


def covering(strength: int) -> list[Kind]:
    """A few kinds among which any values of so many features are found together."""
    every = [Kind(*values) for values in product(*FEATURES.values())]
    Random(_SEED).shuffle(every)
    shown = {kind: frozenset(choices(kind, strength)) for kind in every}
    missing = {choice for found in shown.values() for choice in found}
    chosen: list[Kind] = []
    while missing:
        best = max(every, key=lambda kind: len(missing & shown[kind]))
        missing -= shown[best]
        chosen.append(best)
    return chosen
