"""A write from its rows to its commit: plan, begin, write data files, commit, run hooks."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Protocol

import pyarrow as pa

from lakewright.errors import (
    ConflictError,
    CorruptError,
    InvalidError,
    LakewrightError,
    UnavailableError,
)
from lakewright.format.avro.schema import arrow_schema
from lakewright.format.schema_evolution import check_column_names, evolved
from lakewright.format.timeline_metadata import format_commit, format_requested_replace
from lakewright.metrics.meter import MetricsRecorder
from lakewright.model.commit_metadata import SCHEMA_KEY, CommitMetadata, WriteStat, planned_metadata
from lakewright.model.event_time import check_event_time
from lakewright.model.file_group import GroupKey
from lakewright.model.instant import Action, Instant, InstantTime
from lakewright.model.partition_paths import PartitionRule
from lakewright.model.path_patterns import is_pattern, matches_any
from lakewright.model.plans import RequestedReplace, Skip
from lakewright.model.table_config import (
    EVENT_TIME,
    TRACK_EVENT_TIME,
    TableConfig,
    TableType,
)
from lakewright.table.freshness import load_watermark
from lakewright.table.markers import delete_markers_for
from lakewright.table.options import ClusteringUpdateStrategy, Concurrency
from lakewright.table.snapshot import FilesByPartition, Snapshot
from lakewright.table.transaction import (
    CommitContributor,
    CommitValidator,
    Transaction,
    TransactionManager,
    TransactionSpec,
)
from lakewright.write.commit_hooks import (
    CommitReporter,
    CommittedWrite,
    FreshnessContributor,
    PartitionDoneMarker,
    PostCommitHook,
    PreWriteHook,
    TouchPartitions,
    TtlCheckContributor,
    validate_callbacks,
)
from lakewright.write.incoming_rows import MOVED_COLUMN
from lakewright.write.options import (
    check_index,
    check_options_match_table,
    properties_to_persist,
    with_write_time_options,
    write_settings,
)
from lakewright.write.spill import delete_spill
from lakewright.write.task import Operation, WriteStatus, WriteTask, table_partition_rule
from lakewright.write.validation import ConcurrentInsertValidator
from lakewright.write.write_config import IndexType, WriteSettings

__all__ = [
    "Commit",
    "EmptyRows",
    "RowSource",
    "WriteEngine",
    "WriteRequest",
    "check_operation",
    "commit_result",
    "commit_with_hooks",
    "commit_with_retry",
    "execute_write",
    "match_partitions",
    "raise_worker_errors",
]

# These change no file group that exists, or all of them.
_WITHOUT_PROFILE = (Operation.BULK_INSERT, Operation.INSERT_OVERWRITE_TABLE)
_COMMIT_RETRIES = 2
_COMMIT_RETRY_S = 0.5


@dataclass(frozen=True)
class Commit:
    """A completed write or table service, and the services that ran after it.

    `files` is the number of data files that a service wrote, or deleted if it only deletes files.
    `metrics` are the figures of the commit, and `event_times` the least and the greatest event time
    of each partition, if the table tracks event times. `skipped` are the partitions that TTL should
    have deleted and did not, with what holds each.
    """

    instant: InstantTime
    completed_at: InstantTime
    action: str
    operation: str
    partitions: tuple[str, ...] = ()
    inserted: int = 0
    updated: int = 0
    deleted: int = 0
    files: int = 0
    services: tuple[Commit | Skip, ...] = ()
    metrics: Mapping[str, float] = field(default_factory=dict, hash=False)
    skipped: Mapping[str, str] = field(default_factory=dict, hash=False)
    event_times: Mapping[str, tuple[int | None, int | None]] = field(
        default_factory=dict, hash=False
    )


class RowSource(Protocol):
    """The rows of a write: an Arrow table, a DataFrame, or none."""

    @property
    def schema(self) -> pa.Schema:
        """The columns of the rows."""
        ...

    def known_partitions(self, rule: PartitionRule) -> frozenset[str] | None:
        """Return the partitions of the rows; None if only another pass over them would tell."""
        ...


class WriteEngine(Protocol):
    """The part of `engine.base.Engine` that a write needs."""

    def write(self, task: WriteTask, rows: RowSource) -> Sequence[WriteStatus]:
        """Write the data files of `task`; one status for each worker that wrote some."""
        ...


@dataclass(frozen=True)
class EmptyRows:
    """No rows: for a write that only removes rows or only commits its extra metadata."""

    schema: pa.Schema = field(default_factory=lambda: pa.schema([]))

    def known_partitions(self, rule: PartitionRule) -> frozenset[str]:
        """See `RowSource`."""
        return frozenset()


@dataclass(frozen=True)
class WriteRequest:
    """What a write does with its rows; `extra` is recorded in the commit.

    `patterns` name the partitions to delete; if `exact`, they are paths, whatever characters they
    contain. `partitions` are those that the rows are in, if the caller knows them. `combine` keeps
    one row of each key, also for operations that do not merge. `marked` rows have the column
    `MOVED_COLUMN`, which is true for the rows to delete. `partition_by`, if given, must be the
    table's partition columns. `validator` checks the table under its lock when the write begins,
    and again at its commit. `pre_write` may start something beside it.
    """

    operation: Operation
    options: Mapping[str, str] = field(default_factory=dict)
    ordered_deletes: bool = False
    extra: Mapping[str, str] = field(default_factory=dict)
    patterns: tuple[str, ...] = ()
    exact: bool = False
    partitions: frozenset[str] | None = None
    combine: bool = False
    marked: bool = False
    partition_by: tuple[str, ...] = ()
    validator: CommitValidator | None = None
    pre_write: PreWriteHook | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WritePlan(TransactionSpec):
    """How a write begins, its settings, and the table's Avro schema after it."""

    settings: WriteSettings
    schema: str


