"""Kinds of tables: features, and as few tables as possible in which all combinations occur."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import combinations, islice, product

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
KEYS = {"single": ("id",), "composite": ("id", "region")}
PARTITIONS = {"one": ("day",), "two": ("region", "day"), "none": ()}


@dataclass(frozen=True)
class Kind:
    """One value of each feature.

    `metadata` is whether real Hudi keeps a metadata table: none, of files, or `by default`, which
    is of files and of statistics and takes it twice the time.
    """

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
        """The options of the creation of the table, which both writers take."""
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
        """The options of every write, which both writers take."""
        keys = ("hoodie.index.type", "hoodie.bucket.index.num.buckets")
        options = {key: text for key, text in self.table_options.items() if key in keys}
        if self.merge_on_read:
            options["hoodie.logfile.data.block.format"] = self.files.removeprefix("mor-")
        return options

    @property
    def their_options(self) -> dict[str, str]:
        """The options of every write by real Hudi: it remembers little."""
        options = {
            **self.table_options,
            **self.write_options,
            "hoodie.datasource.write.recordkey.field": ",".join(self.record_key),
            "hoodie.datasource.write.partitionpath.field": ",".join(self.partition_by),
            "hoodie.datasource.write.table.type": self.table_type,
            "hoodie.datasource.write.keygenerator.type": self._generator,
            "hoodie.metadata.enable": str(self.metadata != "listed").lower(),
            "hoodie.metadata.index.column.stats.enable": str(self.metadata == "by default").lower(),
            "hoodie.write.auto.upgrade": "false",
            "hoodie.table.timeline.timezone": "UTC",
            "hoodie.clean.automatic": "false",
            "hoodie.archive.automatic": "false",
            "hoodie.compact.inline": "false",
            # A commit before the last compaction of the metadata table cannot be rolled back.
            "hoodie.metadata.compact.max.delta.commits": "50",
            # Only the user can know that no release with another encoding of keys wrote it.
            "hoodie.write.complex.keygen.validation.enable": "false",
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


# Of these every combination is tried in a soak run; the other features are spread over them.
CROSSED = ("files", "index", "style", "keys")

Choice = frozenset[tuple[str, str]]


def choices(kind: Kind, strength: int) -> Iterator[Choice]:
    """The combinations of so many features that a kind shows."""
    pairs = [(name, getattr(kind, name)) for name in FEATURES]
    return map(frozenset, combinations(pairs, strength))


def every_kind() -> list[Kind]:
    """All that there is: too many to try."""
    return [Kind(*values) for values in product(*FEATURES.values())]


def crossed(kind: Kind) -> tuple[str, ...]:
    """What a kind has of the features that are crossed."""
    return tuple(getattr(kind, name) for name in CROSSED)


@cache
def matrix() -> tuple[Kind, ...]:
    """A kind for each combination of the crossed features, so that any three features meet."""
    return tuple(_spread(every_kind(), 3, alike=crossed))


def most_diverse(kinds: Iterable[Kind], number: int, strength: int) -> list[Kind]:
    """So many of some kinds: those that together show most combinations."""
    return list(islice(_spread(kinds, strength, alike=str), number))


def _spread(
    kinds: Iterable[Kind], strength: int, *, alike: Callable[[Kind], object]
) -> Iterator[Kind]:
    """Kinds of which no two are alike, that one first which shows most that was not shown yet."""
    remaining = {kind: frozenset(choices(kind, strength)) for kind in kinds}
    shown: set[Choice] = set()
    while remaining:
        best = max(remaining, key=lambda kind: len(remaining[kind] - shown))
        yield best
        shown |= remaining[best]
        remaining = {kind: new for kind, new in remaining.items() if alike(kind) != alike(best)}


# Any value of any feature.
FEW = most_diverse(every_kind(), 3, strength=1)
