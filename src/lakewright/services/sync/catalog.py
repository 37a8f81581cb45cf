"""What a catalog knows of a table, as values, and what is asked of a catalog."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

Values = tuple[str, ...]
Column = tuple[str, str]

LAST_REQUEST = "last_commit_time_sync"
LAST_COMPLETION = "last_commit_completion_time_sync"
PROVIDER = "spark.sql.sources.provider"
HUDI = "hudi"
QUERY_AS_RO = "hoodie.query.as.ro.table"


@dataclass(frozen=True, slots=True, kw_only=True)
class Registered:
    """A table in a catalog; `columns` are without those of the partitions."""

    location: str
    columns: tuple[Column, ...] = ()
    partition_columns: tuple[Column, ...] = ()
    properties: Mapping[str, str] = field(default_factory=dict, hash=False)
    serde: Mapping[str, str] = field(default_factory=dict, hash=False)

    @property
    def realtime(self) -> bool:
        """Whether log files count."""
        return self.serde.get(QUERY_AS_RO) != "true"


@dataclass(frozen=True, slots=True)
class TableName:
    """A table's name in a catalog."""

    database: str
    table: str

    def __str__(self) -> str:
        return f"{self.database}.{self.table}"


class MetaCatalog(Protocol):
    """A catalog with tables and partitions; errors of its own come out as ours."""

    kind: str

    def ensure_database(self, database: str, *, create: bool) -> None:
        """Make a database if it is missing; InvalidError if that is not wanted."""
        ...

    def load(self, name: TableName) -> Registered | None:
        """A table as it is registered; None if it is not."""
        ...

    def create(self, name: TableName, table: Registered) -> None:
        """Register a table."""
        ...

    def alter(self, name: TableName, table: Registered) -> None:
        """Put all of a table's properties and columns in the place of those there."""
        ...

    def partitions(
        self, name: TableName, wanted: Iterable[Values] | None = None
    ) -> dict[Values, str]:
        """The locations of a table's partitions: of all, or of those wanted that are there."""
        ...

    def add(self, name: TableName, table: Registered, new: Sequence[tuple[Values, str]]) -> None:
        """Register partitions; those that are there stay."""
        ...

    def move(self, name: TableName, table: Registered, new: Sequence[tuple[Values, str]]) -> None:
        """Give partitions another location."""
        ...

    def drop(self, name: TableName, gone: Sequence[Values]) -> None:
        """Take partitions out; their files stay. Those that are gone already are no error."""
        ...
