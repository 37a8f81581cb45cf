"""The source `hudi`: the writes of a table since a checkpoint, in completion order."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, ClassVar, Generic, Self, TypeVar

from lakewright.errors import InvalidError
from lakewright.ingestion.checkpoints import (
    INITIAL,
    Checkpoint,
    TimelinePosition,
    Version,
    lag_ms,
    parse_override,
    position_of,
)
from lakewright.ingestion.options import (
    MISSING_CHECKPOINT,
    PATH,
    REFUSED_TABLE_SOURCE_OPTIONS,
    TABLE_SOURCE_KEYS,
    MissingCheckpoint,
    TableSourceSettings,
    is_for_tables,
)
from lakewright.ingestion.source import Batch, IncrementalQueryRunner, Source
from lakewright.ingestion.splitters import (
    SnapshotLoadQuerySplitter,
    brought,
    split_load,
    splitter_for,
    up_to,
)
from lakewright.model.instant import Instant
from lakewright.model.schema import META_COLUMNS, PARTITION_PATH
from lakewright.options import ignored_options, settings_from
from lakewright.scan.planner import (
    EARLIEST,
    IncrementalQueryAnalyzer,
    QueryContext,
    RangeType,
    in_completion_order,
    plan_range,
)
from lakewright.scan.scan_plan import ScanPlan
from lakewright.spark.reader import scan_slices
from lakewright.storage.base import Storage
from lakewright.storage.factory import storage_for, storage_options
from lakewright.table.snapshot import Snapshot, load_consistent_snapshot

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Rows = TypeVar("Rows")


@dataclass(frozen=True)
class IncrementalBatchPlan:
    """The range of the timeline that the next batch reads; `context` is None if there is none.

    `checkpoint` is the checkpoint after the batch. `waiting` is the number of instants left for
    later batches, and `newest` is the completion time of the newest one.
    """

    context: QueryContext | None
    checkpoint: Checkpoint | None
    waiting: int = 0
    newest: str | None = None


@dataclass(frozen=True)
class TableBatch(Generic[Rows]):
    """The rows of a batch, if any, and the checkpoint after it."""

    rows: Rows | None
    checkpoint: Checkpoint | None
    facts: Mapping[str, int | str]


def plan_batch(
    snapshot: Snapshot,
    after: Checkpoint | None,
    settings: TableSourceSettings,
    splitter: SnapshotLoadQuerySplitter | None = None,
) -> IncrementalBatchPlan:
    """Plan the next batch; if there is nothing to read, the checkpoint stays the same."""
    if after is None and settings.beginning is None:
        raise InvalidError(
            "there is no checkpoint to go on from: say where to begin, READ_LATEST or "
            "READ_UPTO_LATEST_COMMIT",
            option=MISSING_CHECKPOINT,
        )
    if after is None and settings.beginning is MissingCheckpoint.READ_LATEST:
        position, unread = TimelinePosition(""), latest_write(snapshot)
        if unread.is_empty:
            # All writes from now on are to be read, also if there are several before the next call.
            return IncrementalBatchPlan(None, Checkpoint(INITIAL, Version.V2))
    else:
        position = TimelinePosition(EARLIEST) if after is None else position_of(after, snapshot)
        unread = _unread(snapshot, position)
    context = _next_batch(unread, position, settings, splitter)
    if context is None:
        return IncrementalBatchPlan(None, after)
    end = max(context.checkpoint or "", position.through)
    checkpoint = Checkpoint(end, Version.V2, None if after is None else after.reset)
    waiting = 0 if context is unread else len(unread.instants) - len(context.instants)
    return IncrementalBatchPlan(context, checkpoint, waiting, unread.last_completed)


def _unread(snapshot: Snapshot, position: TimelinePosition) -> QueryContext:
    context = IncrementalQueryAnalyzer(snapshot=snapshot, begin=position.begin).analyze()
    if not position.already_read:
        return context
    instants = tuple(i for i in context.instants if i.requested_at not in position.already_read)
    return replace(context, instants=instants)


def latest_write(snapshot: Snapshot) -> QueryContext:
    """Return the range of the last write that wrote rows, and the services after it."""
    analyzer = IncrementalQueryAnalyzer(snapshot=snapshot, range_type=RangeType.CLOSED_CLOSED)
    write = _last_write(snapshot, snapshot.timeline.by_completion)
    write = write or _last_write(snapshot, tuple(in_completion_order(snapshot.archived)))
    if write is None:
        return analyzer.analyze()
    return replace(analyzer, begin=write.completed_at).analyze()


def _last_write(snapshot: Snapshot, instants: tuple[Instant, ...]) -> Instant | None:
    newest_first = QueryContext(snapshot, None, None, instants[::-1], None, None)
    return next((i for i, commit in brought(newest_first) if commit is not None), None)


def _next_batch(
    unread: QueryContext,
    position: TimelinePosition,
    settings: TableSourceSettings,
    splitter: SnapshotLoadQuerySplitter | None,
) -> QueryContext | None:
    """Return the part of the unread range that fits into a batch, with the services that follow it.

    None if no write wrote rows; a range from the beginning may have rows that the timeline no
    longer records. A load, from the beginning or of archived instants, is bounded by the splitter;
    any other range is bounded by a number of writes.
    """
    if unread.is_empty or not (unread.from_beginning or _has_rows(unread)):
        return None
    if splitter is not None and (unread.from_beginning or unread.archived):
        return split_load(unread, splitter, min_end=position.through)
    return unread if unread.from_beginning else _bounded(unread, settings.num_instants, position)


def _has_rows(unread: QueryContext) -> bool:
    return any(commit is not None for _, commit in brought(unread))


def _bounded(unread: QueryContext, max_writes: int, position: TimelinePosition) -> QueryContext:
    writes, last_completed = 0, ""
    for instant, commit in brought(unread):
        completed_at = instant.completed_at or ""
        if commit is not None and writes >= max_writes and completed_at > position.through:
            return up_to(unread, last_completed)
        writes += commit is not None
        last_completed = completed_at
    return unread


@dataclass(frozen=True)
class HoodieSourceIncrementalQueryRunner(
    IncrementalQueryRunner[IncrementalBatchPlan, TableBatch[Rows]]
):
    """The three steps for a table: instants of its timeline, their rows, and metrics.

    `read` converts a scan plan to rows.
    """

    snapshot: Snapshot
    after: Checkpoint | None
    settings: TableSourceSettings
    read: Callable[[ScanPlan], Rows]
    splitter: SnapshotLoadQuerySplitter | None = None

    def get_metadata(self) -> IncrementalBatchPlan:
        """Return the plan of the next batch."""
        return plan_batch(self.snapshot, self.after, self.settings, self.splitter)

    def fetch_data(self, metadata: IncrementalBatchPlan) -> TableBatch[Rows]:
        """Return the rows of the batch, without the Hudi meta columns."""
        if metadata.context is None:
            return TableBatch(None, metadata.checkpoint, {"bytes": 0})
        plan = plan_range(metadata.context, fallback=self.settings.fallback)
        plan = replace(plan, columns=tuple(filter(self._is_selected, plan.columns)))
        size = sum(item.size for item in plan.slices)
        rows = self.read(plan) if plan.slices else None
        return TableBatch(rows, metadata.checkpoint, {"bytes": size})

    def _is_selected(self, column: str) -> bool:
        is_partition_path = column == PARTITION_PATH and not self.settings.drop_meta_fields
        return is_partition_path or column not in META_COLUMNS

    def post_actions(
        self, metadata: IncrementalBatchPlan, data: TableBatch[Rows]
    ) -> TableBatch[Rows]:
        """Add metrics: bytes to read, instants read and left, and the lag of the batch."""
        instants = 0 if metadata.context is None else len(metadata.context.instants)
        metrics = {"instants": instants, "instants_waiting": metadata.waiting}
        lag = self._lag_ms(metadata)
        if lag is not None:
            metrics["lag_ms"] = lag
        return replace(data, facts={**data.facts, **metrics})

    def _lag_ms(self, metadata: IncrementalBatchPlan) -> int | None:
        """Return the time from the end of the batch to the newest completion; None if unknown."""
        if metadata.context is None or metadata.checkpoint is None or metadata.newest is None:
            return 0
        zone = self.snapshot.config.timeline_zone
        return lag_ms(metadata.newest, metadata.checkpoint.text, zone)


@dataclass(frozen=True)
class HudiTableSource(Source):
    """The writes of a table, a few in each batch; checkpoints are completion times."""

    name: ClassVar[str] = "hudi"
    keys: ClassVar[frozenset[str]] = TABLE_SOURCE_KEYS

    storage: Storage
    settings: TableSourceSettings
    splitter: SnapshotLoadQuerySplitter | None = None

    @classmethod
    def from_options(cls, options: Mapping[str, str]) -> Self:
        """Create the source from options, with the splitter that they name or imply."""
        source_options = {key: value for key, value in options.items() if is_for_tables(key)}
        ignored_options(source_options, TABLE_SOURCE_KEYS, REFUSED_TABLE_SOURCE_OPTIONS)
        settings = settings_from(TableSourceSettings, options)
        if not settings.path:
            raise InvalidError("a table as a source needs its path", option=PATH)
        storage = storage_for(settings.path, storage_options(options))
        return cls(storage, settings, splitter_for(options))

    def resume_from(self, text: str) -> Checkpoint:
        """Parse an override in Hudi's syntax; see `parse_override`."""
        return parse_override(text)

    def next_batch(self, spark: SparkSession, after: Checkpoint | None) -> Batch:
        """Return the rows of the next writes; without rows, the checkpoint stays the same."""
        runner: HoodieSourceIncrementalQueryRunner[DataFrame] = HoodieSourceIncrementalQueryRunner(
            load_consistent_snapshot(self.storage),
            after,
            self.settings,
            partial(scan_slices, spark, self.storage),
            self.splitter,
        )
        batch = runner.run()
        return Batch(batch.rows, batch.checkpoint, batch.facts)
