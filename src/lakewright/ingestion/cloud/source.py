"""The source `cloud`: the rows of the objects that an events table lists.

This is the second stage of ingesting cloud objects. Spark filters the events, takes the newest one
of each object and orders them; the driver receives only as many events as a batch may have.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, ClassVar, Self

import pyarrow as pa
from pyspark.sql import functions as F
from pyspark.sql.pandas.functions import arrow_udf

from lakewright.clock import Clock, SystemClock
from lakewright.errors import InvalidError
from lakewright.ingestion.checkpoints import (
    RESUME_COMPLETED,
    RESUME_REQUESTED,
    Checkpoint,
    Version,
    lag_ms,
)
from lakewright.ingestion.cloud.events import quarantine_of
from lakewright.ingestion.cloud.objects import ObjectReader, ObjectRows
from lakewright.ingestion.cloud.options import (
    OBJECT_KEYS,
    REFUSED_CLOUD_OPTIONS,
    EventTableSettings,
    ObjectSettings,
    QuarantineSettings,
    SelectionSettings,
    UnreadablePolicy,
    required,
)
from lakewright.ingestion.cloud.quarantine import Quarantine, QuarantinedRecord
from lakewright.ingestion.cloud.selection import (
    CloudObject,
    EventShape,
    ObjectFilter,
    ObjectPosition,
    Selection,
    complete_positions,
    parse_position,
    requested_position,
    select,
    shape_of,
    translated,
)
from lakewright.ingestion.hudi_table import latest_write
from lakewright.ingestion.options import MissingCheckpoint
from lakewright.ingestion.source import Batch, IncrementalQueryRunner, Source
from lakewright.ingestion.splitters import SnapshotLoadQuerySplitter, split_load, splitter_for
from lakewright.model.schema import COMMIT_TIME
from lakewright.model.table_config import TableType
from lakewright.options import ignored_options, settings_from
from lakewright.scan.planner import (
    EARLIEST,
    IncrementalQueryAnalyzer,
    QueryContext,
    RangeType,
    plan_range,
)
from lakewright.spark.reader import scan_slices
from lakewright.spark.worker_environment import SPARK_ERRORS, require_workers
from lakewright.spark.writer import translate_spark_error
from lakewright.storage.base import Storage
from lakewright.storage.factory import storage_for, storage_options
from lakewright.table.snapshot import Snapshot, load_consistent_snapshot

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import Column, DataFrame, SparkSession

_EARLIEST_TIME = "0" * 17
_NO_INSTANT = "lakewright: the commit of an event is not on the timeline of its table"
_FIELDS = ("completed_at", "bucket", "key", "path", "size", "time")


@dataclass(frozen=True)
class CloudMetadataIncrementalQueryRunner(IncrementalQueryRunner[QueryContext, Selection]):
    """The three steps for an events table, from its commits after a position to objects.

    `missing` returns those of the given objects that do not exist in their store.
    """

    spark: SparkSession
    snapshot: Snapshot
    shape: EventShape
    object_filter: ObjectFilter
    table: EventTableSettings
    after: ObjectPosition | None = None
    missing: Callable[[Sequence[CloudObject]], Sequence[CloudObject]] | None = None
    splitter: SnapshotLoadQuerySplitter | None = None

    def get_metadata(self) -> QueryContext:
        """Return the commits that may contain unread events.

        If the position is within a commit, that commit is read again.
        """
        if self.after is None and self.table.missing is MissingCheckpoint.READ_LATEST:
            return latest_write(self.snapshot)
        begin, is_partial = self._beginning, False
        if self.after is not None:
            begin, is_partial = self.after.completed_at, self.after.key is not None
        # The limit does not count the commit that was partially read.
        max_commits = self.table.instants
        context = IncrementalQueryAnalyzer(
            snapshot=self.snapshot,
            begin=begin,
            limit=None if max_commits is None else max_commits + is_partial,
            range_type=RangeType.CLOSED_CLOSED if is_partial else RangeType.OPEN_CLOSED,
        ).analyze()
        is_load = self.after is None or bool(context.archived)
        return split_load(context, self.splitter) if self.splitter and is_load else context

    @property
    def _beginning(self) -> str:
        # A snapshot query returns rows that a log compaction rewrote with the time of the log
        # compaction, an incremental query with their own. The position of an event must not
        # change between two batches.
        is_merge_on_read = self.snapshot.config.table_type is TableType.MERGE_ON_READ
        return _EARLIEST_TIME if is_merge_on_read else EARLIEST

    def fetch_data(self, metadata: QueryContext) -> Selection:
        """Return the objects of the batch: the first unread ones, up to the limits."""
        limits = self.object_filter.settings
        make_selection = partial(
            select,
            after=self.after,
            until=metadata.checkpoint,
            max_files=limits.max_files,
            max_bytes=limits.max_bytes,
        )
        if metadata.is_empty:
            return make_selection(())
        unread = self._unread(metadata)
        page_size = limits.max_files + 1
        page = _page(unread, page_size)
        # One position may have objects in more buckets than a batch may have objects.
        while page and not complete_positions(page, page_size):
            page_size *= 2
            page = _page(unread, page_size)
        selection = make_selection(complete_positions(page, page_size))
        if len(page) < page_size:
            return selection
        # The count is an extra query, which runs only if the source is this far behind.
        return replace(selection, waiting=_count(unread) - len(selection.objects))

    def post_actions(self, metadata: QueryContext, data: Selection) -> Selection:
        """Remove objects that no longer exist, if that is requested."""
        if self.missing is None or not data.objects:
            return data
        return data.without(self.missing(data.objects))

    def _unread(self, context: QueryContext) -> DataFrame:
        """Return the selected objects after the position, each by its newest event; not ordered."""
        require_workers(self.spark)
        shape = self.shape
        plan = plan_range(
            context, columns=[COMMIT_TIME, *shape.columns], fallback=self.table.fallback
        )
        # SQL expressions, since every function call on a column is a round trip to the JVM.
        events = (
            scan_slices(self.spark, self.snapshot.storage, plan)
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
        with_times = events.join(F.broadcast(self._times(context)), "requested_at", "left")
        with_times = with_times.selectExpr(
            f"coalesce(completed_at, CAST(raise_error('{_NO_INSTANT}') AS STRING)) AS completed_at",
            *("bucket", "key", "size", "time"),
        )
        if self.after is not None:
            with_times = with_times.where(_is_after(self.after))
        with_paths = with_times.withColumn("path", self._path(F.col("key"), F.col("size")))
        latest = (
            with_paths.where("path IS NOT NULL")
            .groupBy("bucket", "path")
            .agg(F.expr("max(struct(time, completed_at, key, size)) AS event"))
        )
        fields = (name if name in ("bucket", "path") else f"event.{name}" for name in _FIELDS)
        return latest.selectExpr(*fields)

    def _times(self, context: QueryContext) -> DataFrame:
        """Return the completion times of the commits, by the requested time that rows contain."""
        instants = [(i.requested_at, i.completed_at) for i in context.instants]
        requested, completed = zip(*instants, strict=True)
        table = pa.table({"requested_at": requested, "completed_at": completed})
        return self.spark.createDataFrame(table)

    @cached_property
    def _path(self) -> Callable[..., Column]:
        object_filter = self.object_filter

        def paths(keys: pa.Array, sizes: pa.Array) -> pa.Array:
            pairs = zip(keys.to_pylist(), sizes.to_pylist(), strict=True)
            return pa.array([object_filter.path_of(key, size) for key, size in pairs], pa.string())

        make_udf: Callable[..., Callable[..., Column]] = arrow_udf
        return make_udf(paths, "string")


def _page(events: DataFrame, limit: int) -> list[CloudObject]:
    """Return the first events in reading order."""
    try:
        rows = events.orderBy("completed_at", "key", "bucket").limit(limit).toArrow()
    except SPARK_ERRORS as error:
        raise translate_spark_error(error) from error
    return [CloudObject(**{**row, "time": row["time"] or ""}) for row in rows.to_pylist()]


def _count(events: DataFrame) -> int:
    try:
        return events.count()
    except SPARK_ERRORS as error:
        raise translate_spark_error(error) from error


def _is_after(position: ObjectPosition) -> Column:
    is_later = F.col("completed_at") > F.lit(position.completed_at)
    if position.key is None:
        return is_later
    is_same = F.col("completed_at") == F.lit(position.completed_at)
    return is_later | (is_same & (F.col("key") > F.lit(position.key)))


# The rows of the selected objects.


@dataclass(frozen=True)
class CloudEventsSourceIncrementalQueryRunner(IncrementalQueryRunner[Selection, ObjectRows]):
    """The three steps for objects: select them, read their rows, handle the unreadable ones.

    The first step runs the three steps on the events table.
    """

    events: CloudMetadataIncrementalQueryRunner
    reader: ObjectReader
    quarantine: Quarantine | None = None

    def get_metadata(self) -> Selection:
        """Return the objects of the next batch."""
        return self.events.run()

    def fetch_data(self, metadata: Selection) -> ObjectRows:
        """Return the rows of the objects."""
        return self.reader.read(metadata.objects) if metadata.objects else ObjectRows(None)

    def post_actions(self, metadata: Selection, data: ObjectRows) -> ObjectRows:
        """Quarantine unreadable objects, or warn, before a commit passes over them."""
        quarantined = [
            QuarantinedRecord(
                f"{self.events.shape.scheme}://{unreadable.item.bucket}/{unreadable.item.path}",
                unreadable.problem or "",
                size=unreadable.item.size,
            )
            for unreadable in data.unreadable
        ]
        if (
            quarantined
            and self.reader.unreadable_policy is UnreadablePolicy.QUARANTINE
            and self.quarantine is not None
        ):
            self.quarantine.put(quarantined)
        elif quarantined:
            warnings.warn(
                f"{len(quarantined)} objects were passed over, their rows are not read: "
                f"{quarantined[0].location}: {quarantined[0].reason}",
                RuntimeWarning,
                stacklevel=3,
            )
        return data


class CloudObjectsSource(Source):
    """The objects of an events table, in the completion order of their events' commits."""

    name: ClassVar[str] = "cloud"
    keys: ClassVar[frozenset[str]] = OBJECT_KEYS

    def __init__(
        self,
        storage: Storage,
        options: Mapping[str, str],
        clock: Clock | None = None,
    ) -> None:
        """Create the source.

        Args:
            storage: The storage of the events table.
            options: All options, including storage options.
            clock: The clock; the system clock if omitted.
        """
        self._storage = storage
        self._clock = clock or SystemClock()
        self._storage_options = storage_options(options)
        self._table = settings_from(EventTableSettings, options)
        self._selection = settings_from(SelectionSettings, options)
        self._objects = settings_from(ObjectSettings, options)
        self._splitter = splitter_for(options)
        quarantine_settings = settings_from(QuarantineSettings, options)
        self._unreadable_policy = quarantine_settings.bad_objects
        self._quarantine = quarantine_of(quarantine_settings, options, self.name, clock)
        if self._unreadable_policy is UnreadablePolicy.QUARANTINE and self._quarantine is None:
            raise InvalidError(
                "a quarantine needs a table", option="lakewright.source.quarantine.path"
            )
        self._last: ObjectRows | None = None

    @classmethod
    def from_options(cls, options: Mapping[str, str]) -> Self:
        """Create the source from options."""
        refused = {key: value for key, value in options.items() if key in REFUSED_CLOUD_OPTIONS}
        ignored_options(refused, (), REFUSED_CLOUD_OPTIONS)
        path = required(settings_from(EventTableSettings, options).path, "source.hoodieincr.path")
        return cls(storage_for(path, storage_options(options)), options)

    def resume_from(self, text: str) -> Checkpoint:
        """Parse `<time>` or `<time>#<key>`, optionally after the kind of time and a colon.

        By default the time is a completion time.
        """
        kind, colon, rest = text.partition(":")
        version = {RESUME_REQUESTED: Version.V1, RESUME_COMPLETED: Version.V2}.get(kind.strip())
        position = (rest if colon and version is not None else text).lstrip()
        checkpoint = Checkpoint(position, version or Version.V2, reset=text)
        parse_position(checkpoint)
        return checkpoint

    def next_batch(self, spark: SparkSession, after: Checkpoint | None) -> Batch:
        """Return the rows of the next objects; without objects, the checkpoint may still advance.

        It does not advance if no events were passed over, so that an idle source makes no commits.
        """
        self._delete_copies()
        snapshot = load_consistent_snapshot(self._storage)
        if snapshot.avro_schema() is None:
            return Batch(None, after)
        position = _position(after, snapshot)
        runner = self._runner(spark, snapshot, position)
        selection = runner.get_metadata()
        objects = runner.post_actions(selection, runner.fetch_data(selection))
        self._last = objects
        is_unchanged = not selection.objects and selection.position == position
        if is_unchanged or selection.position is None:
            return Batch(None, after, self._facts(snapshot, selection, objects))
        checkpoint = replace(
            _checkpoint(selection.position, snapshot),
            reset=after.reset if after is not None else None,
        )
        facts = self._facts(snapshot, selection, objects)
        return Batch(objects.rows, checkpoint, facts, self._delete_copies)

    def _runner(
        self, spark: SparkSession, snapshot: Snapshot, position: ObjectPosition | None
    ) -> CloudEventsSourceIncrementalQueryRunner:
        shape = _shape(snapshot)
        address = self._objects.address or f"{shape.scheme}://{{bucket}}"
        reader = ObjectReader(
            spark,
            self._objects,
            address,
            self._storage_options,
            self._clock,
            self._unreadable_policy,
            frozenset(self._selection.buckets) or None,
        )
        events = CloudMetadataIncrementalQueryRunner(
            spark=spark,
            snapshot=snapshot,
            shape=shape,
            object_filter=self._filter(shape),
            table=self._table,
            after=position,
            splitter=self._splitter,
            missing=reader.missing if self._selection.check_existence else None,
        )
        return CloudEventsSourceIncrementalQueryRunner(events, reader, self._quarantine)

    def _filter(self, shape: EventShape) -> ObjectFilter:
        settings = self._selection
        extensions = (self._objects.format,) if settings.extensions is None else settings.extensions
        encoded = shape.encoded if settings.encoded is None else settings.encoded
        return ObjectFilter(settings, extensions, encoded)

    def _facts(
        self, snapshot: Snapshot, selection: Selection, objects: ObjectRows
    ) -> dict[str, int | str]:
        facts: dict[str, int | str] = {
            "bytes": selection.size,
            "objects": len(selection.objects),
            "objects_waiting": selection.waiting,
            "objects_bad": len(objects.unreadable),
            "objects_missing": selection.missing,
        }
        lag = _lag_ms(snapshot, selection.position)
        return facts if lag is None else {**facts, "lag_ms": lag}

    def _delete_copies(self) -> None:
        """Delete the local copies of the objects of the last batch."""
        if self._last is not None:
            self._last.delete_copies()
            self._last = None


