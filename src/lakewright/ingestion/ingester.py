"""One round of ingestion: read a batch of a source, transform it, and commit it.

The commit contains the rows and the checkpoint, and is rejected unless the newest checkpoint of the
table is still the one after which the batch was read. So a round that crashes has ingested all of
its batch or nothing, and of two concurrent rounds that read the same rows, one is rejected.
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

_RETRYABLE_ERRORS = (ConflictError, UnavailableError)
_COUNT_TIMEOUT_S = 10


@dataclass(frozen=True, slots=True)
class IngestResult:
    """The result of one round of ingestion: a commit, the reason why there is none, or an error.

    Attributes:
        number: Number of the round, from 1.
        source: Name of the source.
        outcome: The commit, a `Skip` with the reason, or the error.
        before: Checkpoint before the round.
        after: Checkpoint after the round.
        rows: Number of rows to write, after the transformation.
        took_ms: Duration of the round.
        facts: Metrics of the source.
        troubles: Problems after the commit, which did not prevent it.
        services: Outcomes of services that ran in the background.
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
        """The error, if the round failed."""
        return self.outcome if isinstance(self.outcome, LakewrightError) else None

    @property
    def is_retryable(self) -> bool:
        """Whether the round succeeded or a retry may succeed."""
        return self.error is None or isinstance(self.error, _RETRYABLE_ERRORS)

    @property
    def inserted(self) -> int:
        """Number of inserted rows."""
        return self.commit.inserted if self.commit is not None else 0

    @property
    def updated(self) -> int:
        """Number of updated rows."""
        return self.commit.updated if self.commit is not None else 0

    @property
    def deleted(self) -> int:
        """Number of deleted rows."""
        return self.commit.deleted if self.commit is not None else 0

    @property
    def bytes(self) -> int | None:
        """Number of bytes read, if the source reports it."""
        return _number(self.facts, "bytes")

    @property
    def lag_ms(self) -> int | None:
        """How far the table is behind the source, if the source reports it."""
        return _number(self.facts, "lag_ms")

    @property
    def waiting(self) -> int | None:
        """Number of unread objects of the source, if it reports it."""
        return _number(self.facts, "objects_waiting")


def _number(facts: Mapping[str, int | str], name: str) -> int | None:
    value = facts.get(name)
    return value if isinstance(value, int) else None


@dataclass(frozen=True)
class IncomingBatch:
    """The rows of a batch; `count` returns their number after the write, if it is known."""

    rows: RowSource
    count: Callable[[], int | None]


def counted(frame: Any) -> IncomingBatch:
    """Return the rows of a DataFrame, which Spark counts while it writes them."""
    observation = Observation()
    observed = frame.observe(observation, F.count(F.lit(1)).alias("rows"))
    return IncomingBatch(spark_rows(observed), lambda: _observed_count(observation))


def _observed_count(observation: Observation) -> int | None:
    """Return the row count of an observation, None if Spark does not report it.

    Spark reports none if it optimized an empty plan away, or if an overloaded driver dropped the
    event.
    """
    counts: list[int] = []

    def wait_for_count() -> None:
        with suppress(*SPARK_ERRORS):
            counts.append(int(observation.get["rows"]))

    waiter = threading.Thread(target=wait_for_count, daemon=True)
    waiter.start()
    waiter.join(_COUNT_TIMEOUT_S)
    return counts[0] if counts else None