def execute_write(
    writer: TransactionManager, request: WriteRequest, rows: RowSource, engine: WriteEngine
) -> tuple[Commit, Snapshot]:
    """Write rows; after a conflict, plan and write them again as often as the options allow.

    Returns:
        The commit, and the snapshot that includes it.
    """
    validate_callbacks(request.options)
    retries = writer.transaction.conflict_retries
    while True:
        began_ms = writer.clock.monotonic_ms()
        try:
            transaction, plan = writer.begin(
                partial(_plan_write, writer=writer, request=request, rows=rows)
            )
            with transaction:
                return _write_and_commit(transaction, plan, request, rows, engine, began_ms)
        except ConflictError:
            recorder = MetricsRecorder.create(writer.storage, writer.clock, request.options)
            recorder.count("conflict_resolution.failure.counter")
            if retries <= 0:
                raise
            retries -= 1


def _plan_write(
    snapshot: Snapshot, *, writer: TransactionManager, request: WriteRequest, rows: RowSource
) -> WritePlan:
    if request.validator is not None:
        request.validator.validate(snapshot)
    config = snapshot.config
    check_options_match_table(config, request.options, partition_by=request.partition_by)
    settings = write_settings(config, request.options)
    if request.combine and config.record_key_fields:
        settings = replace(settings, combine_before_insert=True)
    schema = _schema(snapshot, request, settings, rows.schema)
    if settings.track_event_time and settings.event_time_field is None:
        warnings.warn(
            f"commits record no event times: {TRACK_EVENT_TIME} is set, and {EVENT_TIME} is not",
            RuntimeWarning,
            stacklevel=2,
        )
    if settings.event_time is not None and schema:
        check_event_time(arrow_schema(schema), settings.event_time)
    operation = request.operation
    check_operation(config, writer, operation, settings)
    _check_index(snapshot, settings)
    properties = properties_to_persist(config, settings)
    if request.pre_write is not None:
        request.pre_write.before_write(snapshot)
    if operation.replaces:
        return WritePlan(
            action=Action.REPLACE_COMMIT,
            # A static overwrite replaces all file groups, wherever its rows go.
            requested=format_requested_replace(
                RequestedReplace(
                    operation=Operation.INSERT_OVERWRITE_TABLE
                    if _is_static(operation, settings)
                    else operation
                )
            ),
            inflight=partial(_inflight, config, request, settings, rows),
            properties=properties,
            settings=settings,
            schema=schema,
        )
    merge_on_read = config.table_type is TableType.MERGE_ON_READ
    return WritePlan(
        action=Action.DELTA_COMMIT if merge_on_read else Action.COMMIT,
        inflight=partial(_inflight, config, request, settings, rows),
        properties=properties,
        settings=settings,
        schema=schema,
    )


def _inflight(
    config: TableConfig,
    request: WriteRequest,
    settings: WriteSettings,
    rows: RowSource,
) -> bytes:
    """Return the content of the inflight file: what other processes may know before the shuffle."""
    partitions = _known_partitions(config, request, settings, rows)
    patterns = request.patterns if partitions is None else ()
    return format_commit(planned_metadata(request.operation.value, partitions, patterns))


