"""The stream source `hudi`: the changes of a table, batch by batch.

Spark stores the offsets of batches and passes them back. Each batch is planned when it runs, and
again when Spark replays it, on a fresh snapshot. The snapshot contains all writes that completed
before the offset of the batch, even those that completed while the offset was determined.
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
        """Placeholder for a class that this version of Spark does not have."""


class StreamFormat(Protocol):
    """The contents of the batches of a stream; `FORMATS` has one for each incremental format."""

    def schema(self, snapshot: Snapshot) -> pa.Schema:
        """Return the columns of all batches."""

    def tasks(
        self, context: QueryContext, columns: Sequence[str], *, fallback: bool
    ) -> Sequence[Any]:
        """Return the tasks of a batch, which are serialized for executors."""

    def read(self, storage: Storage, task: Any) -> Iterator[pa.RecordBatch]:
        """Return the rows of one task."""


class LatestState:
    """Each changed row, once in a batch, as of the end of the batch."""

    def schema(self, snapshot: Snapshot) -> pa.Schema:
        """Return the columns of the table."""
        return snapshot.schema(snapshot.view())

    def tasks(
        self, context: QueryContext, columns: Sequence[str], *, fallback: bool
    ) -> Sequence[ScanPlan]:
        """Return the tasks of an incremental query."""
        return plan_range(context, columns=columns, fallback=fallback).tasks()

    def read(self, storage: Storage, task: ScanPlan) -> Iterator[pa.RecordBatch]:
        """Return the rows of one task."""
        return read_slices(storage, task)


class ChangeData:
    """Each change of a row: insert, update or delete, with the row before and after."""

    def schema(self, snapshot: Snapshot) -> pa.Schema:
        """Return the columns of a CDC query, which do not depend on the table."""
        return SCHEMA

    def tasks(
        self, context: QueryContext, columns: Sequence[str], *, fallback: bool
    ) -> Sequence[CdcScanPlan]:
        """Return the tasks of a CDC query; all changes of a file group are in one task."""
        return plan_cdc_range(context, columns=columns, fallback=fallback).tasks()

    def read(self, storage: Storage, task: CdcScanPlan) -> Iterator[pa.RecordBatch]:
        """Return the changes of one task."""
        return read_cdc(storage, task)


FORMATS: dict[str, StreamFormat] = {"latest_state": LatestState(), "cdc": ChangeData()}


@dataclass
class StreamPartition(InputPartition):
    """One task of a batch."""

    storage: Storage
    format: str
    task: Any


class HudiStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Converts the offsets of a streaming query to the tasks of its batches."""

    def __init__(self, storage: Storage, settings: StreamSettings, schema: T.StructType) -> None:
        self._storage = storage
        self._settings = settings
        self._schema = schema
        self._last: str | None = None
        self._newest: str | None = None

    def initialOffset(self) -> dict[str, str]:
        """Return the offset at which a new query starts; the first batch resolves and stores it."""
        return StreamStart(self._settings.start).as_json()

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return the read limit of a batch.

        Spark has no limit of instants. A limit of files is used instead, which Spark passes back
        unchanged.
        """
        most = self._settings.max_instants
        return ReadAllAvailable() if most is None else ReadMaxFiles(most)

    def prepareForTriggerAvailableNow(self) -> None:
        """Let the stream end at the current state of the table."""
        self._last = newest_completion(load_snapshot(self._storage).timeline)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, str]:
        """Return the end of the next batch; `start` if there is nothing new."""
        snapshot = load_snapshot(self._storage)
        self._newest = newest_completion(snapshot.timeline)
        until = self._newest if self._last is None else min(self._newest, self._last)
        most = limit.max_files if isinstance(limit, ReadMaxFiles) else None
        end = next_offset(parse_offset(start), snapshot, until=until, limit=most)
        return start if end is None else end.as_json()

    def reportLatestOffset(self) -> dict[str, str] | None:
        """Return the newest completion time at the last call of `latestOffset`."""
        return None if self._newest is None else Offset(self._newest).as_json()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return the tasks of a batch, planned on the current snapshot."""
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
        """Return the rows of one task."""
        assert isinstance(partition, StreamPartition)
        return FORMATS[partition.format].read(partition.storage, partition.task)


def check_columns(table: T.StructType, stream: T.StructType, new_columns: str) -> None:
    """Raise InvalidError if columns of the stream have changed in the table.

    A stream keeps the columns with which its query was started.
    """
    table_types = {field.name: field.dataType for field in table}
    changed = [field.name for field in stream if table_types.get(field.name) != field.dataType]
    if changed:
        raise InvalidError(
            "columns of the table have changed since the stream was started: start it again, and "
            "it goes on with the columns as they are now",
            columns=changed,
            stream=stream.simpleString(),
            table=table.simpleString(),
        )
    stream_names = set(stream.names)
    new_names = [name for name in table_types if name not in stream_names]
    if new_names and new_columns == "fail":
        raise InvalidError(
            "the table has new columns: start the stream again, and it goes on with them; "
            "to go on without, name the columns by schema(...) or choose ignore",
            columns=new_names,
            option=NEW_COLUMNS,
        )


def stream_reader(options: Mapping[str, str], schema: T.StructType) -> HudiStreamReader:
    """Return the reader of the stream that options describe."""
    settings = _settings(options)
    return HudiStreamReader(_storage(options), settings, schema)


def stream_schema(options: Mapping[str, str], columns: T.StructType | None) -> T.StructType:
    """Return the columns of a stream: all, or those in `columns`, with the types of the table.

    A table without writes may have no columns yet: then `columns` is the schema.
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
    table_schema = spark_schema(FORMATS[settings.incremental_format].schema(snapshot))
    if columns is None:
        return table_schema
    known_names = set(table_schema.names)
    unknown_names = [name for name in columns.names if name not in known_names]
    if unknown_names:
        raise InvalidError(
            "the table has no such column", unknown=unknown_names, columns=table_schema.names
        )
    return T.StructType([table_schema[name] for name in columns.names])


def _settings(options: Mapping[str, str]) -> StreamSettings:
    if ReadMaxFiles is None:
        raise UnsupportedError("streams of a table are read by Spark 4.2 and newer")
    return stream_settings(options)


def _storage(options: Mapping[str, str]) -> Storage:
    if not options.get("path"):
        raise InvalidError("the table's path is missing: give it to load", option="path")
    return storage_for(options["path"], storage_options(options))
