"""Sources: the interface of a source, its batches, and the registry of sources by name."""

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
    """An incremental query in the three steps that sources have in common."""

    def run(self) -> Data:
        """Run the three steps and return the data."""
        metadata = self.get_metadata()
        return self.post_actions(metadata, self.fetch_data(metadata))

    @abstractmethod
    def get_metadata(self) -> Metadata:
        """Return what to read, such as instants or objects, without reading rows."""

    @abstractmethod
    def fetch_data(self, metadata: Metadata) -> Data:
        """Return the rows."""

    @abstractmethod
    def post_actions(self, metadata: Metadata, data: Data) -> Data:
        """Finish the data: drop columns, add metrics, set the next checkpoint."""


# Prefixes of options that never belong to a source without declared keys; `_` is the default
# prefix of extra commit metadata.
_FOREIGN_PREFIXES = ("hoodie.", "lakewright.", "_")


def _do_nothing() -> None:
    """The default callback of a batch after its commit."""


@dataclass(frozen=True)
class Batch:
    """One batch of a source.

    Attributes:
        rows: The rows; None if there is nothing to write. Then nothing is committed, unless the
            checkpoint changed.
        checkpoint: The checkpoint after the batch.
        facts: Metrics of the batch: `bytes`, `objects`, `objects_waiting`, `lag_ms`.
        committed: Called after the rows were committed, for example to acknowledge messages. It may
            never be called, or be called again for rows that are read again.
    """

    rows: DataFrame | None
    checkpoint: Checkpoint | None
    facts: Mapping[str, int | str] = field(default_factory=dict)
    committed: Callable[[], None] = _do_nothing


class Source(ABC):
    """A source of rows for `lw.ingest`, read from a checkpoint on.

    Subclass it and implement `next_batch`. To create the source by name from options, also set
    `name`, declare its option keys in `keys`, implement `from_options`, and register the class with
    `register_source`. A source that declares no keys may read any option whose name does not start
    with `hoodie.` or `lakewright.`.

    Example:
        ```python
        class Numbers(Source):
            name = "numbers"
            keys = frozenset({"numbers.step"})

            def __init__(self, step: int) -> None:
                self.step = step

            @classmethod
            def from_options(cls, options):
                return cls(int(options.get("numbers.step", "10")))

            def next_batch(self, spark, after):
                start = 0 if after is None else int(after.text)
                end = start + self.step
                return Batch(spark.range(start, end), Checkpoint(str(end)))


        lw.ingest(spark, Numbers(10), "s3a://lake/numbers", options=options)
        ```
    """

    name: ClassVar[str]
    keys: ClassVar[frozenset[str]] = frozenset()

    @classmethod
    def from_options(cls, options: Mapping[str, str]) -> Self:
        """Create the source from options.

        Args:
            options: All options of the ingestion, not only those of the source.

        Returns:
            The source.

        Raises:
            InvalidError: An option is missing or invalid, or the source cannot be created from
                options.
        """
        raise InvalidError("this source is not made from options", source=cls.name)

    @classmethod
    def takes(cls, key: str) -> bool:
        """Whether an option belongs to this source, so that it is not passed to the write.

        Args:
            key: The option key.
        """
        return key in cls.keys if cls.keys else not key.lower().startswith(_FOREIGN_PREFIXES)

    def resume_from(self, text: str) -> Checkpoint:
        """Return the checkpoint for a text that a user gave to resume from.

        Args:
            text: The text, in a format that the source defines.

        Raises:
            InvalidError: The text is not a checkpoint of this source.
        """
        return Checkpoint(text, reset=text)

    @abstractmethod
    def next_batch(self, spark: SparkSession, after: Checkpoint | None) -> Batch:
        """Return the next batch of rows after a checkpoint.

        The checkpoint of the batch must not pass over rows that are not in the batch, and must not
        be before `after`.

        Args:
            spark: The Spark session.
            after: The checkpoint of the last committed batch; None to start where the settings say.

        Returns:
            The batch.
        """


# The registry of sources by name: built-in sources and those that users register.

Kind = TypeVar("Kind", bound=type[Source])

# Imported on first use, so that a source does not import the client libraries of the others.
_BUILT_IN = {
    "cloud": "cloud.source:CloudObjectsSource",
    "files": "files:FilesSource",
    "gcs-events": "cloud.events:GcsEventsSource",
    "hudi": "hudi_table:HudiTableSource",
    "kafka": "kafka:KafkaSource",
    "s3-events": "cloud.events:S3EventsSource",
}
_REGISTERED: dict[str, type[Source]] = {}


def register_source(kind: Kind) -> Kind:
    """Register a source class under its `name`; usable as a class decorator.

    A class that was registered under the same name before is replaced.

    Args:
        kind: The source class.

    Returns:
        The same class.

    Raises:
        InvalidError: A built-in source has this name.

    Example:
        ```python
        @register_source
        class Numbers(Source):
            name = "numbers"
            ...


        lw.ingest(spark, "numbers", "s3a://lake/numbers", options={"numbers.step": "10"})
        ```
    """
    if kind.name in _BUILT_IN:
        raise InvalidError("a source of this name is built in", source=kind.name)
    _REGISTERED[kind.name] = kind
    ADDED_OPTIONS[f"source {kind.name}"] = kind.keys
    return kind


def unregister_source(name: str) -> None:
    """Remove a registered source.

    Args:
        name: The name of the source.
    """
    _REGISTERED.pop(name, None)
    ADDED_OPTIONS.pop(f"source {name}", None)


def source_names() -> tuple[str, ...]:
    """Return the names of all sources, sorted."""
    return tuple(sorted({*_BUILT_IN, *_REGISTERED}))


def source_kind(name: str) -> type[Source]:
    """Return the source class of a name.

    Raises:
        InvalidError: There is no such source.
    """
    key = name.strip().lower()
    if key in _REGISTERED:
        return _REGISTERED[key]
    if key not in _BUILT_IN:
        raise InvalidError("there is no such source", source=name, known=source_names())
    module, _, class_name = _BUILT_IN[key].partition(":")
    loaded_class: type[Source] = getattr(
        import_module(f"lakewright.ingestion.{module}"), class_name
    )
    return loaded_class