def _known_partitions(
    config: TableConfig,
    request: WriteRequest,
    settings: WriteSettings,
    rows: RowSource,
) -> frozenset[str] | None:
    """Return the partitions whose file groups the write may change; None if they are not known."""
    operation = request.operation
    if operation is Operation.DELETE_PARTITION:
        paths = frozenset(pattern.strip("/") for pattern in request.patterns)
        has_wildcards = not request.exact and any(map(is_pattern, paths))
        return None if has_wildcards else paths
    is_global = settings.index_type.is_global and operation.merges
    if is_global or _is_static(operation, settings) or operation in _WITHOUT_PROFILE:
        return None
    if request.partitions is not None:
        return request.partitions
    try:
        return rows.known_partitions(table_partition_rule(config))
    except InvalidError:
        return None  # the task that writes the rows names the value that has no path


def _is_static(operation: Operation, settings: WriteSettings) -> bool:
    return operation is Operation.INSERT_OVERWRITE and settings.overwrite_mode == "static"


def _write_and_commit(
    transaction: Transaction,
    plan: WritePlan,
    request: WriteRequest,
    rows: RowSource,
    engine: WriteEngine,
    began_ms: int,
) -> tuple[Commit, Snapshot]:
    task = _task(transaction, request, plan)
    statuses = () if isinstance(rows, EmptyRows) else engine.write(task, rows)
    transaction.report(path for status in statuses for stat in status.stats for path in stat.paths)
    delete_spill(task, statuses)
    raise_worker_errors(task, statuses)
    if request.pre_write is not None:
        extra = {**request.extra, **request.pre_write.extra_metadata()}
        request = replace(request, extra=extra)
    metadata = _metadata(task, request, statuses)
    late_rows: Counter[str] = Counter()
    for status in statuses:
        late_rows.update(status.late_rows)
    validators: list[CommitValidator] = [ConcurrentInsertValidator(task, metadata)]
    if request.validator is not None:
        validators.insert(0, request.validator)
    commit = commit_with_hooks(
        transaction,
        metadata,
        request.options,
        validators,
        [TouchPartitions(task.storage, task.config, request.options)],
        began_ms=began_ms,
        late_rows=late_rows,
    )
    return commit, transaction.after


def commit_with_hooks(
    transaction: Transaction,
    metadata: CommitMetadata,
    options: Mapping[str, str],
    validators: Sequence[CommitValidator] = (),
    hooks: Sequence[PostCommitHook] = (),
    *,
    began_ms: int | None = None,
    late_rows: Mapping[str, int] | None = None,
) -> Commit:
    """Commit a write or a service with what every commit records, and run the hooks after it.

    Args:
        transaction: of the write, whose data files exist.
        metadata: what the write did.
        options: of the write or service.
        validators: called under the lock, before the completed file is created.
        hooks: run after the usual ones. A failing hook does not undo the commit.
        began_ms: when the write began, by the monotonic clock.
        late_rows: how many of its rows are late, by partition.
    """
    done_marker = PartitionDoneMarker.for_table(transaction, options)
    freshness = FreshnessContributor.prepare(
        transaction, metadata, options, done_marker, late_rows or {}
    )
    ttl_check = TtlCheckContributor.prepare(transaction, metadata, options)
    instant = commit_with_retry(transaction, metadata, validators, (ttl_check, freshness))
    committed = CommittedWrite.create(transaction, instant, metadata, freshness.record)
    default_hooks: tuple[PostCommitHook, ...] = (
        CommitReporter(transaction, options, began_ms),
        done_marker,
    )
    for hook in (*default_hooks, *hooks):
        hook.after_commit(committed)
    return replace(commit_result(instant, metadata), metrics=committed.figures)


def commit_with_retry(
    transaction: Transaction,
    metadata: CommitMetadata,
    validators: Sequence[CommitValidator] = (),
    contributors: Sequence[CommitContributor] = (),
) -> Instant:
    """Commit; try again if storage is unavailable, as the completed file may exist already."""
    for _ in range(_COMMIT_RETRIES):
        try:
            return transaction.commit(metadata, validators=validators, contributors=contributors)
        except UnavailableError:
            transaction.writer.clock.sleep(_COMMIT_RETRY_S)
    return transaction.commit(metadata, validators=validators, contributors=contributors)


