"""What statements say, as values; expressions and queries in them stay as they were written."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto

Assignments = tuple[tuple[tuple[str, ...], str], ...]
# Columns of a partition with the texts of their values; None where the rows tell.
Partition = tuple[tuple[str, str | None], ...]


@dataclass(frozen=True, slots=True)
class Target:
    """The table that a statement changes, by the parts of its name, and its name in there."""

    name: tuple[str, ...]
    alias: str | None = None


@dataclass(frozen=True, slots=True)
class Insert:
    """INSERT INTO or OVERWRITE; `columns` is None if they were not listed."""

    query: str
    overwrite: bool = False
    partition: Partition = ()
    columns: tuple[str, ...] | None = None
    by_name: bool = False


@dataclass(frozen=True, slots=True)
class Delete:
    """DELETE FROM; without a condition all rows."""

    where: str | None = None


@dataclass(frozen=True, slots=True)
class Update:
    """UPDATE: columns with the expressions that they get."""

    assignments: Assignments
    where: str | None = None


class When(Enum):
    """Which rows a clause of MERGE is about."""

    MATCHED = auto()
    NOT_MATCHED = auto()
    NOT_MATCHED_BY_SOURCE = auto()


class Action(Enum):
    """What a clause of MERGE does with a row."""

    UPDATE = auto()
    DELETE = auto()
    INSERT = auto()


@dataclass(frozen=True, slots=True)
class Clause:
    """A clause of MERGE; `assignments` is None for a star, where columns meet by name."""

    when: When
    action: Action
    condition: str | None = None
    assignments: Assignments | None = ()


@dataclass(frozen=True, slots=True)
class Merge:
    """MERGE INTO; `source` is what could follow FROM, without its alias."""

    source: str
    source_alias: str | None
    on: str
    clauses: tuple[Clause, ...]

    def of(self, when: When) -> tuple[Clause, ...]:
        """The clauses about some rows, in their order."""
        return tuple(clause for clause in self.clauses if clause.when is when)


@dataclass(frozen=True, slots=True)
class Truncate:
    """TRUNCATE TABLE, all of it or a partition."""

    partition: Partition = ()


@dataclass(frozen=True, slots=True)
class DropPartitions:
    """ALTER TABLE DROP PARTITION."""

    partitions: tuple[Partition, ...]
    if_exists: bool = False


Change = Insert | Delete | Update | Merge | Truncate | DropPartitions
