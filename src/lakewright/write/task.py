"""The task of a write's workers, their statuses, and how a worker creates a data file.

`WriteTask`, `WriteStatus` and the deferred work are values that the engine sends between driver and
workers.

A data file is announced by a marker, and checked again once it is visible. Neither is synced to
disk one by one: the transaction syncs all files of a write before it completes, and a rollback does
not rely on markers where a power failure can lose them.
"""

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
from lakewright.model.instant import REWRITES, Instant, InstantTime
from lakewright.model.merge import MergeRule
from lakewright.model.partition_paths import PartitionRule, partition_rule
from lakewright.model.record_keys import KeyRule, key_rule
from lakewright.model.schema import IS_DELETED, META_COLUMNS, META_FIELDS
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


class Operation(StrEnum):
    """What a write does with its rows, as recorded on the timeline."""

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
        """Whether it rewrites existing rows, and has no incoming rows."""
        return self in (Operation.COMPACT, Operation.LOG_COMPACT, Operation.CLUSTER)

    @property
    def replaces(self) -> bool:
        """Whether it replaces whole file groups."""
        return self in _REPLACING

    @property
    def merges(self) -> bool:
        """Whether rows are merged with existing rows of the same key."""
        return self in (Operation.UPSERT, Operation.DELETE)


_REPLACING = frozenset(
    {Operation.INSERT_OVERWRITE, Operation.INSERT_OVERWRITE_TABLE, Operation.DELETE_PARTITION}
)


@dataclass(frozen=True)
class WriteTask:
    """One write, as its workers get it.

    `schema` is the table's Avro schema without meta columns. `clustering` and `compacting` are the
    file groups of pending plans: rows of the former must not change, base files of the latter must
    not be written. `early` is set if each file is checked for conflicts before it is written,
    `attempt` if the task executes a plan. `late_until` is the table's watermark when the write
    began: rows with event times up to it are late.
    """

    snapshot: Snapshot
    instant: InstantTime
    operation: Operation
    settings: WriteSettings
    schema: str
    event_time: str | None = None
    late_until: int | None = None
    ordered_deletes: bool = False
    non_blocking: bool = False
    clustering: Mapping[GroupKey, str] = field(default_factory=dict)
    compacting: frozenset[GroupKey] = frozenset()
    early: HeartbeatSettings | None = None
    attempt: ExecutionAttempt | None = None
    clock: Clock = field(default_factory=SystemClock)

    @property
    def storage(self) -> Storage:
        """The table's storage."""
        return self.snapshot.storage

    @property
    def config(self) -> TableConfig:
        """The table's properties."""
        return self.snapshot.config

    @property
    def adds_rows(self) -> bool:
        """Whether it adds rows to the table, instead of only naming rows to delete."""
        return self.operation is not Operation.DELETE

    @property
    def merge_on_read(self) -> bool:
        """Whether changes are written to log files."""
        return self.config.table_type is TableType.MERGE_ON_READ

    @property
    def logging(self) -> CdcLoggingMode | None:
        """What is logged of each row change; None if changes are not logged."""
        return None if self.operation.is_service else cdc_logging_mode(self.config.properties)

    @property
    def buckets(self) -> bool:
        """Whether the index derives the file group from the key."""
        return self.settings.index_type is IndexType.BUCKET

    @property
    def is_global(self) -> bool:
        """Whether keys are unique in the whole table, not only in a partition."""
        return self.settings.index_type.is_global

    @property
    def uses_blooms(self) -> bool:
        """Whether look-ups use the bloom filters of base files."""
        return self.settings.index_type in (IndexType.BLOOM, IndexType.GLOBAL_BLOOM)

    @cached_property
    def key_rule(self) -> KeyRule:
        """How record keys are computed."""
        return table_key_rule(self.config)

    @cached_property
    def partition_rule(self) -> PartitionRule:
        """How partition paths are computed."""
        return table_partition_rule(self.config)

    @cached_property
    def data_schema(self) -> pa.Schema:
        """The table's columns as they are stored, without meta columns."""
        schema = arrow_schema(self.schema)
        return pa.schema([column for column in schema if column.name not in META_COLUMNS])

    @cached_property
    def stored_schema(self) -> pa.Schema:
        """The columns of data files: meta columns first."""
        return pa.schema([*META_FIELDS, *self.data_schema])

    @cached_property
    def merge_rule(self) -> MergeRule:
        """Which version of a row wins."""
        return merge_rule(self.config)

    @cached_property
    def delete_columns(self) -> tuple[str, ...]:
        """The columns that may mark a row as deleted."""
        marker = (self.merge_rule.delete_marker[0],) if self.merge_rule.delete_marker else ()
        columns = set(self.data_schema.names)
        return tuple(name for name in (IS_DELETED, *marker) if name in columns)


@dataclass(frozen=True, slots=True)
class DeferredPartition:
    """Spilled rows of one partition, to be merged with base files of `size` bytes.

    `rows` is the path of the spilled rows.
    """

    partition: str
    rows: str
    size: int


@dataclass(frozen=True, slots=True)
class DeferredFileGroup:
    """Spilled changes for the next base file of one file group.

    `changes` is their path; `inserts` counts the rows of new keys.
    """

    partition: str
    item: FileSlice
    changes: str
    inserts: int
    size: int


DeferredWork: TypeAlias = DeferredPartition | DeferredFileGroup


