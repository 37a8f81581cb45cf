"""Streams of a table's changes: what Spark asks of a source, batch by batch.

Spark keeps the offsets of batches and hands them back. A batch is planned when it is run, and again
when it is replayed, each time from a fresh look at the table. Such a look sees all that completed
before the write which the offset was taken from, even if writers got in between during the first.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import pyarrow as pa
from pyspark.sql import types as T
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from lakewright.errors import CorruptError, InvalidError, UnsupportedError
from lakewright.scan.cdc.planner import SCHEMA, CdcScanPlan, plan_cdc_range
from lakewright.scan.cdc.reader import read_cdc
from lakewright.scan.options import NEW_COLUMNS, StreamSettings, stream_settings
from lakewright.scan.planner import QueryContext, plan_range
from lakewright.scan.scan_plan import ScanPlan
from lakewright.scan.slice_reader import read_slices
from lakewright.scan.stream_offsets import (
    Offset,
    StreamStart,
    batch_context,
    newest_completion,
    next_offset,
    parse_offset,
)
from lakewright.spark.reader import spark_schema
from lakewright.storage.base import Storage
from lakewright.storage.factory import storage_for, storage_options
from lakewright.table.snapshot import Snapshot, load_snapshot

try:
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadLimit,
        ReadMaxFiles,
        SupportsTriggerAvailableNow,
    )
except ImportError:  # before Spark 4.2: streams are refused, all else works
    ReadAllAvailable = ReadLimit = ReadMaxFiles = None  # type: ignore[assignment,misc]

    class SupportsTriggerAvailableNow:  # type: ignore[no-redef]
        """Stands for what this Spark does not have."""


class StreamFormat(Protocol):
    """What the batches of a stream hold; `FORMATS` has one for each incremental format."""

    def schema(self, snapshot: Snapshot) -> pa.Schema:
        """The columns of all batches."""

    def tasks(
        self, context: QueryContext, columns: Sequence[str], *, fallback: bool
    ) -> Sequence[Any]:
        """The work of a batch, in pieces that can travel."""

    def read(self, storage: Storage, task: Any) -> Iterator[pa.RecordBatch]:
        """The rows of one piece."""


class LatestState:
    """Each changed row, once in a batch, as it is at the end of it."""

    def schema(self, snapshot: Snapshot) -> pa.Schema:
        """The table's columns."""
        return snapshot.schema(snapshot.view())

    def tasks(
        self, context: QueryContext, columns: Sequence[str], *, fallback: bool
    ) -> Sequence[ScanPlan]:
        """The plan of an incremental query, in pieces of a fair size."""
        return plan_range(context, columns=columns, fallback=fallback).tasks()

    def read(self, storage: Storage, task: ScanPlan) -> Iterator[pa.RecordBatch]:
        """The rows of one piece."""
        return read_slices(storage, task)


class ChangeData:
    """What was done to each row: insert, update or delete, with the row before and after."""

    def schema(self, snapshot: Snapshot) -> pa.Schema:
        """The columns of change data, whatever those of the table are."""
        return SCHEMA

    def tasks(
        self, context: QueryContext, columns: Sequence[str], *, fallback: bool
    ) -> Sequence[CdcScanPlan]:
        """The plan of a query of change data; those of a file group are in one piece."""
        return plan_cdc_range(context, columns=columns, fallback=fallback).tasks()

    def read(self, storage: Storage, task: CdcScanPlan) -> Iterator[pa.RecordBatch]:
        """The changes of one piece."""
        return read_cdc(storage, task)


FORMATS: dict[str, StreamFormat] = {"latest_state": LatestState(), "cdc": ChangeData()}


@dataclass
class StreamPartition(InputPartition):
    """The work of one task."""

    storage: Storage
    format: str
    task: Any


class HudiStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A query's view of a table: from Spark's offsets to the tasks of a batch."""

    def __init__(self, storage: Storage, settings: StreamSettings, schema: T.StructType) -> None:
        self._storage = storage
        self._settings = settings
        self._schema = schema
        self._last: str | None = None
        self._newest: str | None = None

    def initialOffset(self) -> dict[str, str]:
        """Where the options let a new query begin; it is made sure of with the first batch."""
        return StreamStart(self._settings.start).as_json()

    def getDefaultReadLimit(self) -> ReadLimit:
        """How much a batch holds; Spark has no limit of instants, and hands any back as it is."""
        most = self._settings.max_instants
        return ReadAllAvailable() if most is None else ReadMaxFiles(most)

    def prepareForTriggerAvailableNow(self) -> None:
        """Let the stream end where the table is now."""
        self._last = newest_completion(load_snapshot(self._storage).timeline)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, str]:
        """The end of the next batch; `start` itself if there is nothing new."""
        snapshot = load_snapshot(self._storage)
        self._newest = newest_completion(snapshot.timeline)
        until = self._newest if self._last is None else min(self._newest, self._last)
        most = limit.max_files if isinstance(limit, ReadMaxFiles) else None
        end = next_offset(parse_offset(start), snapshot, until=until, limit=most)
        return start if end is None else end.as_json()

    def reportLatestOffset(self) -> dict[str, str] | None:
        """How far the table was when it was last looked at."""
        return None if self._newest is None else Offset(self._newest).as_json()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """The tasks of a batch, planned on the table as it is now."""
        until = parse_offset(end)
        if not isinstance(until, Offset):
            raise CorruptError("a batch of a stream has no end", offset=end)
        snapshot = load_snapshot(self._storage)
        context = batch_context(snapshot, parse_offset(start), until)
        if context is None or context.is_empty:
            return []
        kind = self._settings.incremental_format
        check_columns(
            spark_schema(FORMATS[kind].schema(snapshot)), self._schema, self._settings.new_columns
        )
        fallback = self._settings.full_scan_fallback
        tasks = FORMATS[kind].tasks(context, self._schema.names, fallback=fallback)
        return [StreamPartition(self._storage, kind, task) for task in tasks]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one task."""
        assert isinstance(partition, StreamPartition)
        return FORMATS[partition.format].read(partition.storage, partition.task)


def check_columns(table: T.StructType, stream: T.StructType, new_columns: str) -> None:
    """Refuse to go on with columns that the table does not have so any more.

    A stream keeps the columns that it had when its query was started.
    """
    now = {field.name: field.dataType for field in table}
    changed = [field.name for field in stream if now.get(field.name) != field.dataType]
    if changed:
        raise InvalidError(
            "columns of the table have changed since the stream was started: start it again, and "
            "it goes on with the columns as they are now",
            columns=changed,
            stream=stream.simpleString(),
            table=table.simpleString(),
        )
    known = set(stream.names)
    new = [name for name in now if name not in known]
    if new and new_columns == "fail":
        raise InvalidError(
            "the table has new columns: start the stream again, and it goes on with them; "
            "to go on without, name the columns by schema(...) or choose ignore",
            columns=new,
            option=NEW_COLUMNS,
        )


def stream_reader(options: Mapping[str, str], schema: T.StructType) -> HudiStreamReader:
    """The stream that options describe, the table's path among them."""
    settings = _settings(options)
    return HudiStreamReader(_storage(options), settings, schema)


def stream_schema(options: Mapping[str, str], columns: T.StructType | None) -> T.StructType:
    """The columns of the stream that options describe: all, or those named, in the table's types.

    A table that nothing was written to may have no columns yet: then those given are meant.
    """
    settings, snapshot = _settings(options), load_snapshot(_storage(options))
    snapshot.config.require_changes()
    if settings.incremental_format == "latest_state" and snapshot.avro_schema() is None:
        if columns is None:
            raise InvalidError(
                "the table has no columns yet, since nothing was written: give them by schema(...)",
                table=snapshot.config.name,
            )
        return columns
    found = spark_schema(FORMATS[settings.incremental_format].schema(snapshot))
    if columns is None:
        return found
    known = set(found.names)
    unknown = [name for name in columns.names if name not in known]
    if unknown:
        raise InvalidError("the table has no such column", unknown=unknown, columns=found.names)
    return T.StructType([found[name] for name in columns.names])


def _settings(options: Mapping[str, str]) -> StreamSettings:
    if ReadMaxFiles is None:
        raise UnsupportedError("streams of a table are read by Spark 4.2 and newer")
    return stream_settings(options)


def _storage(options: Mapping[str, str]) -> Storage:
    if not options.get("path"):
        raise InvalidError("the table's path is missing: give it to load", option="path")
    return storage_for(options["path"], storage_options(options))
