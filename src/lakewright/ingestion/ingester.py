"""One round of ingestion: a batch of a source, changed on its way, and the commit that carries it.

The commit of a batch holds the rows and the position together, and completes only if the table is
still where the batch was read from. So a round that dies has done all or nothing, and of two that
read the same rows one is refused.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql import Observation
from pyspark.sql import functions as F

from lakewright.client.save import SaveMode, SaveOperation
from lakewright.client.write_client import WriteClient, spark_rows
from lakewright.errors import ConflictError, LakewrightError, UnavailableError, kind_of
from lakewright.format.avro.schema import arrow_schema
from lakewright.ingestion.checkpoints import (
    Checkpoint,
    CheckpointValidator,
    CommittedCheckpoint,
    CommittedCheckpoints,
    note,
    resumed,
)
from lakewright.ingestion.source import Batch, Source
from lakewright.metrics.meter import MetricsRecorder
from lakewright.model.plans import Skip
from lakewright.services.maintenance_loop import ServiceOutcome
from lakewright.spark.worker_environment import SPARK_ERRORS
from lakewright.spark.writer import translate_spark_error
from lakewright.table.properties import table_exists
from lakewright.table.snapshot import load_snapshot
from lakewright.write.task import Operation
from lakewright.write.writer import Commit, EmptyRows, RowSource, WriteRequest, commit_result

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

Transform = Callable[["DataFrame"], "DataFrame"]
Outcomes = Commit | Skip | LakewrightError

_PASSING = (ConflictError, UnavailableError)
_PATIENCE_S = 10


@dataclass(frozen=True, slots=True)
class IngestResult:
    """What a round has done, why it did nothing, or why it could not; counted from 1.

    `rows` is how many rows there were to write, after the transformation. `lag_ms` is how far the
    target is behind the source by the completion time of what was read, `waiting` how many objects
    of the source wait, where a source can tell. `troubles` did not keep the rows from the table.
    """

    number: int
    source: str
    outcome: Outcomes
    before: Checkpoint | None = None
    after: Checkpoint | None = None
    rows: int = 0
    took_ms: int = 0
    facts: Mapping[str, int | str] = field(default_factory=dict)
    troubles: tuple[str, ...] = ()
    services: tuple[ServiceOutcome, ...] = ()

    @property
    def commit(self) -> Commit | None:
        """The commit, if there is one."""
        return self.outcome if isinstance(self.outcome, Commit) else None

    @property
    def error(self) -> LakewrightError | None:
        """Why the round could not be done, if so."""
        return self.outcome if isinstance(self.outcome, LakewrightError) else None

    @property
    def is_retryable(self) -> bool:
        """Whether what went wrong, if anything, may not go wrong again."""
        return self.error is None or isinstance(self.error, _PASSING)

    @property
    def inserted(self) -> int:
        """Rows that are new in the table."""
        return self.commit.inserted if self.commit is not None else 0

    @property
    def updated(self) -> int:
        """Rows that the table had before."""
        return self.commit.updated if self.commit is not None else 0

    @property
    def deleted(self) -> int:
        """Rows that the table had and has no more."""
        return self.commit.deleted if self.commit is not None else 0

    @property
    def bytes(self) -> int | None:
        """How much was read, if the source tells."""
        return _number(self.facts, "bytes")

    @property
    def lag_ms(self) -> int | None:
        """How far the target is behind, if the source tells."""
        return _number(self.facts, "lag_ms")

    @property
    def waiting(self) -> int | None:
        """How many objects of the source wait, if it tells."""
        return _number(self.facts, "objects_waiting")


def _number(facts: Mapping[str, int | str], name: str) -> int | None:
    value = facts.get(name)
    return value if isinstance(value, int) else None


@dataclass(frozen=True)
class IncomingBatch:
    """The rows of a batch, and how many there were once they are written, if that is known."""

    rows: RowSource
    count: Callable[[], int | None]


def counted(frame: Any) -> IncomingBatch:
    """The rows of a DataFrame; Spark counts them as they go by."""
    seen = Observation()
    observed = frame.observe(seen, F.count(F.lit(1)).alias("rows"))
    return IncomingBatch(spark_rows(observed), lambda: _count_seen(seen))


def _count_seen(seen: Observation) -> int | None:
    """What Spark has counted, if it tells.

    It fails where its plan has changed on the way since there are no rows; and its drivers drop
    such news when they have too much to do.
    """
    answer: list[int] = []

    def ask() -> None:
        with suppress(*SPARK_ERRORS):
            answer.append(int(seen.get["rows"]))

    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    asking.join(_PATIENCE_S)
    return answer[0] if answer else None


@dataclass
class Ingester:
    """Brings what a source has into a table, round by round.

    `source_name` tells its positions from those of other sources of the table. `override` is a
    user's own word for the checkpoint to go on from; the same word as last time is not followed
    again. `incoming` makes rows to be written of what the source gives.
    """

    source: Source
    writer: WriteClient
    spark: Any = None
    transform: Transform | None = None
    source_name: str | None = None
    override: str | None = None
    incoming: Callable[[Any], IncomingBatch] = counted

    def __post_init__(self) -> None:
        self._positions = CommittedCheckpoints(self.source_name)
        self._held: Checkpoint | None = None

    @property
    def table_exists(self) -> bool:
        """Whether there is a table to write to: the first rows make one."""
        return table_exists(self.writer.storage)

    def run(self, number: int = 1) -> IngestResult:
        """Read the next batch and commit it.

        Raises:
            ConflictError: somebody else was faster; nothing was written.
            LakewrightError: the batch could not be read or written; its position stays.
        """
        started = self.writer.clock.monotonic_ms()
        with record_failures(self.writer.services.meter, self.source.name):
            done = self._round()
        record_round(self.writer.services.meter, done)
        took_ms = self.writer.clock.monotonic_ms() - started
        return replace(done, number=number, took_ms=took_ms)

    def _round(self) -> IngestResult:
        base = self._position()
        try:
            after = resumed(_checkpoint(base), self.override, self.source.resume_from)
            return self._next(base, self._held if base is None and self._held else after)
        except SPARK_ERRORS as error:
            raise translate_spark_error(error) from error

    def _next(self, base: CommittedCheckpoint | None, after: Checkpoint | None) -> IngestResult:
        """Bring the next batch that can be committed; one without rows cannot be without a table.

        Such a position is kept in mind alone. Who comes again finds the same batches empty.
        """
        while True:
            batch = self._batch(after)
            done = self._brought(base, batch)
            if done is not None:
                return done
            if not _moved(after, batch.checkpoint):
                told = "the source has no rows, and the table no columns: the position stays"
                stored = _checkpoint(base)
                return IngestResult(
                    0, self.source.name, Skip(told), stored, stored, facts=batch.facts
                )
            after = self._held = batch.checkpoint

    def _position(self) -> CommittedCheckpoint | None:
        if not self.table_exists:
            return None
        return self._positions.newest(load_snapshot(self.writer.storage))

    def _batch(self, after: Checkpoint | None) -> Batch:
        batch = self.source.next_batch(self.spark, after)
        if batch.rows is None or self.transform is None:
            return batch
        return replace(batch, rows=self.transform(batch.rows))

    def _brought(self, base: CommittedCheckpoint | None, batch: Batch) -> IngestResult | None:
        """Commit a batch, or its checkpoint alone, or nothing; None if it has nowhere to go."""
        stored = _checkpoint(base)
        done = IngestResult(0, self.source.name, Skip(""), stored, stored, facts=batch.facts)
        found = self.incoming(batch.rows) if batch.rows is not None else None
        if found is not None and found.rows.schema.names:
            return self._committed(done, batch, base, found)
        if not _moved(stored, batch.checkpoint):
            return replace(done, outcome=Skip("the source has nothing new"))
        columns = self._columns()
        if columns is None:
            return None
        return self._committed(done, batch, base, IncomingBatch(EmptyRows(columns), lambda: 0))

    def _committed(
        self,
        done: IngestResult,
        batch: Batch,
        base: CommittedCheckpoint | None,
        found: IncomingBatch,
    ) -> IngestResult:
        checkpoint = batch.checkpoint or done.before
        if checkpoint is not None:
            checkpoint = replace(checkpoint, reset=self.override)
        outcome, troubles = self._saved(base, batch, found, checkpoint)
        troubles += _acknowledged(batch)
        done = replace(done, outcome=outcome, after=checkpoint, troubles=troubles)
        rows = found.count()
        written = done.inserted + done.updated + done.deleted
        return replace(done, rows=written if rows is None else rows)

    def _saved(
        self,
        base: CommittedCheckpoint | None,
        batch: Batch,
        found: IncomingBatch,
        checkpoint: Checkpoint | None,
    ) -> tuple[Commit | Skip, tuple[str, ...]]:
        """Write rows with their position; with what went wrong after that, if it may pass."""
        batch_id = self.writer.clock.new_id()
        extra = note(checkpoint, batch=batch_id, source=self.source_name)
        check = CheckpointValidator(self._positions, base)
        try:
            return self._write(found.rows, extra, check), ()
        except LakewrightError as error:
            landed = self._find_commit(batch_id)
            if landed is None:
                raise
            if not isinstance(error, _PASSING):
                _acknowledged(batch)
                raise
            return commit_result(landed.instant, landed.metadata), (str(error),)

    def _write(
        self, rows: RowSource, extra: Mapping[str, str], validator: CheckpointValidator
    ) -> Commit | Skip:
        if isinstance(rows, EmptyRows):
            # Whatever is done with rows: none are added, and none replaced or deleted.
            request = WriteRequest(Operation.INSERT, extra=extra, validator=validator)
            return self.writer.run(request, rows)
        save = SaveOperation(self.writer, SaveMode.APPEND, extra=extra, validator=validator)
        return save.write(rows)

    def _find_commit(self, batch_id: str) -> CommittedCheckpoint | None:
        """The commit of a batch, if it is in the table though the write ended with an error."""
        try:
            found = self._position()
        except UnavailableError:
            return None
        return found if found is not None and found.batch == batch_id else None

    def _columns(self) -> pa.Schema | None:
        stored = load_snapshot(self.writer.storage).avro_schema() if self.table_exists else None
        return arrow_schema(stored) if stored is not None else None


@contextmanager
def record_failures(meter: MetricsRecorder, source: str) -> Iterator[None]:
    """Count a round that fails."""
    try:
        yield
    except LakewrightError as error:
        meter.count("ingest.rounds", source=source, outcome=kind_of(error))
        raise


def record_round(meter: MetricsRecorder, done: IngestResult) -> None:
    """Tell what a round has brought, and what is left."""
    outcome = "commit" if done.commit is not None else "nothing_new"
    meter.count("ingest.rounds", source=done.source, outcome=outcome)
    meter.count("ingest.rows", done.rows, source=done.source)
    left = {"ingest.lagInMs": done.lag_ms, "ingest.objectsWaiting": done.waiting}
    known = [(name, value) for name, value in left.items() if value is not None]
    meter.gauge(known, source=done.source)


def _checkpoint(position: CommittedCheckpoint | None) -> Checkpoint | None:
    return position.checkpoint if position is not None else None


def _moved(stored: Checkpoint | None, now: Checkpoint | None) -> bool:
    if now is None or stored is None:
        return now is not None
    return (stored.text, stored.version) != (now.text, now.version)


def _acknowledged(batch: Batch) -> tuple[str, ...]:
    """Let the source know that its rows are in the table; what goes wrong is only told."""
    try:
        batch.committed()
    except (LakewrightError, *SPARK_ERRORS, OSError) as error:
        told = f"the rows are in the table, but their source could not be told: {error}"
        warnings.warn(told, RuntimeWarning, stacklevel=2)
        return (told,)
    return ()