@dataclass(frozen=True)
class WriteStatus:
    """What one worker did: a write stat for each file, the replaced file groups, and its error.

    `deferred` is work for other tasks, `notes` are counts for the commit's extra metadata,
    `late_rows` are the late rows by partition. `partitions` are those whose rows it got targets
    for, `too_large` those of which it got too many rows: it wrote none of these. `has_spilled` is
    set if it stored files that are to be deleted with spilled rows.
    """

    stats: tuple[WriteStat, ...] = ()
    replaced: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    error: LakewrightError | None = None
    deferred: tuple[DeferredWork, ...] = ()
    notes: Mapping[str, int] = field(default_factory=dict)
    late_rows: Mapping[str, int] = field(default_factory=dict)
    partitions: tuple[str, ...] = ()
    too_large: tuple[str, ...] = ()
    has_spilled: bool = False


@dataclass(frozen=True, slots=True)
class WriteToken:
    """The task attempt that writes a file: makes file names unique.

    `folder` is where the attempt stores rows that do not stay in memory; None for the folder of
    temporary files.
    """

    task: int = 0
    stage: int = 0
    attempt: int = 0
    folder: str | None = None

    def __str__(self) -> str:
        return f"{self.task}-{self.stage}-{self.attempt}"


def table_key_rule(config: TableConfig) -> KeyRule:
    """Return how the record keys of a table are computed."""
    text = config.properties.get("hoodie.write.complex.keygen.new.encoding", "false")
    return key_rule(
        config.key_generator,
        config.record_key_fields,
        names_single_field=config.version >= 9 or text.strip().lower() != "true",
        timestamps_as_text=config.flag(
            "hoodie.datasource.write.keygenerator.consistent.logical.timestamp.enabled"
        ),
    )


def table_partition_rule(config: TableConfig) -> PartitionRule:
    """Return how the partition paths of a table are computed."""
    stored = config.properties.get("hoodie.table.partition.fields", "")
    fields = [part.strip() for part in stored.split(",") if part.strip()]
    if not fields:
        return PartitionRule()
    return partition_rule(config.key_generator, fields, config.properties)


# Markers of a finished write are deleted once they are older than the expiry of a heartbeat.
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
    _marked_ms: int | None = None
    _may_be_published: bool = False

    def create_marker(self) -> None:
        """Create the marker before the file is written, so that a rollback finds the file.

        Raises:
            ConflictError: with early conflict detection, a writer with a live heartbeat has a
                marker in the same file group.
        """
        task = self.task
        if task.early is not None:
            current = replace(task.snapshot, timeline=load_timeline(task.storage, task.config))
            pending = [i.requested_at for i in current.timeline.pending()]
            live = live_heartbeats(task.storage, pending, task.early, task.clock.now_ms())
            rivals = live - _executing_cancellable_plans(current, live)
            rival = conflicting_instant(task.storage, task.instant, self.path, rivals)
            if rival is not None:
                raise ConflictError(
                    "another writer is writing the same file group",
                    file=self.path,
                    instant=task.instant,
                    other=rival,
                )
        create_marker(task.storage, task.instant, self.path, self.kind)
        self._marked_ms = task.clock.monotonic_ms()

    def before_publish(self) -> None:
        """Renew an old marker; to be called right before the file becomes visible.

        While a large file was written, the write may have finished, and the markers of task
        attempts that did not report may have been deleted.
        """
        assert self._marked_ms is not None
        if self.task.clock.monotonic_ms() - self._marked_ms > _RENEW_AFTER_MS:
            renew_marker(self.task.storage, self.task.instant, self.path, self.kind)
        self._may_be_published = True

    def delete_if_not_pending(self) -> None:
        """Delete the published file, and raise, if its write has finished.

        The driver may have lost this task attempt: the file would belong to a completed write that
        does not list it, or to no write at all. A check before publishing would not do, because
        publishing a large file takes long.
        """
        if not self._is_pending():
            self.task.storage.delete(self.path)
            self._delete_marker()
            raise ConflictError(
                "the write that this file belongs to has finished already",
                instant=self.task.instant,
                file=self.path,
            )

    def abort(self) -> None:
        """Delete the marker, unless the file may have been published."""
        if self._marked_ms is not None and not self._may_be_published:
            # Report the original error; if the marker cannot be deleted, a clean deletes it later.
            with suppress(LakewrightError):
                self._delete_marker()

    def _delete_marker(self) -> None:
        delete_markers_for(self.task.storage, self.task.instant, [self.path])

    def _is_pending(self) -> bool:
        task = self.task
        if task.attempt is not None:
            return task.attempt.is_current(task.storage)
        instant: Instant | None = load_timeline(task.storage, task.config).by_time.get(task.instant)
        return instant is not None and instant.is_pending


def create_file(task: WriteTask, path: str, data: bytes) -> None:
    """Create a data file from memory, with its marker."""
    file = MarkedFile(task, path, MarkerKind.CREATE)
    file.create_marker()
    file.before_publish()
    task.storage.unsynced().create(path, data)
    file.delete_if_not_pending()


def _executing_cancellable_plans(current: Snapshot, live: frozenset[str]) -> frozenset[str]:
    """Return those live instants that execute cancellable plans: they give way to writers."""
    executed = [i for i in current.timeline.pending(*REWRITES) if i.requested_at in live]
    plans = {i.requested_at: current.plan_of(i.requested_at, i.action) for i in executed}
    return frozenset(
        instant for instant, plan in plans.items() if plan is not None and plan.cancellable
    )
