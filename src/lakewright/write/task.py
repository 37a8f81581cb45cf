"""What a write asks of its workers, and what they answer: values that travel."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from typing import TypeAlias

import pyarrow as pa

from lakewright.clock import Clock, SystemClock
from lakewright.core.commits import WriteStat
from lakewright.core.keys import KeyRule, key_rule
from lakewright.core.merge import MergeRule
from lakewright.core.meta_columns import META_COLUMNS, META_FIELDS
from lakewright.core.partition_paths import PartitionRule, partition_rule
from lakewright.core.slices import FileSlice, GroupKey
from lakewright.core.table_config import TableConfig, TableType
from lakewright.core.table_options import ChangeLogging, change_logging
from lakewright.errors import LakewrightError
from lakewright.format.avro_arrow import arrow_schema
from lakewright.read.plan import merge_rule
from lakewright.storage.base import Storage
from lakewright.table.execution import Attempt
from lakewright.table.settings import HeartbeatSettings
from lakewright.table.snapshot import Snapshot
from lakewright.write.settings import IndexType, WriteSettings

_IS_DELETED = "_hoodie_is_deleted"


class Operation(StrEnum):
    """What is done with the rows, in the words of the timeline."""

    INSERT = "INSERT"
    BULK_INSERT = "BULK_INSERT"
    UPSERT = "UPSERT"
    DELETE = "DELETE"
    INSERT_OVERWRITE = "INSERT_OVERWRITE"
    INSERT_OVERWRITE_TABLE = "INSERT_OVERWRITE_TABLE"
    DELETE_PARTITION = "DELETE_PARTITION"
    COMPACT = "COMPACT"
    LOG_COMPACT = "LOG_COMPACT"
    CLUSTER = "CLUSTER"

    @property
    def is_service(self) -> bool:
        """Whether it rewrites rows that are there, and takes none."""
        return self in (Operation.COMPACT, Operation.LOG_COMPACT, Operation.CLUSTER)

    @property
    def replaces(self) -> bool:
        """Whether it takes whole file groups out of the table."""
        return self in _REPLACING

    @property
    def merges(self) -> bool:
        """Whether rows meet older rows of their key."""
        return self in (Operation.UPSERT, Operation.DELETE)


_REPLACING = frozenset(
    {Operation.INSERT_OVERWRITE, Operation.INSERT_OVERWRITE_TABLE, Operation.DELETE_PARTITION}
)


@dataclass(frozen=True)
class WriteTask:
    """One write, as every worker needs to know it.

    `schema` is the table's Avro schema without meta columns. `clustering` and `compacting` are the
    file groups under pending plans: rows of the former must not change, base files of the latter
    must not be written. `early` is set where rivals are looked for before each file, `attempt`
    where a plan is executed.
    """

    snapshot: Snapshot
    instant: str
    operation: Operation
    settings: WriteSettings
    schema: str
    event_time: str | None = None
    ordered_deletes: bool = False
    non_blocking: bool = False
    clustering: Mapping[GroupKey, str] = field(default_factory=dict)
    compacting: frozenset[GroupKey] = frozenset()
    early: HeartbeatSettings | None = None
    attempt: Attempt | None = None
    clock: Clock = field(default_factory=SystemClock)

    @property
    def storage(self) -> Storage:
        """Where the table is."""
        return self.snapshot.storage

    @property
    def config(self) -> TableConfig:
        """The table's properties."""
        return self.snapshot.config

    @property
    def adds_rows(self) -> bool:
        """Whether rows come into the table; those to delete name keys and partitions of it."""
        return self.operation is not Operation.DELETE

    @property
    def merge_on_read(self) -> bool:
        """Whether changes are written beside base files."""
        return self.config.table_type is TableType.MERGE_ON_READ

    @property
    def logging(self) -> ChangeLogging | None:
        """What is logged of each change of a row; None if changes are not logged."""
        return None if self.operation.is_service else change_logging(self.config.properties)

    @property
    def buckets(self) -> bool:
        """Whether a key's file group follows from the key."""
        return self.settings.index_type is IndexType.BUCKET

    @property
    def is_global(self) -> bool:
        """Whether a key is unique in the table, not only in its partition."""
        return self.settings.index_type.is_global

    @property
    def uses_blooms(self) -> bool:
        """Whether the filters in base files decide which of them are looked into."""
        return self.settings.index_type in (IndexType.BLOOM, IndexType.GLOBAL_BLOOM)

    @cached_property
    def keys(self) -> KeyRule:
        """How rows get their keys."""
        return table_key_rule(self.config)

    @cached_property
    def partitions(self) -> PartitionRule:
        """How rows get their partition paths."""
        return table_partition_rule(self.config)

    @cached_property
    def own_schema(self) -> pa.Schema:
        """The table's columns as they are stored."""
        stored = arrow_schema(self.schema)
        return pa.schema([column for column in stored if column.name not in META_COLUMNS])

    @cached_property
    def stored_schema(self) -> pa.Schema:
        """The columns of data files: meta columns first."""
        return pa.schema([*META_FIELDS, *self.own_schema])

    @cached_property
    def rule(self) -> MergeRule:
        """Which version of a row wins."""
        return merge_rule(self.config)

    @cached_property
    def delete_columns(self) -> tuple[str, ...]:
        """Columns by which a row may say that it is deleted."""
        marker = (self.rule.delete_marker[0],) if self.rule.delete_marker else ()
        known = set(self.own_schema.names)
        return tuple(name for name in (_IS_DELETED, *marker) if name in known)


@dataclass(frozen=True, slots=True)
class PartitionWork:
    """Rows of one partition, put aside: they are to be looked up in files of `size` bytes."""

    partition: str
    rows: str
    size: int


@dataclass(frozen=True, slots=True)
class GroupWork:
    """Changes of one file group, put aside for its next base file; `inserts` are of new keys."""

    partition: str
    item: FileSlice
    changes: str
    inserts: int
    size: int


Work: TypeAlias = PartitionWork | GroupWork


@dataclass(frozen=True)
class Outcome:
    """What one worker did: a statistic for each file, groups taken out, and why it gave up.

    `works` is what it left for others to do, `notes` are counts for the commit's extra metadata.
    """

    stats: tuple[WriteStat, ...] = ()
    replaced: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    error: LakewrightError | None = None
    works: tuple[Work, ...] = ()
    notes: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Token:
    """Which attempt of which task writes: makes file names unique."""

    task: int = 0
    stage: int = 0
    attempt: int = 0

    def __str__(self) -> str:
        return f"{self.task}-{self.stage}-{self.attempt}"


def table_key_rule(config: TableConfig) -> KeyRule:
    """How the rows of a table get their keys."""
    text = config.properties.get("hoodie.write.complex.keygen.new.encoding", "false")
    return key_rule(
        config.key_generator,
        config.record_key_fields,
        named_single=config.version >= 9 or text.strip().lower() != "true",
        timestamps_as_text=config.flag(
            "hoodie.datasource.write.keygenerator.consistent.logical.timestamp.enabled"
        ),
    )


def table_partition_rule(config: TableConfig) -> PartitionRule:
    """How the rows of a table get their partition paths."""
    stored = config.properties.get("hoodie.table.partition.fields", "")
    fields = [part.strip() for part in stored.split(",") if part.strip()]
    if not fields:
        return PartitionRule()
    return partition_rule(config.key_generator, fields, config.properties)
