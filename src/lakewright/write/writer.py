"""The end of a write: it is completed with what it keeps of freshness, and told to others."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
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
from lakewright.metrics.commit_metrics import commit_figures, record_commit, report
from lakewright.metrics.meter import MetricsRecorder
from lakewright.model.commit_metadata import SCHEMA_KEY, CommitMetadata, WriteStat
from lakewright.model.event_time import check_event_time
from lakewright.model.file_group import GroupKey
from lakewright.model.freshness import (
    FRESHNESS_KEY,
    FreshnessRecord,
    dropped_partitions,
    format_freshness_record,
)
from lakewright.model.instant import Instant
from lakewright.model.path_patterns import matches_any
from lakewright.model.plans import RequestedReplace, Skip
from lakewright.model.table_config import TableConfig, TableType
from lakewright.options import settings_from
from lakewright.table.freshness import FreshnessTracker
from lakewright.table.freshness_options import SUCCESS_FILE, FreshnessSettings, load_function
from lakewright.table.markers import delete_markers_for
from lakewright.table.options import ClusteringUpdateStrategy, Concurrency
from lakewright.table.snapshot import FilesByPartition, Snapshot
from lakewright.table.transaction import Transaction, TransactionManager, TransactionSpec
from lakewright.write.commit_hooks import PartitionDoneMarker, touch_partitions, ttl_extra_metadata
from lakewright.write.incoming_rows import MOVED_COLUMN
from lakewright.write.options import (
    check_index,
    check_options_match_table,
    properties_to_persist,
    with_write_time_options,
    write_settings,
)
from lakewright.write.spill import delete_spill
from lakewright.write.task import Operation, WriteStatus, WriteTask
from lakewright.write.validation import validate_no_concurrent_inserts
from lakewright.write.write_config import IndexType, WriteSettings

_ASK_AGAIN = 2
_PAUSE_S = 0.5

Verify = Callable[[Snapshot], None]
Extra = Callable[[Snapshot], Mapping[str, str]]


@dataclass(frozen=True)
class Commit:
    """A completed write or service, and the services that ran after it.

    `files` is how many data files a service wrote, or deleted if it only does that. `metrics` are
    its figures, where the table tracks event times.
    """

    instant: str
    completed_at: str
    action: str
    operation: str
    partitions: tuple[str, ...] = ()
    inserted: int = 0
    updated: int = 0
    deleted: int = 0
    files: int = 0
    services: tuple[Commit | Skip, ...] = ()
    metrics: Mapping[str, float] = field(default_factory=dict, hash=False)


def validate_callbacks(options: Mapping[str, str]) -> None:
    """Refuse options that name functions which cannot be loaded, before anything is written."""
    settings = settings_from(FreshnessSettings, options)
    for name in (settings.reporter, settings.done_mark):
        if name is not None and name != SUCCESS_FILE:
            load_function(name)


def commit_and_report(
    transaction: Transaction,
    metadata: CommitMetadata,
    options: Mapping[str, str],
    verify: Verify | None = None,
    *,
    began_ms: int | None = None,
) -> Commit:
    """Complete a write; where the table tracks event times its commit keeps the views' freshness.

    Reporters are told, and partitions marked, once it has completed: whatever becomes of that, the
    commit stands. So it does if freshness cannot be told: the next commit finds out. `began_ms` is
    when work on it began, by the clock that never steps back.
    """
    config = transaction.snapshot.config
    settings = settings_from(FreshnessSettings, options)
    done = PartitionDoneMarker(transaction.writer.storage, settings, config.timeline_zone)
    tracked = write_settings(config, options).event_time is not None
    kept = _FreshnessExtra(_prepared(transaction, metadata, settings, done) if tracked else None)
    now_ms = transaction.writer.clock.now_ms()

    def extra(now: Snapshot) -> Mapping[str, str]:
        checked = ttl_extra_metadata(now, transaction.instant, now_ms, options, metadata)
        return {**checked, **(kept.extra(now) if tracked else {})}

    instant = commit_with_retry(transaction, metadata, verify, extra)
    marks = kept.stored.watermarks if kept.stored is not None else None
    at_ms, figures = commit_figures(instant, metadata, marks, config.timeline_zone)
    if figures:
        also = load_function(settings.reporter) if settings.reporter is not None else None
        report(transaction.writer.storage.root, at_ms, figures, also)
    record_commit(transaction, instant, metadata, options, (at_ms, figures, began_ms))
    if kept.stored is not None and done.enabled:
        done.mark(
            done.completed_partitions(kept.stored.open, kept.stored.watermarks),
            kept.stored.watermarks,
        )
    return replace(commit_result(instant, metadata), metrics=figures)


@dataclass
class _FreshnessExtra:
    """What is kept in the commit, once its metadata was formed."""

    keeping: FreshnessTracker | None
    stored: FreshnessRecord | None = None

    def extra(self, now: Snapshot) -> Mapping[str, str]:
        """What is added to the metadata, on the table as it is under the lock."""
        if self.keeping is None:
            return {}
        try:
            self.stored = self.keeping.record(now)
        except LakewrightError as error:
            _warn(error)
            return {}
        return {FRESHNESS_KEY: format_freshness_record(self.stored)}


def _prepared(
    transaction: Transaction,
    metadata: CommitMetadata,
    settings: FreshnessSettings,
    done: PartitionDoneMarker,
) -> FreshnessTracker | None:
    try:
        keeping = FreshnessTracker.prepare(
            transaction.snapshot,
            transaction.instant,
            transaction.action,
            metadata,
            future_from_ms=transaction.writer.clock.now_ms() + settings.future_tolerance_ms,
        )
        return _with_open(keeping, metadata, done) if done.enabled else keeping
    except LakewrightError as error:
        _warn(error)
        return None


def _with_open(
    keeping: FreshnessTracker, metadata: CommitMetadata, done: PartitionDoneMarker
) -> FreshnessTracker:
    """Add the partitions that are to be marked one day, leave out those that are."""
    over = done.completed_partitions(keeping.state.open, keeping.state.watermarks)
    closed = {path for path in over if done.is_marked(path)}
    return replace(
        keeping,
        opened=done.partitions_with_time(metadata.stats),
        closed=frozenset((closed - metadata.stats.keys()) | dropped_partitions(metadata)),
    )


def _warn(error: LakewrightError) -> None:
    text = f"the commit does not tell completion and freshness: {error}"
    warnings.warn(text, RuntimeWarning, stacklevel=4)


def commit_with_retry(
    transaction: Transaction,
    metadata: CommitMetadata,
    verify: Verify | None = None,
    extra: Extra | None = None,
) -> Instant:
    """Complete a write, and ask again where storage did not answer: it may be there already."""
    for _ in range(_ASK_AGAIN):
        try:
            return transaction.commit(metadata, verify=verify, extra=extra)
        except UnavailableError:
            transaction.writer.clock.sleep(_PAUSE_S)
    return transaction.commit(metadata, verify=verify, extra=extra)


def commit_result(instant: Instant, metadata: CommitMetadata) -> Commit:
    """What a completed write did."""
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
    )


# ------------------------------------------------------------------------------------------------
# A write from its rows to its commit: check, begin, let the workers write, complete.


__all__ = [
    "Commit",
    "EmptyRows",
    "RowSource",
    "WriteRequest",
    "check_operation",
    "commit_result",
    "commit_with_retry",
    "execute_write",
    "match_partitions",
    "raise_worker_errors",
]


class RowSource(Protocol):
    """The rows of a write, wherever they are."""

    @property
    def schema(self) -> pa.Schema:
        """Their columns."""
        ...

    def write(self, task: WriteTask) -> Sequence[WriteStatus]:
        """Let workers write them; each answers with what it did."""
        ...


Preparation = Callable[[], Mapping[str, str]]


class EmptyRows:
    """A write that only takes out what is there."""

    schema = pa.schema([])

    def write(self, task: WriteTask) -> Sequence[WriteStatus]:
        """There is nothing to do."""
        return ()


@dataclass(frozen=True)
class WriteRequest:
    """What is to be done with rows; `extra` is recorded in the commit.

    `patterns` name the partitions to delete; `exact` ones are paths, whatever characters are in
    them. `combine` leaves one row of each key, also where rows only replace others. `marked` rows
    say in `MOVED_COLUMN` which of them are deleted. `partition_by`, if given, must be the table's
    partition columns. `check` is shown the table under its lock, when the write
    begins and again when it completes, and raises if it shall not be. `first` is shown it once,
    before the write begins: what it gives is done without the lock, and then the write, with what
    that adds to its commit.
    """

    operation: Operation
    options: Mapping[str, str] = field(default_factory=dict)
    ordered_deletes: bool = False
    extra: Mapping[str, str] = field(default_factory=dict)
    patterns: tuple[str, ...] = ()
    exact: bool = False
    combine: bool = False
    marked: bool = False
    partition_by: tuple[str, ...] = ()
    check: Callable[[Snapshot], None] | None = None
    first: Callable[[Snapshot], Preparation | None] | None = None


class _PrepareError(Exception):
    """Something else is to be done before a write begins: no failure, a way out of the lock."""

    def __init__(self, preparation: Preparation) -> None:
        super().__init__()
        self.preparation = preparation


def execute_write(
    writer: TransactionManager, request: WriteRequest, rows: RowSource
) -> tuple[Commit, Snapshot]:
    """Write rows; one that lost against another writer is planned and done again, if allowed.

    Gives the table with it, too, as it was seen last.
    """
    retries = writer.transaction.conflict_retries
    while True:
        try:
            return _execute_once(writer, request, rows)
        except _PrepareError as begun:
            added = begun.preparation()
            request = replace(request, first=None, extra={**request.extra, **added})
        except ConflictError:
            meter = MetricsRecorder.create(writer.storage, writer.clock, request.options)
            meter.count("conflict_resolution.failure.counter")
            if retries <= 0:
                raise
            retries -= 1


def _execute_once(
    writer: TransactionManager, request: WriteRequest, rows: RowSource
) -> tuple[Commit, Snapshot]:
    decided: list[tuple[WriteSettings, str]] = []
    began_ms = writer.clock.monotonic_ms()
    validate_callbacks(request.options)

    def decide(snapshot: Snapshot) -> TransactionSpec:
        if request.check is not None:
            request.check(snapshot)
        by = request.partition_by
        check_options_match_table(snapshot.config, request.options, partition_by=by)
        preparation = request.first(snapshot) if request.first is not None else None
        if preparation is not None:
            raise _PrepareError(preparation)
        settings = write_settings(snapshot.config, request.options)
        if request.combine and snapshot.config.record_key_fields:
            settings = replace(settings, combine_before_insert=True)
        schema = _schema(snapshot, request, settings, rows.schema)
        if settings.event_time is not None and schema:
            check_event_time(arrow_schema(schema), settings.event_time)
        decided.append((settings, schema))
        return _transaction_spec(snapshot, writer, request, settings)

    with writer.begin(decide) as transaction:
        task = _task(transaction, request, *decided[-1])
        outcomes = rows.write(task)
        transaction.report(path for each in outcomes for stat in each.stats for path in stat.paths)
        delete_spill(task, outcomes)
        raise_worker_errors(task, outcomes)
        metadata = _metadata(task, request, outcomes)
        commit = _commit(transaction, task, metadata, request, began_ms)
        touch_partitions(task.storage, task.config, request.options, metadata, commit.completed_at)
        return commit, transaction.after


def _commit(
    transaction: Transaction,
    task: WriteTask,
    metadata: CommitMetadata,
    request: WriteRequest,
    began_ms: int,
) -> Commit:
    def verify(now: Snapshot) -> None:
        if request.check is not None:
            request.check(now)
        validate_no_concurrent_inserts(task, metadata, now)

    return commit_and_report(transaction, metadata, request.options, verify, began_ms=began_ms)


def _schema(
    snapshot: Snapshot, request: WriteRequest, settings: WriteSettings, incoming: pa.Schema
) -> str:
    """The table's schema with what the rows add to it; rows that do not fit are refused."""
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
    known = set(incoming.names)
    missing = [name for name in names if name not in known and name.split(".")[0] not in known]
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
    """Refuse what cannot be done to a table of this kind, whatever the rows are."""
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


