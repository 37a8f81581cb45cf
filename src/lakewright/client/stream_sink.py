"""Streams into a table, each batch exactly once.

The commit of a batch carries its number. Spark replays a batch whose end it has not noted; one
whose number is in the table already is recognised and left out. That is asked under the table's
lock, when the batch begins and when it completes: the driver that Spark has given up may still be
at work, and a commit whose answer was lost may be there.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from lakewright.client.save import SaveMode, SaveOperation
from lakewright.client.write_client import WriteClient, spark_rows
from lakewright.clock import Clock, SystemClock
from lakewright.errors import (
    ConflictError,
    CorruptError,
    InvalidError,
    UnavailableError,
    found_in,
)
from lakewright.model.instant import Instant
from lakewright.model.plans import Skip
from lakewright.storage.base import MissingFileError, Storage
from lakewright.storage.factory import storage_for
from lakewright.table.snapshot import Snapshot, commits_newest_first
from lakewright.write.options import write_settings
from lakewright.write.write_config import WriteSettings
from lakewright.write.writer import Commit, RowSource

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# Real Hudi's own key: its sink and ours recognise each other's batches.
BATCHES = "_hudi_streaming_sink_checkpoint"
IDENTIFIER = "hoodie.datasource.write.streaming.checkpoint.identifier"
_QUERY = "lakewright.stream.query"


class BatchWrittenError(ConflictError):
    """A batch is in the table already."""


@dataclass(frozen=True)
class Stream:
    """Whose batches are meant: those of a query, which others must not be taken for.

    Where the `query` is not known the identifier alone tells. A `fresh` one has just begun: a note
    that names no query is not its own.
    """

    identifier: str
    query: str | None = None
    fresh: bool = False

    def note(self, batch_id: int) -> dict[str, str]:
        """What the commit of a batch carries."""
        note = {BATCHES: json.dumps({self.identifier: str(batch_id)})}
        if self.query is not None:
            note[_QUERY] = json.dumps({self.identifier: self.query})
        return note

    def batch_in(self, extra: Mapping[str, str]) -> int | None:
        """The number of the batch that a commit carries, if it is one of this stream."""
        noted = _noted(extra, BATCHES).get(self.identifier)
        if noted is None:
            return None
        query = _noted(extra, _QUERY).get(self.identifier)
        other = self.fresh if query is None else query != self.query
        if self.query is not None and other:
            return None
        try:
            return int(noted)
        except ValueError as error:
            raise CorruptError("a commit's batch has no number", batch=noted) from error


@dataclass
class BatchValidator:
    """Refuses a batch that the table has; asked again, it looks at what is new since."""

    stream: Stream
    batch_id: int
    _before: Snapshot | None = None

    def validate(self, current: Snapshot) -> None:
        """Raise BatchWrittenError, with the instant of the newest batch, if the table has it."""
        # Batches are written in the order of their numbers: those before the newest are smaller.
        found = next(_batches(current, self.stream, self._before), None)
        if found is not None and found[1] >= self.batch_id:
            raise BatchWrittenError(
                "the batch is in the table already",
                batch=self.batch_id,
                newest=found[1],
                instant=found[0].requested_at,
            )
        self._before = current


@dataclass
class StreamSink:
    """A function for `foreachBatch`.

    `checkpoint` is the checkpoint location of the query: with it, batches of another query, which
    begin to count anew, are not taken for replayed ones. `places` are options for its storage. A
    `fresh` query has a location that is used this once. A `complete` batch is the whole result: it
    replaces the table's rows.
    """

    storage: Storage
    options: Mapping[str, str]
    partition_by: tuple[str, ...] = ()
    checkpoint: str | None = None
    clock: Clock = field(default_factory=SystemClock)
    commits: list[Commit | Skip] = field(default_factory=list)
    places: Mapping[str, str] = field(default_factory=dict)
    fresh: bool = False
    complete: bool = False
    _query: str | None = None

    def __post_init__(self) -> None:
        self._writer = WriteClient.create(self.storage, self.options, self.clock)
        if self.fresh:
            self._query = self.clock.new_id()

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        """Write one batch, unless the table has it."""
        self.write(spark_rows(frame), batch_id)

    def write(self, rows: RowSource, batch_id: int) -> None:
        """Write the rows of one batch; `commits` then tells what became of it."""
        settings = write_settings(None, self._writer.options)
        stream = Stream(settings.stream_identifier, self._known_query(), self.fresh)
        mode = SaveMode.REPLACE if self.complete else SaveMode.APPEND
        validator = BatchValidator(stream, batch_id)
        note = stream.note(batch_id)
        save = SaveOperation(self._writer, mode, self.partition_by, note, validator)
        self.commits = [self._attempt(save, rows, settings)]

    def _known_query(self) -> str | None:
        if self._query is None and self.checkpoint is not None:
            self._query = query_of(self.checkpoint, self.places)
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
        """Write a batch; what may pass by itself is tried again, as often as the options say."""
        for left in range(settings.stream_retries, -1, -1):
            try:
                return save.write(rows)
            except BatchWrittenError as error:
                return _skipped(f"a batch was left out: {error}")
            except (ConflictError, UnavailableError) as error:
                if left:
                    self.clock.sleep(settings.stream_retry_ms / 1000)
                elif settings.stream_ignore_failed:
                    return _skipped(f"a batch was left out, its rows are lost: {error}")
                else:
                    raise
        raise AssertionError("the last attempt returns or raises")


def names_stream(options: Mapping[str, str]) -> bool:
    """Whether options tell a stream from others by a name of its own."""
    return any(key.lower() == IDENTIFIER and value.strip() for key, value in options.items())


def last_batch(snapshot: Snapshot, stream: Stream) -> int | None:
    """The number of the last batch of a stream that the table has."""
    return next((number for _, number in _batches(snapshot, stream)), None)


def query_of(checkpoint: str, places: Mapping[str, str] | None = None) -> str | None:
    """The id of the query that a checkpoint location belongs to; `places` are storage options."""
    try:
        data = storage_for(checkpoint, places or {}).read("metadata")
        return str(json.loads(data)["id"])
    except MissingFileError:
        return None
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise CorruptError(
            "the checkpoint of a stream cannot be read: its file metadata names no query",
            checkpoint=checkpoint,
        ) from error


def _batches(
    snapshot: Snapshot, stream: Stream, before: Snapshot | None = None
) -> Iterator[tuple[Instant, int]]:
    """The batches of a stream, newest first; only those that were not there `before`."""
    for instant, commit in commits_newest_first(snapshot, before):
        with found_in(instant.file_name):
            number = stream.batch_in(commit.extra)
        if number is not None:
            yield instant, number


def _skipped(reason: str) -> Skip:
    warnings.warn(reason, RuntimeWarning, stacklevel=5)
    return Skip(reason)


def _noted(extra: Mapping[str, str], key: str) -> dict[str, str]:
    try:
        value = json.loads(extra.get(key) or "{}")
    except (ValueError, RecursionError) as error:
        raise CorruptError("a commit's note of a stream cannot be read", key=key) from error
    if not isinstance(value, dict):
        raise CorruptError("a commit's note of a stream cannot be read", key=key)
    return {str(name): str(each) for name, each in value.items()}
