"""Which objects the events table tells of since a place: the three steps on that table.

Spark filters, takes the newest event of each object, and orders; only as many events come to the
driver as a batch may have.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql import functions as F
from pyspark.sql.pandas.functions import arrow_udf

from lakewright.core.meta_columns import COMMIT_TIME
from lakewright.core.table_config import TableType
from lakewright.read.incremental import EARLIEST, IncrementalQueryAnalyzer, QueryContext, RangeType
from lakewright.read.query import plan_context
from lakewright.read.run import scan
from lakewright.read.workers.run import SPARK_ERRORS, require_workers
from lakewright.sources.cloud.position import Position
from lakewright.sources.cloud.selection import (
    CloudObject,
    ObjectFilter,
    Selection,
    complete_places,
    select,
)
from lakewright.sources.cloud.settings import EventTableSettings
from lakewright.sources.cloud.stores import EventShape
from lakewright.sources.hudi_table import latest_write
from lakewright.sources.runner import IncrementalQueryRunner
from lakewright.sources.settings import MissingCheckpoint
from lakewright.sources.splitters import SnapshotLoadQuerySplitter, split_load
from lakewright.table.snapshot import Snapshot
from lakewright.write.run import failure_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import Column, DataFrame, SparkSession

_BEFORE_ALL = "0" * 17
_UNKNOWN = "lakewright: the commit of an event is not on the timeline of its table"
_FIELDS = ("completed_at", "bucket", "key", "path", "size", "time")


@dataclass(frozen=True)
class CloudMetadataIncrementalQueryRunner(IncrementalQueryRunner[QueryContext, Selection]):
    """The objects of the next batch, from the commits of the events table after a place.

    `missing` gives those of some objects that are not in their store any more.
    """

    spark: SparkSession
    snapshot: Snapshot
    shape: EventShape
    wanted: ObjectFilter
    table: EventTableSettings
    after: Position | None = None
    missing: Callable[[Sequence[CloudObject]], Sequence[CloudObject]] | None = None
    splitter: SnapshotLoadQuerySplitter | None = None

    def get_metadata(self) -> QueryContext:
        """The commits that may hold unread events.

        A place within a commit has that commit looked at again.
        """
        if self.after is None and self.table.missing is MissingCheckpoint.READ_LATEST:
            return latest_write(self.snapshot)
        begin, within = self._beginning, False
        if self.after is not None:
            begin, within = self.after.completed_at, self.after.key is not None
        # A limit counts the commits after the one that was begun.
        most = self.table.instants
        context = IncrementalQueryAnalyzer(
            snapshot=self.snapshot,
            begin=begin,
            limit=None if most is None else most + within,
            range_type=RangeType.CLOSED_CLOSED if within else RangeType.OPEN_CLOSED,
        ).analyze()
        is_load = self.after is None or bool(context.archived)
        return split_load(context, self.splitter) if self.splitter and is_load else context

    @property
    def _beginning(self) -> str:
        # Rows that a log compaction moved carry its time in a snapshot, and their own in a range:
        # an event must not be at one place in this batch and at another in the next.
        merges = self.snapshot.config.table_type is TableType.MERGE_ON_READ
        return _BEFORE_ALL if merges else EARLIEST

    def fetch_data(self, metadata: QueryContext) -> Selection:
        """The objects of the batch: the first that are unread, as many as the limits allow."""
        limits = self.wanted.settings
        choose = partial(
            select,
            after=self.after,
            until=metadata.checkpoint,
            most_files=limits.most_files,
            most_bytes=limits.most_bytes,
        )
        if metadata.is_empty:
            return choose(())
        unread = self._unread(metadata)
        asked = limits.most_files + 1
        page = _page(unread, asked)
        # A place that is in more buckets than a batch may have objects.
        while page and not complete_places(page, asked):
            asked *= 2
            page = _page(unread, asked)
        chosen = choose(complete_places(page, asked))
        if len(page) < asked:
            return chosen
        # Who is that far behind wants to know how far, and can wait for it.
        return replace(chosen, waiting=_count(unread) - len(chosen.objects))

    def post_actions(self, metadata: QueryContext, data: Selection) -> Selection:
        """The same without objects that are gone, if that is asked for."""
        if self.missing is None or not data.objects:
            return data
        return data.without(self.missing(data.objects))

    def _unread(self, context: QueryContext) -> DataFrame:
        """The wanted objects after the place, each by its newest event; not ordered yet."""
        require_workers(self.spark)
        shape = self.shape
        plan = plan_context(
            context, columns=[COMMIT_TIME, *shape.columns], fallback=self.table.fallback
        )
        # One expression in words: every call of a function on a column is a round trip to the JVM.
        events = (
            scan(self.spark, self.snapshot.storage, plan)
            .where(shape.only)
            .selectExpr(
                f"`{COMMIT_TIME}` AS requested_at",
                f"{shape.bucket} AS bucket",
                f"{shape.key} AS key",
                f"{shape.size} AS size",
                f"{shape.time} AS time",
            )
            .where("size > 0")
        )
        timed = events.join(F.broadcast(self._times(context)), "requested_at", "left")
        timed = timed.selectExpr(
            f"coalesce(completed_at, CAST(raise_error('{_UNKNOWN}') AS STRING)) AS completed_at",
            *("bucket", "key", "size", "time"),
        )
        if self.after is not None:
            timed = timed.where(_is_after(self.after))
        named = timed.withColumn("path", self._path(F.col("key"), F.col("size")))
        latest = (
            named.where("path IS NOT NULL")
            .groupBy("bucket", "path")
            .agg(F.expr("max(struct(time, completed_at, key, size)) AS event"))
        )
        fields = (name if name in ("bucket", "path") else f"event.{name}" for name in _FIELDS)
        return latest.selectExpr(*fields)

    def _times(self, context: QueryContext) -> DataFrame:
        """When the commits completed, by what rows carry."""
        instants = [(i.requested_at, i.completed_at) for i in context.instants]
        requested, completed = zip(*instants, strict=True)
        table = pa.table({"requested_at": requested, "completed_at": completed})
        return self.spark.createDataFrame(table)

    @cached_property
    def _path(self) -> Callable[..., Column]:
        wanted = self.wanted

        def paths(keys: pa.Array, sizes: pa.Array) -> pa.Array:
            pairs = zip(keys.to_pylist(), sizes.to_pylist(), strict=True)
            return pa.array([wanted.path_of(key, size) for key, size in pairs], pa.string())

        make: Callable[..., Callable[..., Column]] = arrow_udf
        return make(paths, "string")


def _page(events: DataFrame, most: int) -> list[CloudObject]:
    """The first events in the order of reading."""
    try:
        rows = events.orderBy("completed_at", "key", "bucket").limit(most).toArrow()
    except SPARK_ERRORS as error:
        raise failure_of(error) from error
    return [CloudObject(**{**row, "time": row["time"] or ""}) for row in rows.to_pylist()]


def _count(events: DataFrame) -> int:
    try:
        return events.count()
    except SPARK_ERRORS as error:
        raise failure_of(error) from error


def _is_after(place: Position) -> Column:
    later = F.col("completed_at") > F.lit(place.completed_at)
    if place.key is None:
        return later
    same = F.col("completed_at") == F.lit(place.completed_at)
    return later | (same & (F.col("key") > F.lit(place.key)))
