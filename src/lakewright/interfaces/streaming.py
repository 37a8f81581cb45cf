"""Streams into a table, each batch exactly once.

The commit of a batch carries its number. Spark replays a batch whose end it has not noted; one
whose number is in the table already is recognised and left out.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from lakewright.clock import Clock, SystemClock
from lakewright.core.plans import Skip
from lakewright.errors import ConflictError, CorruptError, UnavailableError
from lakewright.interfaces.saving import save
from lakewright.storage.base import MissingFileError, Storage
from lakewright.storage.locate import storage_for
from lakewright.table.properties import PROPERTIES
from lakewright.table.snapshot import Snapshot, load_snapshot
from lakewright.write.commit import Commit
from lakewright.write.options import write_settings

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# Real Hudi's own key: its sink and ours recognise each other's batches.
BATCHES = "_hudi_streaming_sink_checkpoint"
_QUERY = "lakewright.stream.query"


@dataclass
class StreamSink:
    """A function for `foreachBatch`.

    `checkpoint` is the checkpoint location of the query: with it, batches of another query, which
    begin to count anew, are not taken for replayed ones.
    """

    storage: Storage
    options: Mapping[str, str]
    partition_by: tuple[str, ...] = ()
    checkpoint: str | None = None
    clock: Clock = field(default_factory=SystemClock)
    commits: list[Commit | Skip] = field(default_factory=list)
    _query: str | None = None

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        """Write one batch, unless the table has it."""
        identifier = write_settings(None, self.options).stream_identifier
        if self._query is None and self.checkpoint is not None:
            self._query = query_of(self.checkpoint)
        last = None
        if self.storage.exists(PROPERTIES):
            last = last_batch(load_snapshot(self.storage), identifier, self._query)
        if last is not None and batch_id <= last:
            self.commits = [Skip(f"batch {batch_id} is in the table already")]
            return
        note = {BATCHES: json.dumps({identifier: str(batch_id)})}
        if self._query is not None:
            note[_QUERY] = json.dumps({identifier: self._query})
        self.commits = [self._write(frame, note)]

    def _write(self, frame: DataFrame, note: Mapping[str, str]) -> Commit | Skip:
        """Write a batch; what may pass by itself is tried again, as often as the options say."""
        settings = write_settings(None, self.options)
        for left in range(settings.stream_retries, -1, -1):
            try:
                by = self.partition_by
                return save(self.storage, frame, self.options, "append", by, extra=note)
            except (ConflictError, UnavailableError) as error:
                if left:
                    self.clock.sleep(settings.stream_retry_ms / 1000)
                elif settings.stream_ignore_failed:
                    warnings.warn(f"a batch was left out: {error}", RuntimeWarning, stacklevel=2)
                    return Skip(f"the batch was left out: {error}")
                else:
                    raise
        raise AssertionError("the last attempt returns or raises")


def last_batch(snapshot: Snapshot, identifier: str, query: str | None) -> int | None:
    """The number of the last batch of a stream that the table has."""
    for instant in (*reversed(snapshot.timeline.by_completion), *reversed(snapshot.archived)):
        (commit,) = snapshot.commits([instant])
        noted = _noted(commit.extra, BATCHES).get(identifier)
        if noted is None:
            continue
        of_query = _noted(commit.extra, _QUERY).get(identifier)
        if query is not None and of_query is not None and of_query != query:
            return None
        return int(noted)
    return None


def query_of(checkpoint: str) -> str | None:
    """The id of the query that a checkpoint location belongs to."""
    try:
        data = storage_for(checkpoint).read("metadata")
        return str(json.loads(data)["id"])
    except MissingFileError:
        return None
    except (ValueError, KeyError) as error:
        raise CorruptError(
            "the checkpoint of a stream cannot be read", checkpoint=checkpoint
        ) from error


def _noted(extra: Mapping[str, str], key: str) -> dict[str, str]:
    try:
        value = json.loads(extra.get(key) or "{}")
    except ValueError as error:
        raise CorruptError("a commit's note of a stream cannot be read", key=key) from error
    return {str(name): str(each) for name, each in dict(value).items()}
