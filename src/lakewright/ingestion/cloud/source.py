"""Which objects the events table tells of since a place: the three steps on that table.

Spark filters, takes the newest event of each object, and orders; only as many events come to the
driver as a batch may have.
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
    complete_places,
    parse_position,
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
    after: ObjectPosition | None = None
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
        plan = plan_range(
            context, columns=[COMMIT_TIME, *shape.columns], fallback=self.table.fallback
        )
        # One expression in words: every call of a function on a column is a round trip to the JVM.
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
        raise translate_spark_error(error) from error
    return [CloudObject(**{**row, "time": row["time"] or ""}) for row in rows.to_pylist()]


def _count(events: DataFrame) -> int:
    try:
        return events.count()
    except SPARK_ERRORS as error:
        raise translate_spark_error(error) from error


def _is_after(place: ObjectPosition) -> Column:
    later = F.col("completed_at") > F.lit(place.completed_at)
    if place.key is None:
        return later
    same = F.col("completed_at") == F.lit(place.completed_at)
    return later | (same & (F.col("key") > F.lit(place.key)))


# ------------------------------------------------------------------------------------------------
# Stage two of cloud events: the rows of the objects that an events table tells of.


@dataclass(frozen=True)
class CloudEventsSourceIncrementalQueryRunner(IncrementalQueryRunner[Selection, ObjectRows]):
    """The three steps on objects: which there are, their rows, what becomes of the bad ones.

    The first step is three steps itself, on the events table.
    """

    events: CloudMetadataIncrementalQueryRunner
    reader: ObjectReader
    quarantine: Quarantine | None = None

    def get_metadata(self) -> Selection:
        """The objects of the next batch."""
        return self.events.run()

    def fetch_data(self, metadata: Selection) -> ObjectRows:
        """Their rows."""
        return self.reader.read(metadata.objects) if metadata.objects else ObjectRows(None)

    def post_actions(self, metadata: Selection, data: ObjectRows) -> ObjectRows:
        """Note what could not be read, before anything is committed that passes over it."""
        bad = [
            QuarantinedRecord(
                f"{self.events.shape.scheme}://{bad.item.bucket}/{bad.item.path}",
                bad.problem or "",
                size=bad.item.size,
            )
            for bad in data.bad
        ]
        if bad and self.reader.bad is UnreadablePolicy.QUARANTINE and self.quarantine is not None:
            self.quarantine.put(bad)
        elif bad:
            warnings.warn(
                f"{len(bad)} objects were passed over, their rows are not read: "
                f"{bad[0].place}: {bad[0].reason}",
                RuntimeWarning,
                stacklevel=3,
            )
        return data


class CloudObjectsSource(Source):
    """The objects of an events table, in the order in which their events' commits completed."""

    name: ClassVar[str] = "cloud"
    keys: ClassVar[frozenset[str]] = OBJECT_KEYS

    def __init__(
        self,
        storage: Storage,
        options: Mapping[str, str],
        clock: Clock | None = None,
    ) -> None:
        """`storage` is that of the events table; `options` are all others, of storages too."""
        self._storage = storage
        self._clock = clock or SystemClock()
        self._places = storage_options(options)
        self._table = settings_from(EventTableSettings, options)
        self._selection = settings_from(SelectionSettings, options)
        self._objects = settings_from(ObjectSettings, options)
        self._splitter = splitter_for(options)
        holding = settings_from(QuarantineSettings, options)
        self._bad = holding.bad_objects
        self._quarantine = quarantine_of(holding, options, self.name, clock)
        if self._bad is UnreadablePolicy.QUARANTINE and self._quarantine is None:
            raise InvalidError(
                "a quarantine needs a table", option="lakewright.source.quarantine.path"
            )
        self._last: ObjectRows | None = None

    @classmethod
    def from_options(cls, options: Mapping[str, str]) -> Self:
        """The source that options describe."""
        refused = {key: value for key, value in options.items() if key in REFUSED_CLOUD_OPTIONS}
        ignored_options(refused, (), REFUSED_CLOUD_OPTIONS)
        path = required(settings_from(EventTableSettings, options).path, "source.hoodieincr.path")
        return cls(storage_for(path, storage_options(options)), options)

    def resume_from(self, text: str) -> Checkpoint:
        """A place as users give it: `<time>` or `<time>#<key>`, after whose time it is, if at all.

        Without a word before it the time is a completion time.
        """
        word, colon, rest = text.partition(":")
        version = {RESUME_REQUESTED: Version.V1, RESUME_COMPLETED: Version.V2}.get(word.strip())
        place = (rest if colon and version is not None else text).lstrip()
        checkpoint = Checkpoint(place, version or Version.V2, reset=text)
        parse_position(checkpoint)
        return checkpoint

    def next_batch(self, spark: SparkSession, after: Checkpoint | None) -> Batch:
        """The rows of the next objects; without any the checkpoint may still move on.

        It does not where nothing was left out, so that an idle source makes no commits.
        """
        self._forget()
        snapshot = load_consistent_snapshot(self._storage)
        if snapshot.avro_schema() is None:
            return Batch(None, after)
        place = _place(after, snapshot)
        runner = self._runner(spark, snapshot, place)
        selection = runner.get_metadata()
        found = runner.post_actions(selection, runner.fetch_data(selection))
        self._last = found
        still = not selection.objects and selection.position == place
        if still or selection.position is None:
            return Batch(None, after, self._facts(snapshot, selection, found))
        checkpoint = replace(
            selection.position.checkpoint(), reset=after.reset if after is not None else None
        )
        facts = self._facts(snapshot, selection, found)
        return Batch(found.rows, checkpoint, facts, self._forget)

    def _runner(
        self, spark: SparkSession, snapshot: Snapshot, place: ObjectPosition | None
    ) -> CloudEventsSourceIncrementalQueryRunner:
        shape = _shape(snapshot)
        address = self._objects.address or f"{shape.scheme}://{{bucket}}"
        reader = ObjectReader(
            spark,
            self._objects,
            address,
            self._places,
            self._clock,
            self._bad,
            frozenset(self._selection.buckets) or None,
        )
        events = CloudMetadataIncrementalQueryRunner(
            spark=spark,
            snapshot=snapshot,
            shape=shape,
            wanted=self._filter(shape),
            table=self._table,
            after=place,
            splitter=self._splitter,
            missing=reader.missing if self._selection.check_existence else None,
        )
        return CloudEventsSourceIncrementalQueryRunner(events, reader, self._quarantine)

    def _filter(self, shape: EventShape) -> ObjectFilter:
        told = self._selection
        extensions = (self._objects.format,) if told.extensions is None else told.extensions
        encoded = shape.encoded if told.encoded is None else told.encoded
        return ObjectFilter(told, extensions, encoded)

    def _facts(
        self, snapshot: Snapshot, selection: Selection, found: ObjectRows
    ) -> dict[str, int | str]:
        facts: dict[str, int | str] = {
            "bytes": selection.size,
            "objects": len(selection.objects),
            "objects_waiting": selection.waiting,
            "objects_bad": len(found.bad),
            "objects_missing": selection.missing,
        }
        lag = _lag_ms(snapshot, selection.position)
        return facts if lag is None else {**facts, "lag_ms": lag}

    def _forget(self) -> None:
        """Take away the copies of objects of the batch before."""
        if self._last is not None:
            self._last.done()
            self._last = None


def _shape(snapshot: Snapshot) -> EventShape:
    return shape_of(snapshot.schema(snapshot.view()).names)


def _place(after: Checkpoint | None, snapshot: Snapshot) -> ObjectPosition | None:
    """Where a checkpoint is in the events table; None is the beginning."""
    place = None if after is None else parse_position(after)
    if place is None or after is None or after.version is Version.V2:
        return place
    return translated(place, (*snapshot.archived, *snapshot.timeline.completed_writes))


def _lag_ms(snapshot: Snapshot, place: ObjectPosition | None) -> int | None:
    """From a place to the newest commit of the events table; None if a time is no date."""
    newest = snapshot.timeline.by_completion[-1:]
    if place is None or not newest:
        return 0
    zone = snapshot.config.timeline_zone
    return lag_ms(newest[0].completed_at or "", place.completed_at, zone)
