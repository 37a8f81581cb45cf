"""What a write asks of its workers, and what they answer: values that travel."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cached_property
from typing import TypeAlias

import pyarrow as pa

from lakewright.clock import Clock, SystemClock
from lakewright.errors import ConflictError, LakewrightError
from lakewright.format.avro.schema import arrow_schema
from lakewright.model.commit_metadata import WriteStat
from lakewright.model.file_group import FileSlice, GroupKey
from lakewright.model.instant import REWRITES, Instant, InstantTime, State
from lakewright.model.merge import MergeRule
from lakewright.model.partition_paths import PartitionRule, partition_rule
from lakewright.model.record_keys import KeyRule, key_rule
from lakewright.model.schema import META_COLUMNS, META_FIELDS
from lakewright.model.table_config import CdcLoggingMode, TableConfig, TableType, cdc_logging_mode
from lakewright.scan.scan_plan import merge_rule
from lakewright.storage.base import Storage
from lakewright.table.heartbeat import live_heartbeats
from lakewright.table.markers import (
    MarkerKind,
    conflicting_instant,
    create_marker,
    delete_markers_for,
    renew_marker,
)
from lakewright.table.options import HeartbeatSettings
from lakewright.table.plan_execution import ExecutionAttempt
from lakewright.table.snapshot import Snapshot, load_timeline
from lakewright.write.write_config import IndexType, WriteSettings

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
    instant: InstantTime
    operation: Operation
    settings: WriteSettings
    schema: str
    event_time: str | None = None
    ordered_deletes: bool = False
    non_blocking: bool = False
    clustering: Mapping[GroupKey, str] = field(default_factory=dict)
    compacting: frozenset[GroupKey] = frozenset()
    early: HeartbeatSettings | None = None
    attempt: ExecutionAttempt | None = None
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
    def logging(self) -> CdcLoggingMode | None:
        """What is logged of each change of a row; None if changes are not logged."""
        return None if self.operation.is_service else cdc_logging_mode(self.config.properties)

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
class DeferredPartition:
    """Rows of one partition, put aside: they are to be looked up in files of `size` bytes."""

    partition: str
    rows: str
    size: int


@dataclass(frozen=True, slots=True)
class DeferredFileGroup:
    """Changes of one file group, put aside for its next base file; `inserts` are of new keys."""

    partition: str
    item: FileSlice
    changes: str
    inserts: int
    size: int


DeferredWork: TypeAlias = DeferredPartition | DeferredFileGroup


@dataclass(frozen=True)
class WriteStatus:
    """What one worker did: a statistic for each file, groups taken out, and why it gave up.

    `deferred` is what it left for others to do, `notes` are counts for the commit's extra metadata.
    """

    stats: tuple[WriteStat, ...] = ()
    replaced: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    error: LakewrightError | None = None
    deferred: tuple[DeferredWork, ...] = ()
    notes: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class WriteToken:
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


# ------------------------------------------------------------------------------------------------
# How a data file comes to be: announced by a marker first, and checked once it is there.
#
# Neither is synced to disk one by one: the transaction syncs all files of a write before it
# completes, and a rollback does not rely on markers where a power cut can take them away.


# Markers of a write that has ended are deleted once they are older than an expired heartbeat.
_RENEW_AFTER_MS = 30_000


@dataclass
class MarkedFile:
    """One data file of a task attempt.

    Call `create_marker`, write the file, call `before_publish`, publish the file, and call
    `delete_if_not_pending`.
    """

    task: WriteTask
    path: str
    kind: MarkerKind
    _announced_ms: int | None = None
    _may_appear: bool = False

    def create_marker(self) -> None:
        """Create the marker, before anything is written, so that a rollback finds the file.

        With early conflict detection, give way to a living writer that has announced the same file
        group.
        """
        task = self.task
        if task.early is not None:
            now = replace(task.snapshot, timeline=load_timeline(task.storage, task.config))
            pending = [i.requested_at for i in now.timeline.pending()]
            living = live_heartbeats(task.storage, pending, task.early, task.clock.now_ms())
            others = living - _cancellable(now, living)
            rival = conflicting_instant(task.storage, task.instant, self.path, others)
            if rival is not None:
                raise ConflictError(
                    "another writer is writing the same file group",
                    file=self.path,
                    instant=task.instant,
                    other=rival,
                )
        create_marker(task.storage, task.instant, self.path, self.kind)
        self._announced_ms = task.clock.monotonic_ms()

    def before_publish(self) -> None:
        """To be called right before the file appears: its marker is to be there, and young.

        The write may have ended while a large file was written, and the markers of attempts that
        did not report be deleted since.
        """
        assert self._announced_ms is not None
        if self.task.clock.monotonic_ms() - self._announced_ms > _RENEW_AFTER_MS:
            renew_marker(self.task.storage, self.task.instant, self.path, self.kind)
        self._may_appear = True

    def delete_if_not_pending(self) -> None:
        """Delete the file, which has appeared, if its write has ended by now.

        The driver may have lost sight of this attempt: the file would belong to a completed write
        without being in its commit, or to none at all. Looking before the file appears would not
        do: a large one takes long to appear.
        """
        if not self._is_pending():
            self.task.storage.delete(self.path)
            self._delete_marker()
            raise ConflictError(
                "the write that this file belongs to has ended already",
                instant=self.task.instant,
                file=self.path,
            )

    def abort(self) -> None:
        """Delete the marker of a file that was never about to appear."""
        if self._announced_ms is not None and not self._may_appear:
            # The error that led here is the one to report; the marker stays, and is swept later.
            with suppress(LakewrightError):
                self._delete_marker()

    def _delete_marker(self) -> None:
        delete_markers_for(self.task.storage, self.task.instant, [self.path])

    def _is_pending(self) -> bool:
        task = self.task
        if task.attempt is not None:
            return task.attempt.is_current(task.storage)
        found: Instant | None = load_timeline(task.storage, task.config).by_time.get(task.instant)
        return found is not None and found.state is not State.COMPLETED


def create_file(task: WriteTask, path: str, data: bytes) -> None:
    """Create a data file that is in memory."""
    publication = MarkedFile(task, path, MarkerKind.CREATE)
    publication.create_marker()
    publication.before_publish()
    task.storage.unsynced().create(path, data)
    publication.delete_if_not_pending()


def _cancellable(now: Snapshot, living: frozenset[str]) -> frozenset[str]:
    """Those of some instants that execute cancellable plans: they give way to writers."""
    found = [i for i in now.timeline.pending(*REWRITES) if i.requested_at in living]
    plans = {i.requested_at: now.plan_of(i.requested_at, i.action) for i in found}
    return frozenset(at for at, plan in plans.items() if plan is not None and plan.cancellable)
