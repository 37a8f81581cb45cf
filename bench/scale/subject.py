"""What a subject is: a job, a table for it of any size, and the sizes worth looking at."""

from __future__ import annotations

from typing import ClassVar, Protocol

from lakewright.storage.base import Storage


class Subject(Protocol):
    """A job whose cost is measured as its table grows.

    `unit` is what a size counts. `sizes` are those of a full run, of which a usual one stops at
    `default_size`. A `flat` subject must not depend on the size: the run fails if it does. A job
    that `changes` its table is done only once.
    """

    name: ClassVar[str]
    unit: ClassVar[str]
    sizes: ClassVar[tuple[int, ...]]
    default_size: ClassVar[int]
    flat: ClassVar[bool]
    changes: ClassVar[bool]

    def build(self, size: int) -> Storage:
        """Make a table of this size; not measured."""
        ...

    def run(self, storage: Storage) -> object:
        """Do the job from the beginning; measured, and done several times if it is short."""
        ...