def commit_result(instant: Instant, metadata: CommitMetadata) -> Commit:
    """Describe a completed write."""
    stats = metadata.write_stats()
    return Commit(
        instant=instant.requested_at,
        completed_at=instant.completed_at or "",
        action=instant.action,
        operation=metadata.operation or "",
        partitions=metadata.partitions,
        inserted=sum(stat.num_inserts or 0 for stat in stats),
        updated=sum(stat.num_update_writes or 0 for stat in stats),
        deleted=sum(stat.num_deletes or 0 for stat in stats),
        files=len(stats),
        event_times={
            path: times
            for path, times in metadata.event_times_by_partition().items()
            if times != (None, None)
        },
    )


def _schema(
    snapshot: Snapshot, request: WriteRequest, settings: WriteSettings, incoming: pa.Schema
) -> str:
    """Return the table's schema after the write; raise if the rows do not fit it."""
    stored = snapshot.avro_schema()
    config = snapshot.config
    if request.operation is Operation.DELETE_PARTITION:
        return stored or ""
    if request.marked:
        incoming = pa.schema([column for column in incoming if column.name != MOVED_COLUMN])
    if request.operation is Operation.DELETE:
        check_column_names(incoming)
        if stored is None:
            raise InvalidError("there is nothing to delete: nothing was written", table=config.name)
        if request.ordered_deletes and not config.ordering_fields:
            raise InvalidError(
                "the table has no ordering field to order deletes by: leave out ordered=True",
                table=config.name,
            )
        ordering = config.ordering_fields if request.ordered_deletes else ()
        partitions = () if settings.index_type.is_global else config.partition_fields
        _require(incoming, (*config.record_key_fields, *partitions, *ordering), config.name)
        return stored
    needed = (*config.record_key_fields, *config.partition_fields, *config.ordering_fields)
    _require(incoming, needed, config.name)
    if request.operation is Operation.INSERT_OVERWRITE_TABLE:
        return evolved(None, incoming, name=config.name, allow_missing=True).avro
    merge_on_read = config.table_type is TableType.MERGE_ON_READ
    return evolved(
        stored,
        incoming,
        name=config.name,
        allow_missing=settings.allow_missing_columns,
        keys=(*config.record_key_fields, *config.partition_fields),
        ordering=config.ordering_fields if merge_on_read else (),
    ).avro


def _require(incoming: pa.Schema, names: Iterable[str], table: str) -> None:
    present = set(incoming.names)
    missing = [name for name in names if name not in present and name.split(".")[0] not in present]
    if missing:
        raise InvalidError(
            "rows lack columns that the table's keys or order are made of: add them",
            missing=missing,
            columns=list(incoming.names),
            table=table,
        )


def check_operation(
    config: TableConfig, writer: TransactionManager, operation: Operation, settings: WriteSettings
) -> None:
    """Raise if a table of this type does not support the operation, whatever the rows are."""
    if operation.merges and not config.record_key_fields:
        raise InvalidError(
            "rows of a table without key fields can be inserted, not updated or deleted",
            table=config.name,
        )
    merge_on_read = config.table_type is TableType.MERGE_ON_READ
    if writer.transaction.concurrency is Concurrency.NON_BLOCKING and not (
        merge_on_read and settings.index_type is IndexType.BUCKET
    ):
        raise InvalidError(
            "non-blocking concurrency is for merge-on-read tables with bucket index: choose "
            "OPTIMISTIC_CONCURRENCY_CONTROL",
            table_type=str(config.table_type),
            index_type=str(settings.index_type),
        )


def _check_index(snapshot: Snapshot, settings: WriteSettings) -> None:
    """Raise if the file groups of the newest write were created with another index type."""
    newest = snapshot.timeline.completed_writes[-1:]
    for commit in snapshot.commits(newest):
        check_index(settings, commit.file_ids())


def _task(transaction: Transaction, request: WriteRequest, plan: WritePlan) -> WriteTask:
    writer = transaction.writer
    config = with_write_time_options(transaction.snapshot.config, request.options)
    snapshot = replace(transaction.snapshot, config=config)
    # Load the replaced file groups here once: the snapshot takes them to the workers.
    snapshot.replaced(snapshot.view())
    clustering, planned = _planned(snapshot)
    if writer.transaction.clustering_updates is ClusteringUpdateStrategy.ALLOW:
        clustering, planned = {}, planned.union(clustering)
    return WriteTask(
        snapshot=snapshot.with_own_cache(),
        instant=transaction.instant,
        operation=request.operation,
        settings=plan.settings,
        schema=plan.schema,
        event_time=plan.settings.event_time,
        late_until=_late_until(transaction, request, plan.settings),
        ordered_deletes=request.ordered_deletes,
        non_blocking=writer.transaction.concurrency is Concurrency.NON_BLOCKING,
        clustering=clustering,
        compacting=planned,
        early=writer.heartbeat if writer.transaction.early_conflicts else None,
        clock=writer.clock,
    )


