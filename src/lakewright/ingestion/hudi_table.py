"""A table as a source: what its writes brought since a checkpoint, in the order of completion."""

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
    """What the next batch reads of a table: a range of its timeline, or nothing.

    `checkpoint` is where the batch after this one goes on; `waiting` counts the instants that are
    left for it, of which `newest` completed last.
    """

    context: QueryContext | None
    checkpoint: Checkpoint | None
    waiting: int = 0
    newest: str | None = None


@dataclass(frozen=True)
class TableBatch(Generic[Rows]):
    """The rows of a batch, if it has any, and where the next one goes on."""

    rows: Rows | None
    checkpoint: Checkpoint | None
    facts: Mapping[str, int | str]


def plan_batch(
    snapshot: Snapshot,
    after: Checkpoint | None,
    settings: TableSourceSettings,
    splitter: SnapshotLoadQuerySplitter | None = None,
) -> IncrementalBatchPlan:
    """Decide what the next batch reads; with nothing to read the checkpoint stays what it is."""
    if after is None and settings.beginning is None:
        raise InvalidError(
            "there is no checkpoint to go on from: say where to begin, READ_LATEST or "
            "READ_UPTO_LATEST_COMMIT",
            option=MISSING_CHECKPOINT,
        )
    if after is None and settings.beginning is MissingCheckpoint.READ_LATEST:
        position, unread = TimelinePosition(""), latest_write(snapshot)
        if unread.is_empty:
            # All that is written from now on is wanted, however much it is at the next look.
            return IncrementalBatchPlan(None, Checkpoint(INITIAL, Version.V2))
    else:
        position = TimelinePosition(EARLIEST) if after is None else position_of(after, snapshot)
        unread = _unread(snapshot, position)
    context = _next_batch(unread, position, settings, splitter)
    if context is None:
        return IncrementalBatchPlan(None, after)
    end = max(context.checkpoint or "", position.through)
    checkpoint = Checkpoint(end, Version.V2, None if after is None else after.reset)
    waiting = len(unread.instants) - len(context.instants)
    return IncrementalBatchPlan(context, checkpoint, waiting, unread.last_completed)


def _unread(snapshot: Snapshot, position: TimelinePosition) -> QueryContext:
    context = IncrementalQueryAnalyzer(snapshot=snapshot, begin=position.begin).analyze()
    kept = tuple(i for i in context.instants if i.requested_at not in position.seen)
    return replace(context, instants=kept)


def latest_write(snapshot: Snapshot) -> QueryContext:
    """The last write that brought rows, and the services after it."""
    analyzer = IncrementalQueryAnalyzer(snapshot=snapshot, range_type=RangeType.CLOSED_CLOSED)
    found = _last_write(snapshot, snapshot.timeline.by_completion)
    found = found or _last_write(snapshot, tuple(in_completion_order(snapshot.archived)))
    if found is None:
        return analyzer.analyze()
    return replace(analyzer, begin=found.completed_at).analyze()


def _last_write(snapshot: Snapshot, instants: tuple[Instant, ...]) -> Instant | None:
    newest_first = QueryContext(snapshot, None, None, instants[::-1], None, None)
    return next((i for i, commit in brought(newest_first) if commit is not None), None)


def _next_batch(
    unread: QueryContext,
    position: TimelinePosition,
    settings: TableSourceSettings,
    splitter: SnapshotLoadQuerySplitter | None,
) -> QueryContext | None:
    """The part of what is unread that fits into a batch, with the services that follow it.

    Nothing where no write has brought rows; before the beginning there may be some that history
    does not know. A load, from the beginning or through history, is bounded by the splitter,
    everything else by a number of writes.
    """
    if unread.is_empty or not (unread.from_beginning or _brings(unread)):
        return None
    if splitter is not None and (unread.from_beginning or unread.archived):
        return split_load(unread, splitter, least=position.through)
    return unread if unread.from_beginning else _bounded(unread, settings.num_instants, position)


def _brings(unread: QueryContext) -> bool:
    return any(commit is not None for _, commit in brought(unread))