@dataclass
class Ingester:
    """Ingests a source into a table, round by round.

    Attributes:
        source: The source.
        writer: The client of the table.
        spark: The Spark session.
        transform: A function on the rows of each batch.
        source_name: Name that distinguishes the checkpoints of this source from those of other
            sources of the table.
        override: Checkpoint of a user to resume from; the same one as last time is ignored.
        incoming: Converts the rows of the source to rows of a write.
    """

    source: Source
    writer: WriteClient
    spark: Any = None
    transform: Transform | None = None
    source_name: str | None = None
    override: str | None = None
    incoming: Callable[[Any], IncomingBatch] = counted

    def __post_init__(self) -> None:
        self._checkpoints = CommittedCheckpoints(self.source_name)
        self._uncommitted_checkpoint: Checkpoint | None = None

    @property
    def table_exists(self) -> bool:
        """Whether the table exists; the first rows create it."""
        return table_exists(self.writer.storage)

    def run(self, number: int = 1) -> IngestResult:
        """Read the next batch and commit it.

        Raises:
            ConflictError: Another process committed a batch of the source; nothing was written.
            LakewrightError: The batch could not be read or written; the checkpoint has not changed.
        """
        started = self.writer.clock.monotonic_ms()
        with record_failures(self.writer.services.meter, self.source.name):
            result = self._round()
        record_round(self.writer.services.meter, result)
        took_ms = self.writer.clock.monotonic_ms() - started
        return replace(result, number=number, took_ms=took_ms)

    def _round(self) -> IngestResult:
        base = self._newest_checkpoint()
        try:
            after = resumed(_checkpoint(base), self.override, self.source.resume_from)
            return self._next(
                base,
                self._uncommitted_checkpoint
                if base is None and self._uncommitted_checkpoint
                else after,
            )
        except SPARK_ERRORS as error:
            raise translate_spark_error(error) from error

    def _next(self, base: CommittedCheckpoint | None, after: Checkpoint | None) -> IngestResult:
        """Ingest the next batch that can be committed.

        A batch without rows cannot be committed if the table does not exist or has no schema. Its
        checkpoint is then kept in memory only; after a restart, the same batches are read again,
        and are empty again.
        """
        while True:
            batch = self._batch(after)
            result = self._ingest(base, batch)
            if result is not None:
                return result
            if not _moved(after, batch.checkpoint):
                reason = "the source has no rows, and the table no columns: the position stays"
                committed = _checkpoint(base)
                return IngestResult(
                    0, self.source.name, Skip(reason), committed, committed, facts=batch.facts
                )
            after = self._uncommitted_checkpoint = batch.checkpoint

    def _newest_checkpoint(self) -> CommittedCheckpoint | None:
        if not self.table_exists:
            return None
        return self._checkpoints.newest(load_snapshot(self.writer.storage))

    def _batch(self, after: Checkpoint | None) -> Batch:
        batch = self.source.next_batch(self.spark, after)
        if batch.rows is None or self.transform is None:
            return batch
        return replace(batch, rows=self.transform(batch.rows))

    def _ingest(self, base: CommittedCheckpoint | None, batch: Batch) -> IngestResult | None:
        """Commit a batch, its checkpoint only, or nothing; None if it cannot be committed."""
        committed = _checkpoint(base)
        result = IngestResult(
            0, self.source.name, Skip(""), committed, committed, facts=batch.facts
        )
        incoming = self.incoming(batch.rows) if batch.rows is not None else None
        if incoming is not None and incoming.rows.schema.names:
            return self._commit(result, batch, base, incoming)
        if not _moved(committed, batch.checkpoint):
            return replace(result, outcome=Skip("the source has nothing new"))
        columns = self._table_schema()
        if columns is None:
            return None
        return self._commit(result, batch, base, IncomingBatch(EmptyRows(columns), lambda: 0))

    def _commit(
        self,
        result: IngestResult,
        batch: Batch,
        base: CommittedCheckpoint | None,
        incoming: IncomingBatch,
    ) -> IngestResult:
        checkpoint = batch.checkpoint or result.before
        if checkpoint is not None:
            checkpoint = replace(checkpoint, reset=self.override)
        outcome, troubles = self._save_batch(base, batch, incoming, checkpoint)
        troubles += _acknowledge(batch)
        result = replace(result, outcome=outcome, after=checkpoint, troubles=troubles)
        rows = incoming.count()
        written = result.inserted + result.updated + result.deleted
        return replace(result, rows=written if rows is None else rows)

    def _save_batch(
        self,
        base: CommittedCheckpoint | None,
        batch: Batch,
        incoming: IncomingBatch,
        checkpoint: Checkpoint | None,
    ) -> tuple[Commit | Skip, tuple[str, ...]]:
        """Write rows and checkpoint; also return retryable errors that followed the commit."""
        batch_id = self.writer.clock.new_id()
        extra = note(checkpoint, batch=batch_id, source=self.source_name)
        validator = CheckpointValidator(self._checkpoints, base)
        try:
            return self._write(incoming.rows, extra, validator), ()
        except LakewrightError as error:
            committed = self._find_commit(batch_id)
            if committed is None:
                raise
            if not isinstance(error, _RETRYABLE_ERRORS):
                _acknowledge(batch)
                raise
            return commit_result(committed.instant, committed.metadata), (str(error),)

    def _write(
        self, rows: RowSource, extra: Mapping[str, str], validator: CheckpointValidator
    ) -> Commit | Skip:
        if isinstance(rows, EmptyRows):
            # An insert without rows changes nothing, whatever the operation of the ingestion is.
            request = WriteRequest(Operation.INSERT, extra=extra, validator=validator)
            return self.writer.run(request, rows)
        save = SaveOperation(self.writer, SaveMode.APPEND, extra=extra, validator=validator)
        return save.write(rows)

    def _find_commit(self, batch_id: str) -> CommittedCheckpoint | None:
        """Return the commit of a batch if the write succeeded although it raised an error."""
        try:
            newest = self._newest_checkpoint()
        except UnavailableError:
            return None
        return newest if newest is not None and newest.batch == batch_id else None

    def _table_schema(self) -> pa.Schema | None:
        avro_schema = (
            load_snapshot(self.writer.storage).avro_schema() if self.table_exists else None
        )
        return arrow_schema(avro_schema) if avro_schema is not None else None


@contextmanager
def record_failures(meter: MetricsRecorder, source: str) -> Iterator[None]:
    """Count a failed round."""
    try:
        yield
    except LakewrightError as error:
        meter.count("ingest.rounds", source=source, outcome=kind_of(error))
        raise


def record_round(meter: MetricsRecorder, result: IngestResult) -> None:
    """Record the metrics of a round."""
    outcome = "commit" if result.commit is not None else "nothing_new"
    meter.count("ingest.rounds", source=result.source, outcome=outcome)
    meter.count("ingest.rows", result.rows, source=result.source)
    gauges = {"ingest.lagInMs": result.lag_ms, "ingest.objectsWaiting": result.waiting}
    known_gauges = [(name, value) for name, value in gauges.items() if value is not None]
    meter.gauge(known_gauges, source=result.source)


def _checkpoint(committed: CommittedCheckpoint | None) -> Checkpoint | None:
    return committed.checkpoint if committed is not None else None


def _moved(stored: Checkpoint | None, new: Checkpoint | None) -> bool:
    if new is None or stored is None:
        return new is not None
    return (stored.text, stored.version) != (new.text, new.version)


def _acknowledge(batch: Batch) -> tuple[str, ...]:
    """Notify the source of the commit; failures are warnings."""
    try:
        batch.committed()
    except (LakewrightError, *SPARK_ERRORS, OSError) as error:
        text = f"the rows are in the table, but their source could not be notified: {error}"
        warnings.warn(text, RuntimeWarning, stacklevel=2)
        return (text,)
    return ()