def _transaction_spec(
    snapshot: Snapshot, writer: TransactionManager, request: WriteRequest, settings: WriteSettings
) -> TransactionSpec:
    operation = request.operation
    check_operation(snapshot.config, writer, operation, settings)
    merge_on_read = snapshot.config.table_type is TableType.MERGE_ON_READ
    _check_index(snapshot, settings)
    remember = properties_to_persist(snapshot.config, settings)
    if operation.replaces:
        return TransactionSpec(
            "replacecommit",
            requested=format_requested_replace(RequestedReplace(operation=operation.value)),
            inflight=format_commit(CommitMetadata(operation=operation.value)),
            properties=remember,
        )
    return TransactionSpec("deltacommit" if merge_on_read else "commit", properties=remember)


def _check_index(snapshot: Snapshot, settings: WriteSettings) -> None:
    """Refuse another index than the file groups of the newest write show."""
    newest = snapshot.timeline.completed_writes[-1:]
    for commit in snapshot.commits(newest):
        check_index(settings, commit.file_ids())


def _task(
    transaction: Transaction, request: WriteRequest, settings: WriteSettings, schema: str
) -> WriteTask:
    writer = transaction.writer
    config = with_write_time_options(transaction.snapshot.config, request.options)
    snapshot = replace(transaction.snapshot, config=config)
    # Loaded here once, they travel to the workers with the snapshot.
    snapshot.replaced(snapshot.view())
    clustering, planned = _planned(snapshot)
    if writer.transaction.clustering_updates is ClusteringUpdateStrategy.ALLOW:
        clustering, planned = {}, planned.union(clustering)
    return WriteTask(
        snapshot=snapshot,
        instant=transaction.instant,
        operation=request.operation,
        settings=settings,
        schema=schema,
        event_time=settings.event_time,
        ordered_deletes=request.ordered_deletes,
        non_blocking=writer.transaction.concurrency is Concurrency.NON_BLOCKING,
        clustering=clustering,
        compacting=planned,
        early=writer.heartbeat if writer.transaction.early_conflicts else None,
        clock=writer.clock,
    )