def _late_until(
    transaction: Transaction, request: WriteRequest, settings: WriteSettings
) -> int | None:
    """Return the watermark of the table: rows up to it are counted as late."""
    adds_rows = request.operation not in (Operation.DELETE, Operation.DELETE_PARTITION)
    if settings.event_time is None or not adds_rows:
        return None
    try:
        return load_watermark(transaction.snapshot, request.options)
    except LakewrightError:
        return None  # the commit warns that it cannot record completion and freshness


def _planned(snapshot: Snapshot) -> tuple[dict[GroupKey, str], frozenset[GroupKey]]:
    """Return the file groups of pending clustering plans, and those of all other pending plans.

    File groups of a cancellable clustering count among the others: their rows may be updated, but
    new rows are written to other file groups, which avoids cancelling the plan.
    """
    clustering: dict[GroupKey, str] = {}
    compacting: set[GroupKey] = set()
    for instant, plan in snapshot.pending_plans():
        if instant.completed_action == Action.REPLACE_COMMIT and not plan.cancellable:
            clustering |= dict.fromkeys(plan.file_groups, instant.requested_at)
        else:
            compacting |= plan.file_groups
    return clustering, frozenset(compacting)


def raise_worker_errors(task: WriteTask, outcomes: Sequence[WriteStatus]) -> None:
    """Raise the first error of a worker, after deleting the data files of the write."""
    errors = [status.error for status in outcomes if status.error is not None]
    if not errors:
        return
    # These task attempts have finished, so their markers can be deleted at once. If another process
    # rolled this write back (expired heartbeat), there are no markers: delete files by their stats.
    paths = [path for status in outcomes for stat in status.stats for path in stat.paths]
    if paths:
        with suppress(UnavailableError):
            task.storage.delete_many(paths)
            delete_markers_for(task.storage, task.instant, paths)
    raise errors[0]


def _metadata(
    task: WriteTask, request: WriteRequest, statuses: Sequence[WriteStatus]
) -> CommitMetadata:
    stats: dict[str, list[WriteStat]] = {}
    replaced: dict[str, tuple[str, ...]] = {}
    for status in statuses:
        replaced |= status.replaced
        for stat in status.stats:
            stats.setdefault(stat.partition_path or "", []).append(stat)
    if request.operation is Operation.INSERT_OVERWRITE_TABLE or _is_static(
        request.operation, task.settings
    ):
        replaced = _groups_in(task.snapshot, task.snapshot.files())
    elif request.operation is Operation.DELETE_PARTITION:
        deleted_files = match_partitions(task.snapshot, request.patterns, exact=request.exact)
        replaced = _groups_in(task.snapshot, deleted_files)
    _check_unique_base_files(stats)
    return CommitMetadata(
        stats={partition: tuple(items) for partition, items in sorted(stats.items())},
        operation=request.operation.value,
        extra={**request.extra, **({SCHEMA_KEY: task.schema} if task.schema else {})},
        replaced={partition: ids for partition, ids in sorted(replaced.items()) if ids},
    )


def match_partitions(
    snapshot: Snapshot, patterns: Sequence[str], *, exact: bool = False
) -> FilesByPartition:
    """Return the files of the partitions that match a pattern; list all only for wildcards."""
    if exact:
        return snapshot.files(patterns)
    wild = any(map(is_pattern, patterns))
    files = snapshot.files(None if wild else [pattern.strip("/") for pattern in patterns])
    return {path: names for path, names in files.items() if matches_any(path, patterns)}


def _groups_in(snapshot: Snapshot, files: FilesByPartition) -> dict[str, tuple[str, ...]]:
    file_ids: dict[str, list[str]] = {}
    for group in snapshot.groups(snapshot.view(), files):
        file_ids.setdefault(group.partition, []).append(group.file_id)
    return {partition: tuple(ids) for partition, ids in file_ids.items()}


def _check_unique_base_files(stats: Mapping[str, Sequence[WriteStat]]) -> None:
    """Raise if a write has two base files of one file group: one would hide the other's rows."""
    base_file_counts = Counter(
        (partition, stat.file_id)
        for partition, items in stats.items()
        for stat in items
        if not stat.log_files
    )
    duplicates = [key for key, count in base_file_counts.items() if count > 1]
    if duplicates:
        raise CorruptError("two tasks wrote the same file group", groups=duplicates[:5])
