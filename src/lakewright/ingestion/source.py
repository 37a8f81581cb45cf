"""The three steps of reading a source: find out what there is, fetch it, finish."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, ClassVar, Generic, Self, TypeVar

from lakewright.errors import InvalidError
from lakewright.ingestion.checkpoints import Checkpoint
from lakewright.options import ADDED_OPTIONS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Metadata = TypeVar("Metadata")
Data = TypeVar("Data")


class IncrementalQueryRunner(ABC, Generic[Metadata, Data]):
    """One incremental query, in the steps that sources have in common."""

    def run(self) -> Data:
        """All three steps."""
        metadata = self.get_metadata()
        return self.post_actions(metadata, self.fetch_data(metadata))

    @abstractmethod
    def get_metadata(self) -> Metadata:
        """What there is to read: instants, objects; no rows are touched."""

    @abstractmethod
    def fetch_data(self, metadata: Metadata) -> Data:
        """The rows themselves."""

    @abstractmethod
    def post_actions(self, metadata: Metadata, data: Data) -> Data:
        """What is left to do: columns to drop, figures, the next checkpoint."""


# ------------------------------------------------------------------------------------------------
# What ingestion asks of a source: the next batch after a checkpoint.


# Names that a source without keys of its own leaves to others; `_` begins notes for commits.
_NOT_ITS_OWN = ("hoodie.", "lakewright.", "_")


def _nothing() -> None:
    """What a source has to do after a commit, unless it says otherwise."""


@dataclass(frozen=True)
class Batch:
    """What one look at a source brings.

    Without `rows` there is nothing to write: nothing is committed, unless the checkpoint moved.
    `facts` are figures for people and metrics: `bytes`, `objects`, `objects_waiting`, `lag_ms`.
    `committed` is called when the rows are in the target: it may acknowledge messages, and must
    bear to be called never, or again for rows that are read once more.
    """

    rows: DataFrame | None
    checkpoint: Checkpoint | None
    facts: Mapping[str, int | str] = field(default_factory=dict)
    committed: Callable[[], None] = _nothing


class Source(ABC):
    """Something that rows can be read from, from a checkpoint on.

    `name` is what it is called where options name a source; `keys` are the options it reads. One
    that declares none may read any option whose name is neither Hudi's nor this library's.
    """

    name: ClassVar[str]
    keys: ClassVar[frozenset[str]] = frozenset()

    @classmethod
    def from_options(cls, options: Mapping[str, str]) -> Self:
        """The source that options describe; they may hold more than its own."""
        raise InvalidError("this source is not made from options", source=cls.name)

    @classmethod
    def takes(cls, key: str) -> bool:
        """Whether an option is this source's own, so that no write is given it."""
        return key in cls.keys if cls.keys else not key.lower().startswith(_NOT_ITS_OWN)

    def resume_from(self, text: str) -> Checkpoint:
        """The checkpoint that a user means who gives one to go on from."""
        return Checkpoint(text, reset=text)

    @abstractmethod
    def next_batch(self, spark: SparkSession, after: Checkpoint | None) -> Batch:
        """The rows after a checkpoint, or from where the settings say; never before it.

        The batch's checkpoint never passes over rows that are not in it.
        """


# ------------------------------------------------------------------------------------------------
# The sources there are, by name; open to those that users add.


Kind = TypeVar("Kind", bound=type[Source])

# Loaded when they are asked for: who reads files does not wait for the client of a queue.
_HOMES = {
    "cloud": "cloud.source:CloudObjectsSource",
    "files": "files:FilesSource",
    "gcs-events": "cloud.events:GcsEventsSource",
    "hudi": "hudi_table:HudiTableSource",
    "kafka": "kafka:KafkaSource",
    "s3-events": "cloud.events:S3EventsSource",
}
_ADDED: dict[str, type[Source]] = {}


def register_source(kind: Kind) -> Kind:
    """Add a source, or put another in the place of one that was added; own ones stay."""
    if kind.name in _HOMES:
        raise InvalidError("a source of this name is built in", source=kind.name)
    _ADDED[kind.name] = kind
    ADDED_OPTIONS[f"source {kind.name}"] = kind.keys
    return kind


def unregister_source(name: str) -> None:
    """Take an added source out again."""
    _ADDED.pop(name, None)
    ADDED_OPTIONS.pop(f"source {name}", None)


def source_names() -> tuple[str, ...]:
    """What sources can be called by."""
    return tuple(sorted({*_HOMES, *_ADDED}))


def source_kind(name: str) -> type[Source]:
    """The source that people call by a name."""
    word = name.strip().lower()
    if word in _ADDED:
        return _ADDED[word]
    if word not in _HOMES:
        raise InvalidError("there is no such source", source=name, known=source_names())
    module, _, kind = _HOMES[word].partition(":")
    found: type[Source] = getattr(import_module(f"lakewright.ingestion.{module}"), kind)
    return found
