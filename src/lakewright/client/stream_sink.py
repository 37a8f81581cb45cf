"""Streams into a table: each batch is written exactly once.

The commit of a batch records the batch number. Spark replays a batch if it did not record its end;
the sink skips a batch whose number is in the table already. It checks this under the table's lock,
both when the batch begins and when it commits: a driver that Spark has given up on may still be
running, and a commit may have succeeded although its response was lost.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from lakewright.client.save import SaveMode, SaveOperation
from lakewright.client.write_client import WriteClient, spark_rows
from lakewright.clock import Clock, SystemClock
from lakewright.errors import (
    ConflictError,
    CorruptError,
    InvalidError,
    UnavailableError,
    errors_in_file,
)
from lakewright.model.instant import Instant
from lakewright.model.plans import Skip
from lakewright.services.asynchronous import outcomes_for_writer
from lakewright.storage.base import MissingFileError, Storage
from lakewright.storage.factory import storage_for
from lakewright.table.commit_search import commits_newest_first
from lakewright.table.snapshot import Snapshot
from lakewright.write.options import write_settings
from lakewright.write.write_config import WriteSettings
from lakewright.write.writer import Commit, RowSource

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# Hudi's key, so that its sink and this one recognize each other's batches.
BATCHES = "_hudi_streaming_sink_checkpoint"
IDENTIFIER = "hoodie.datasource.write.streaming.checkpoint.identifier"
_QUERY = "lakewright.stream.query"


class BatchWrittenError(ConflictError):
    """The table has the batch already."""


@dataclass(frozen=True)
class Stream:
    """The identity of a stream: an identifier, and the id of the query if it is known.

    A `fresh` query has just started: a batch whose commit names no query is not its own.
    """

    identifier: str
    query: str | None = None
    fresh: bool = False

    def note(self, batch_id: int) -> dict[str, str]:
        """Return the extra metadata for the commit of a batch."""
        metadata = {BATCHES: json.dumps({self.identifier: str(batch_id)})}
        if self.query is not None:
            metadata[_QUERY] = json.dumps({self.identifier: self.query})
        return metadata

    def batch_in(self, extra: Mapping[str, str]) -> int | None:
        """Return the number of the batch that a commit wrote, if it belongs to this stream."""
        number = _stored_mapping(extra, BATCHES).get(self.identifier)
        if number is None:
            return None
        query = _stored_mapping(extra, _QUERY).get(self.identifier)
        is_other_query = self.fresh if query is None else query != self.query
        if self.query is not None and is_other_query:
            return None
        try:
            return int(number)
        except ValueError as error:
            raise CorruptError("a commit's batch has no number", batch=number) from error


@dataclass
class BatchValidator:
    """Rejects a batch that the table has; a second call checks only commits since the first."""

    stream: Stream
    batch_id: int
    _last_checked: Snapshot | None = None

    def validate(self, current: Snapshot) -> None:
        """Raise BatchWrittenError, with the instant of the newest batch, if the table has it."""
        # Batches are written in ascending order, so the newest one has the greatest number.
        newest = next(_batches(current, self.stream, self._last_checked), None)
        if newest is not None and newest[1] >= self.batch_id:
            raise BatchWrittenError(
                "the batch is in the table already",
                batch=self.batch_id,
                newest=newest[1],
                instant=newest[0].requested_at,
            )
        self._last_checked = current


@dataclass
class StreamSink:
    """A function for `foreachBatch` that writes each batch exactly once; see `Table.stream_sink`.

    Attributes:
        storage: The storage of the table.
        options: Write options.
        partition_by: Partition columns for a table that is created.
        checkpoint: Checkpoint location of the query. With it, batches of another query, whose
            numbers start at 0 again, are not mistaken for replayed batches.
        clock: The clock.
        commits: The outcome of the last batch.
        storage_options: Storage options of the checkpoint location.
        fresh: Whether the query has a temporary checkpoint location.
        complete: Whether each batch is the complete result and replaces the rows of the table.
    """

    storage: Storage
    options: Mapping[str, str]
    partition_by: tuple[str, ...] = ()
    checkpoint: str | None = None
    clock: Clock = field(default_factory=SystemClock)
    commits: list[Commit | Skip] = field(default_factory=list)
    storage_options: Mapping[str, str] = field(default_factory=dict)
    fresh: bool = False
    complete: bool = False
    _query: str | None = None

    def __post_init__(self) -> None:
        writer = WriteClient.create(self.storage, self.options, self.clock, stream=True)
        self._writer = replace(writer, stream_services=writer.async_services())
        if self.fresh:
            self._query = self.clock.new_id()

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        """Write one batch, unless the table has it."""
        self.write(spark_rows(frame), batch_id)

    def close(self) -> tuple[Commit | Skip, ...]:
        """Wait for the asynchronous services of the stream, and return what they did at last.

        A process that ends waits for them as well. A batch after this call starts them again.
        """
        services = self._writer.stream_services
        assert services is not None
        return outcomes_for_writer(services.close(), self._writer.options, stream=True)

    def write(self, rows: RowSource, batch_id: int) -> None:
        """Write the rows of one batch and store the outcome in `commits`."""
        settings = write_settings(None, self._writer.options)
        stream = Stream(settings.stream_identifier, self._query_id(), self.fresh)
        mode = SaveMode.REPLACE if self.complete else SaveMode.APPEND
        validator = BatchValidator(stream, batch_id)
        metadata = stream.note(batch_id)
        save = SaveOperation(self._writer, mode, self.partition_by, metadata, validator)
        self.commits = [self._attempt(save, rows, settings)]

    def _query_id(self) -> str | None:
        if self._query is None and self.checkpoint is not None:
            self._query = query_of(self.checkpoint, self.storage_options)
            if self._query is None and not names_stream(self._writer.options):
                raise InvalidError(
                    "no stream has its checkpoint there: give the query's own location, or an "
                    "identifier",
                    checkpoint=self.checkpoint,
                    option=IDENTIFIER,
                )
        return self._query

    def _attempt(
        self, save: SaveOperation, rows: RowSource, settings: WriteSettings
    ) -> Commit | Skip:
        """Write a batch; retry conflicts and unavailable storage as often as the options say."""
        for remaining_retries in range(settings.stream_retries, -1, -1):
            try:
                return save.write(rows)
            except BatchWrittenError as error:
                return _skipped(f"a batch was left out: {error}")
            except (ConflictError, UnavailableError) as error:
                if remaining_retries:
                    self.clock.sleep(settings.stream_retry_ms / 1000)
                elif settings.stream_ignore_failed:
                    return _skipped(f"a batch was left out, its rows are lost: {error}")
                else:
                    raise
        raise AssertionError("the last attempt returns or raises")


def names_stream(options: Mapping[str, str]) -> bool:
    """Whether the options give a stream its own identifier."""
    return any(key.lower() == IDENTIFIER and value.strip() for key, value in options.items())


def query_of(checkpoint: str, storage_options: Mapping[str, str] | None = None) -> str | None:
    """Return the id of the query of a checkpoint location."""
    try:
        data = storage_for(checkpoint, storage_options or {}).read("metadata")
        return str(json.loads(data)["id"])
    except MissingFileError:
        return None
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise CorruptError(
            "the checkpoint of a stream cannot be read: its file metadata names no query",
            checkpoint=checkpoint,
        ) from error


def _batches(
    snapshot: Snapshot, stream: Stream, base: Snapshot | None = None
) -> Iterator[tuple[Instant, int]]:
    """Yield the batches of a stream, newest first; only of commits since the snapshot `base`."""
    for instant, commit in commits_newest_first(snapshot, base):
        with errors_in_file(instant.file_name):
            number = stream.batch_in(commit.extra)
        if number is not None:
            yield instant, number


def _skipped(reason: str) -> Skip:
    warnings.warn(reason, RuntimeWarning, stacklevel=5)
    return Skip(reason)


def _stored_mapping(extra: Mapping[str, str], key: str) -> dict[str, str]:
    try:
        value = json.loads(extra.get(key) or "{}")
    except (ValueError, RecursionError) as error:
        raise CorruptError("a commit's note of a stream cannot be read", key=key) from error
    if not isinstance(value, dict):
        raise CorruptError("a commit's note of a stream cannot be read", key=key)
    return {str(name): str(item) for name, item in value.items()}