def _bounded(unread: QueryContext, most: int, position: TimelinePosition) -> QueryContext:
    writes, last = 0, ""
    for instant, commit in brought(unread):
        completed_at = instant.completed_at or ""
        if commit is not None and writes >= most and completed_at > position.through:
            return up_to(unread, last)
        writes += commit is not None
        last = completed_at
    return unread


@dataclass(frozen=True)
class HoodieSourceIncrementalQueryRunner(
    IncrementalQueryRunner[IncrementalBatchPlan, TableBatch[Rows]]
):
    """The three steps on a table: instants from its timeline, their rows, figures about them.

    `read` turns a plan into rows: on Spark, or in a plain loop.
    """

    snapshot: Snapshot
    after: Checkpoint | None
    settings: TableSourceSettings
    read: Callable[[ScanPlan], Rows]
    splitter: SnapshotLoadQuerySplitter | None = None

    def get_metadata(self) -> IncrementalBatchPlan:
        """The instants of the next batch."""
        return plan_batch(self.snapshot, self.after, self.settings, self.splitter)

    def fetch_data(self, metadata: IncrementalBatchPlan) -> TableBatch[Rows]:
        """Their rows, without the meta columns that say how the table keeps them."""
        if metadata.context is None:
            return TableBatch(None, metadata.checkpoint, {"bytes": 0})
        plan = plan_range(metadata.context, fallback=self.settings.fallback)
        plan = replace(plan, columns=tuple(filter(self._wanted, plan.columns)))
        size = sum(item.size for item in plan.slices)
        rows = self.read(plan) if plan.slices else None
        return TableBatch(rows, metadata.checkpoint, {"bytes": size})

    def _wanted(self, column: str) -> bool:
        kept = column == PARTITION_PATH and not self.settings.drop_meta_fields
        return kept or column not in META_COLUMNS

    def post_actions(
        self, metadata: IncrementalBatchPlan, data: TableBatch[Rows]
    ) -> TableBatch[Rows]:
        """Figures: bytes to read, instants read and waiting, and how far behind the batch ends."""
        instants = 0 if metadata.context is None else len(metadata.context.instants)
        told = {"instants": instants, "instants_waiting": metadata.waiting}
        lag = self._lag_ms(metadata)
        if lag is not None:
            told["lag_ms"] = lag
        return replace(data, facts={**data.facts, **told})

    def _lag_ms(self, metadata: IncrementalBatchPlan) -> int | None:
        """From the end of the batch to the newest completion; None if times are no dates."""
        if metadata.context is None or metadata.checkpoint is None or metadata.newest is None:
            return 0
        zone = self.snapshot.config.timeline_zone
        return lag_ms(metadata.newest, metadata.checkpoint.text, zone)


@dataclass(frozen=True)
class HudiTableSource(Source):
    """The writes of a table, a few at a time; checkpoints are completion times."""

    name: ClassVar[str] = "hudi"
    keys: ClassVar[frozenset[str]] = TABLE_SOURCE_KEYS

    storage: Storage
    settings: TableSourceSettings
    splitter: SnapshotLoadQuerySplitter | None = None

    @classmethod
    def from_options(cls, options: Mapping[str, str]) -> Self:
        """The table that options describe, with the splitter that they name or imply."""
        own = {key: value for key, value in options.items() if is_for_tables(key)}
        ignored_options(own, TABLE_SOURCE_KEYS, REFUSED_TABLE_SOURCE_OPTIONS)
        settings = settings_from(TableSourceSettings, options)
        if not settings.path:
            raise InvalidError("a table as a source needs its path", option=PATH)
        storage = storage_for(settings.path, storage_options(options))
        return cls(storage, settings, splitter_for(options))

    def resume_from(self, text: str) -> Checkpoint:
        """An override in Hudi's words; see `parse_override`."""
        return parse_override(text)

    def next_batch(self, spark: SparkSession, after: Checkpoint | None) -> Batch:
        """What the next writes brought; without rows the checkpoint given comes back."""
        runner: HoodieSourceIncrementalQueryRunner[DataFrame] = HoodieSourceIncrementalQueryRunner(
            load_consistent_snapshot(self.storage),
            after,
            self.settings,
            partial(scan_slices, spark, self.storage),
            self.splitter,
        )
        found = runner.run()
        return Batch(found.rows, found.checkpoint, found.facts)
