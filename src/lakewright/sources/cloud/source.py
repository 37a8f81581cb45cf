"""Stage two of cloud events: the rows of the objects that an events table tells of."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Self

from lakewright.clock import Clock, SystemClock
from lakewright.errors import InvalidError
from lakewright.settings import ignored_options, settings_from
from lakewright.sources.checkpoints import (
    RESUME_COMPLETED,
    RESUME_REQUESTED,
    Checkpoint,
    Version,
    lag_ms,
)
from lakewright.sources.cloud.events import quarantine_of
from lakewright.sources.cloud.metadata.run import CloudMetadataIncrementalQueryRunner
from lakewright.sources.cloud.objects.run import ObjectReader, ObjectRows
from lakewright.sources.cloud.position import Position, parse_position, translated
from lakewright.sources.cloud.quarantine import Held, Quarantine
from lakewright.sources.cloud.selection import ObjectFilter, Selection
from lakewright.sources.cloud.settings import (
    OBJECT_KEYS,
    REFUSED_CLOUD_OPTIONS,
    EventTableSettings,
    HoldingSettings,
    ObjectSettings,
    OnBad,
    SelectionSettings,
    required,
)
from lakewright.sources.cloud.stores import EventShape, shape_of
from lakewright.sources.runner import IncrementalQueryRunner
from lakewright.sources.source import Batch, Source
from lakewright.sources.splitters import splitter_for
from lakewright.storage.base import Storage
from lakewright.storage.locate import storage_for, storage_options
from lakewright.table.snapshot import Snapshot, load_moment

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


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
            Held(f"{self.events.shape.scheme}://{e.item.bucket}/{e.item.path}", e.problem or "",
                 size=e.item.size)
            for e in data.bad
        ]  # fmt: skip
        if bad and self.reader.bad is OnBad.QUARANTINE and self.quarantine is not None:
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
        holding = settings_from(HoldingSettings, options)
        self._bad = holding.bad_objects
        self._quarantine = quarantine_of(holding, options, self.name, clock)
        if self._bad is OnBad.QUARANTINE and self._quarantine is None:
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
        snapshot = load_moment(self._storage)
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
        self, spark: SparkSession, snapshot: Snapshot, place: Position | None
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


def _place(after: Checkpoint | None, snapshot: Snapshot) -> Position | None:
    """Where a checkpoint is in the events table; None is the beginning."""
    place = None if after is None else parse_position(after)
    if place is None or after is None or after.version is Version.V2:
        return place
    return translated(place, (*snapshot.archived, *snapshot.timeline.completed_writes))


def _lag_ms(snapshot: Snapshot, place: Position | None) -> int | None:
    """From a place to the newest commit of the events table; None if a time is no date."""
    newest = snapshot.timeline.by_completion[-1:]
    if place is None or not newest:
        return 0
    zone = snapshot.config.timeline_zone
    return lag_ms(newest[0].completed_at or "", place.completed_at, zone)