def _planned(snapshot: Snapshot) -> tuple[dict[GroupKey, str], frozenset[GroupKey]]:
    """The file groups that pending plans wait for: of clusterings, and of compactions.

    Rows under a cancellable clustering may change; new ones go elsewhere, as there is no need.
    """
    clustering: dict[GroupKey, str] = {}
    compacting: set[GroupKey] = set()
    for instant, plan in snapshot.pending_plans():
        if instant.completed_action == "replacecommit" and not plan.cancellable:
            clustering |= dict.fromkeys(plan.file_groups, instant.requested_at)
        else:
            compacting |= plan.file_groups
    return clustering, frozenset(compacting)


def raise_worker_errors(task: WriteTask, outcomes: Sequence[WriteStatus]) -> None:
    """Raise what a worker gave up with; nothing of the write stays."""
    errors = [outcome.error for outcome in outcomes if outcome.error is not None]
    if not errors:
        return
    # These attempts have ended: their markers need not age. A writer that was taken for dead and
    # rolled back may have no markers left, so the files are deleted by their statistics.
    paths = [path for outcome in outcomes for stat in outcome.stats for path in stat.paths]
    if paths:
        with suppress(UnavailableError):
            task.storage.delete_many(paths)
            delete_markers_for(task.storage, task.instant, paths)
    raise errors[0]