def _shape(snapshot: Snapshot) -> EventShape:
    return shape_of(snapshot.schema(snapshot.view()).names)


def _position(after: Checkpoint | None, snapshot: Snapshot) -> ObjectPosition | None:
    """Return the position of a checkpoint in the events table; None is the beginning."""
    position = None if after is None else parse_position(after)
    if position is None or after is None or after.version is Version.V2:
        return position
    return translated(position, (*snapshot.archived, *snapshot.timeline.completed_writes))


def _checkpoint(position: ObjectPosition, snapshot: Snapshot) -> Checkpoint:
    """Return the checkpoint of a position, with the one by which Hudi's sources go on."""
    archived = snapshot.archived_after(position.completed_at)
    pending = (i for i in snapshot.timeline.pending() if i.is_write)
    writes = (*archived, *snapshot.timeline.completed_writes, *pending)
    return position.checkpoint(requested_position(position, writes))


def _lag_ms(snapshot: Snapshot, position: ObjectPosition | None) -> int | None:
    """Return the time from a position to the newest commit of the events table; None if unknown."""
    newest = snapshot.timeline.by_completion[-1:]
    if position is None or not newest:
        return 0
    zone = snapshot.config.timeline_zone
    return lag_ms(newest[0].completed_at or "", position.completed_at, zone)
