"""What ingestion asks of a source: the next batch after a checkpoint."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Self

from lakewright.errors import InvalidError
from lakewright.sources.checkpoints import Checkpoint

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


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