def _metadata(
    task: WriteTask, request: WriteRequest, outcomes: Sequence[WriteStatus]
) -> CommitMetadata:
    stats: dict[str, list[WriteStat]] = {}
    replaced: dict[str, tuple[str, ...]] = {}
    for outcome in outcomes:
        replaced |= outcome.replaced
        for stat in outcome.stats:
            stats.setdefault(stat.partition_path or "", []).append(stat)
    static = task.settings.overwrite_mode == "static"
    if request.operation is Operation.INSERT_OVERWRITE_TABLE or (
        request.operation is Operation.INSERT_OVERWRITE and static
    ):
        replaced = _groups_in(task.snapshot, task.snapshot.files())
    elif request.operation is Operation.DELETE_PARTITION:
        named = match_partitions(task.snapshot, request.patterns, exact=request.exact)
        replaced = _groups_in(task.snapshot, named)
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
    """The partitions that fit one of the patterns; only patterns make a listing of all needed."""
    if exact:
        return snapshot.files(patterns)
    wild = any(set("*?") & set(pattern) for pattern in patterns)
    files = snapshot.files(None if wild else [pattern.strip("/") for pattern in patterns])
    return {path: names for path, names in files.items() if matches_any(path, patterns)}


def _groups_in(snapshot: Snapshot, files: FilesByPartition) -> dict[str, tuple[str, ...]]:
    found: dict[str, list[str]] = {}
    for group in snapshot.groups(snapshot.view(), files):
        found.setdefault(group.partition, []).append(group.file_id)
    return {partition: tuple(ids) for partition, ids in found.items()}


def _check_unique_base_files(stats: Mapping[str, Sequence[WriteStat]]) -> None:
    """Two base files of one group by one write would hide each other's rows."""
    bases = Counter(
        (partition, stat.file_id)
        for partition, items in stats.items()
        for stat in items
        if not stat.log_files
    )
    twins = [key for key, count in bases.items() if count > 1]
    if twins:
        raise CorruptError("two tasks wrote the same file group", groups=twins[:5])
