"""`lw.ingest`: read batches of a source and commit them to a table, once or continuously.

Table services run after each commit, in a background thread, or not at all (`ServiceMode`).
"""

from __future__ import annotations

import os
import threading
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING

from lakewright.api.table import Table
from lakewright.client.write_client import OPERATION, WriteClient, parse_operation
from lakewright.clock import Clock
from lakewright.datasource.source import session_storage_options
from lakewright.errors import InvalidError, LakewrightError, UnavailableError
from lakewright.ingestion.ingester import Ingester, IngestResult, Transform
from lakewright.ingestion.source import Source, source_kind
from lakewright.options import ignored_options, option, option_keys, parse_bool, settings_from
from lakewright.services.inline import InlineSettings
from lakewright.services.maintenance_loop import (
    MaintenanceRound,
    ServiceOutcome,
    pause,
    run_continuously,
    run_round,
)
from lakewright.services.runner import ServiceRunner
from lakewright.storage.factory import other_options, storage_for, storage_options
from lakewright.table.options import with_optimistic_concurrency
from lakewright.table.snapshot import load_snapshot
from lakewright.write.task import Operation

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_NOT_INLINE = {
    "hoodie.compact.inline": "false",
    "hoodie.compact.schedule.inline": "false",
    "hoodie.log.compaction.inline": "false",
    "hoodie.clustering.inline": "false",
    "hoodie.clustering.schedule.inline": "false",
    "hoodie.clean.automatic": "false",
    "hoodie.archive.automatic": "false",
}
_FAIL_ON_SERVICE_ERROR = "hoodie.fail.writes.on.inline.table.service.exception"
_SERVICE_SWITCHES = option_keys(InlineSettings) - {_FAIL_ON_SERVICE_ERROR}


class ServiceMode(StrEnum):
    """Where table services run during an ingestion."""

    INLINE = "inline"  # after each commit, before the next round
    ASYNC = "async"  # in a background thread
    OFF = "off"  # in another process


def parse_mode(text: str) -> ServiceMode:
    """Return the service mode of a name."""
    try:
        return ServiceMode(text.strip().lower())
    except ValueError as error:
        modes = [str(mode) for mode in ServiceMode]
        raise InvalidError("no such mode of services", services=text, known=modes) from error


def writer_options(options: Mapping[str, str], mode: ServiceMode) -> dict[str, str]:
    """Return the options for the writes of the ingestion."""
    if mode is ServiceMode.INLINE:
        return dict(options)
    if mode is ServiceMode.ASYNC:
        return {**with_optimistic_concurrency(options), **_NOT_INLINE}
    requested = [
        key for key in sorted(_SERVICE_SWITCHES & options.keys()) if parse_bool(options[key])
    ]
    if requested:
        raise InvalidError(
            "services are off, and options ask for some: leave them out", options=requested
        )
    return {**options, **_NOT_INLINE}


@dataclass
class ServiceThread:
    """A background thread that runs the table services which the options enable."""

    writer: WriteClient
    options: Mapping[str, str]
    interval_s: float
    clock: Clock
    _outcomes: list[ServiceOutcome] = field(default_factory=list)
    _stop: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None
    _guard: threading.Lock = field(default_factory=threading.Lock)

    @property
    def has_begun(self) -> bool:
        """Whether the thread was started."""
        return self._thread is not None

    def start(self) -> None:
        """Start the thread; on UnavailableError while loading the table, it is not started."""
        target = partial(self._run, self._names)
        self._thread = threading.Thread(target=target, name="lakewright-services", daemon=True)
        self._thread.start()

    def run_once(self) -> tuple[ServiceOutcome, ...]:
        """Run the services once in the calling thread; errors are returned as outcomes."""
        try:
            return tuple(run_round(self._runner, self._names))
        except LakewrightError as error:
            return (ServiceOutcome("services", error),)

    def take_outcomes(self) -> tuple[ServiceOutcome, ...]:
        """Return the outcomes since the last call."""
        with self._guard:
            outcomes, self._outcomes = tuple(self._outcomes), []
        return outcomes

    def stop(self) -> None:
        """Stop the thread after the running service and wait for it."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()

    @property
    def _runner(self) -> ServiceRunner:
        options = with_optimistic_concurrency(self.options)
        return replace(self.writer.services, options=options)

    @property
    def _names(self) -> tuple[str, ...]:
        config = load_snapshot(self.writer.storage).config
        settings = settings_from(InlineSettings, self.options)
        return tuple(name for name, _ in settings.steps(config))

    def _run(self, names: Sequence[str]) -> None:
        if not names:
            return
        try:
            run_continuously(
                self._runner,
                names,
                interval_s=self.interval_s,
                clock=self.clock,
                stop=self._stop.is_set,
                report=self._record,
            )
        except LakewrightError as error:
            # The ingestion continues without services.
            self._record(MaintenanceRound(0, (ServiceOutcome("services", error),)))

    def _record(self, maintenance: MaintenanceRound) -> None:
        with self._guard:
            self._outcomes += maintenance.steps


# Ingestion: a source, an optional transformation and a target table.

Report = Callable[[IngestResult], None]

MIN_INTERVAL_S = 10.0
_SRC = "<SRC>"
_MAX_DELAY_S = 60.0
_SOURCE_PREFIXES = (
    "hoodie.streamer.",
    "hoodie.deltastreamer.",
    "lakewright.source.",
    "lakewright.ingest.",
)
# Options of key generators, which share the prefix of Hudi's streamer.
_KEYGEN_PREFIXES = ("hoodie.streamer.keygen.", "hoodie.deltastreamer.keygen.")


def _text(text: str) -> str:
    if not text.strip():
        raise ValueError("a text expected")
    return text.strip()


@dataclass(frozen=True, slots=True, kw_only=True)
class IngestSettings:
    """The options of an ingestion, apart from those of its source and its table."""

    source_name: str | None = option(
        "hoodie.streamer.multiwriter.source.checkpoint.id",
        None,
        parse=_text,
        aliases=("hoodie.deltastreamer.multiwriter.source.checkpoint.id",),
        doc="The name of this source where several sources write to the same table. Its checkpoint "
        "is then read only from commits with this name.",
    )
    transform: str | None = option(
        "hoodie.streamer.transformer.sql",
        None,
        parse=_text,
        aliases=("hoodie.deltastreamer.transformer.sql",),
        doc="A SQL query on the rows of the source, which it names <SRC>.",
    )


INGEST_KEYS = option_keys(IngestSettings)


def ingest(
    spark: SparkSession,
    source: Source | str,
    table: Table | str | os.PathLike[str],
    *,
    transform: str | Transform | None = None,
    options: Mapping[str, str] | None = None,
    operation: str = "upsert",
    continuous: bool = False,
    min_interval_s: float = MIN_INTERVAL_S,
    services: str = "inline",
    checkpoint: str | None = None,
    report: Report | None = None,
    stop: Callable[[], bool] | None = None,
) -> IngestResult:
    """Ingest rows from a source into a table: one batch, or continuously.

    Each commit contains the rows of one batch and its checkpoint, so a crash neither loses nor
    repeats rows. Queues may deliver messages again: `s3-events` and `gcs-events` need a table with
    a record key, and upserts.

    Args:
        spark: The Spark session.
        source: A `Source`, or the name of one (`hudi`, `files`, `kafka`, `s3-events`, `gcs-events`,
            `cloud`, or a registered source), which is then created from `options`.
        table: A table or its path. A table that does not exist is created with the first rows, from
            the options that describe it.
        transform: A SQL query that names the rows of the source `<SRC>`, or a function from
            DataFrame to DataFrame.
        options: Options of the source, the writes and the storage.
        operation: `upsert`, `insert`, `bulk_insert`, `delete`, `insert_overwrite` or
            `insert_overwrite_table`.
        continuous: Whether to ingest batch after batch until `stop` returns true.
        min_interval_s: Minimum number of seconds between the starts of two rounds.
        services: Where table services run: `inline` after each commit, `async` in a background
            thread, or `off`.
        checkpoint: Checkpoint to resume from instead of the one in the table. Giving the same one
            again has no effect.
        report: Called with the result of each round.
        stop: Called after each round; a continuous ingestion ends when it returns true.

    Returns:
        The result of the last round.

    Raises:
        ConflictError: A concurrent process committed another batch of the source. A continuous
            ingestion retries instead.
        UnavailableError: The storage, the lock or the source did not respond. A continuous
            ingestion retries instead.
        LakewrightError: The batch could not be read or written; the checkpoint has not changed.

    Example:
        ```python
        result = lw.ingest(
            spark,
            "files",
            "s3a://lake/orders",
            transform="SELECT *, to_date(ts) AS day FROM <SRC> WHERE amount > 0",
            options={
                "hoodie.streamer.source.dfs.root": "s3a://landing/orders",
                "lakewright.source.files.format": "json",
                "hoodie.table.name": "orders",
                "hoodie.datasource.write.recordkey.field": "id",
                "hoodie.datasource.write.partitionpath.field": "day",
                "hoodie.datasource.write.precombine.field": "ts",
            },
        )
        print(result.inserted, result.updated, result.after)
        ```
    """
    prepared = ingestion(
        spark,
        source,
        table,
        transform=transform,
        options=options,
        operation=operation,
        services=services,
        checkpoint=checkpoint,
    )
    if continuous:
        return prepared.run_continuously(min_interval_s, stop or _never, report or _no_report)
    return prepared.run_once(report or _no_report)


def ingestion(
    spark: SparkSession,
    source: Source | str,
    table: Table | str | os.PathLike[str],
    *,
    transform: str | Transform | None = None,
    options: Mapping[str, str] | None = None,
    operation: str = "upsert",
    services: str = "inline",
    checkpoint: str | None = None,
    clock: Clock | None = None,
) -> Ingestion:
    """Create an ingestion without starting it, after all checks that need no data."""
    string_options = {key: str(value) for key, value in (options or {}).items()}
    all_storage_options = {**session_storage_options(spark), **storage_options(string_options)}
    storage = table.storage if isinstance(table, Table) else storage_for(table, all_storage_options)
    settings = settings_from(IngestSettings, string_options)
    if transform is not None and settings.transform is not None:
        raise InvalidError("a transformation is given twice: by an option as well")
    row_source = _source(source, string_options, all_storage_options)
    write_options = _with_operation(
        _write_options(string_options, row_source, from_options=isinstance(source, str)), operation
    )
    mode = parse_mode(services)
    writer = WriteClient.create(storage, writer_options(write_options, mode), clock, spark)
    parse_operation(writer.options)
    ingester = Ingester(
        row_source,
        writer,
        spark,
        _transform(transform if transform is not None else settings.transform),
        settings.source_name,
        checkpoint,
    )
    return Ingestion(ingester, mode, write_options)


@dataclass(frozen=True)
class Ingestion:
    """The rounds of an ingester, and services between them; `options` are the write options."""

    ingester: Ingester
    services: ServiceMode = ServiceMode.INLINE
    options: Mapping[str, str] | None = None

    def run_once(self, report: Report) -> IngestResult:
        """Ingest one batch; in the mode `async`, services run after it and report their errors."""
        result = self.ingester.run()
        if self.services is ServiceMode.ASYNC and result.commit is not None:
            result = replace(result, services=self._thread(MIN_INTERVAL_S).run_once())
        report(result)
        return result

    def run_continuously(
        self, min_interval_s: float, stop: Callable[[], bool], report: Report
    ) -> IngestResult:
        """Ingest batch after batch until `stop` returns true between two rounds.

        Raises:
            LakewrightError: An error that a retry does not fix; it was reported before.
        """
        if min_interval_s < 0:
            raise InvalidError("the interval of rounds cannot be negative", seconds=min_interval_s)
        thread = self._thread(max(min_interval_s, 1.0))
        try:
            return self._rounds(min_interval_s, stop, report, thread)
        finally:
            thread.stop()

    def _rounds(
        self, min_interval_s: float, stop: Callable[[], bool], report: Report, thread: ServiceThread
    ) -> IngestResult:
        clock = self.ingester.writer.clock
        number = failures = 0
        while True:
            number += 1
            started = clock.monotonic_ms()
            result = self._attempt(number)
            if self.services is ServiceMode.ASYNC:
                result = replace(result, services=thread.take_outcomes())
            report(result)
            if result.error is not None and not result.is_retryable:
                raise result.error
            if self.services is ServiceMode.ASYNC and not thread.has_begun:
                self._start_services(thread)
            failures = failures + 1 if result.error is not None else 0
            delay_s = max(min_interval_s, backoff_s(failures))
            pause(delay_s - (clock.monotonic_ms() - started) / 1000, clock, stop)
            if stop():
                return result

    def _start_services(self, thread: ServiceThread) -> None:
        """Start the services once the table exists; if that is unknown now, after a later round."""
        with suppress(UnavailableError):
            if self.ingester.table_exists:
                thread.start()

    def _attempt(self, number: int) -> IngestResult:
        try:
            return self.ingester.run(number)
        except LakewrightError as error:
            return IngestResult(number, self.ingester.source.name, error)

    def _thread(self, interval_s: float) -> ServiceThread:
        writer = self.ingester.writer
        return ServiceThread(writer, self.options or {}, interval_s, writer.clock)


def backoff_s(failures: int) -> float:
    """Return the delay in seconds after a number of consecutive failures."""
    return min(2.0 ** (failures - 1), _MAX_DELAY_S) if failures else 0.0


def sql_transform(text: str) -> Transform:
    """Return a function on DataFrames that runs a query, in which `<SRC>` names the rows."""
    if _SRC not in text:
        raise InvalidError(f"the query does not say {_SRC}, where its rows come from", query=text)
    # Spark replaces names in braces, so the braces of the query are escaped.
    escaped = text.replace("{", "{{").replace("}", "}}").replace(_SRC, "{rows}")

    def transform(frame: DataFrame) -> DataFrame:
        return frame.sparkSession.sql(escaped, rows=frame)

    return transform


def _transform(transform: str | Transform | None) -> Transform | None:
    return sql_transform(transform) if isinstance(transform, str) else transform


def _source(
    source: Source | str, options: Mapping[str, str], all_storage_options: Mapping[str, str]
) -> Source:
    """Return the source, after a check of the options that only a source can have."""
    source_options = {key: value for key, value in options.items() if _is_for_source(key)}
    if isinstance(source, Source):
        _check_names(source_options, INGEST_KEYS)
        return source
    kind = source_kind(source)
    _check_names(source_options, INGEST_KEYS | (kind.keys or source_options.keys()))
    return kind.from_options({**all_storage_options, **options})


def _check_names(options: Mapping[str, str], known_keys: Collection[str]) -> None:
    for key in ignored_options(options, known_keys, {}):
        warnings.warn(f"option {key} has no effect on this source", stacklevel=5)


def _write_options(
    options: Mapping[str, str], source: Source, *, from_options: bool
) -> dict[str, str]:
    """Return the options of the writes, without those of the storage and of the source.

    If the source was created from options, all options that it takes are left out.
    """
    return {
        key: value
        for key, value in other_options(options).items()
        if not (_is_for_source(key) or key in source.keys or (from_options and source.takes(key)))
    }


def _is_for_source(key: str) -> bool:
    return key.startswith(_SOURCE_PREFIXES) and not key.startswith(_KEYGEN_PREFIXES)


def _with_operation(options: Mapping[str, str], operation: str) -> dict[str, str]:
    """Return the write options with an operation; the one in the options takes precedence."""
    merged = {OPERATION: operation, **options}
    chosen = parse_operation(merged)
    if operation != "upsert" and parse_operation({OPERATION: operation}) is not chosen:
        raise InvalidError(
            "an option names another operation than the call: leave it out",
            call=operation,
            **{OPERATION: merged[OPERATION]},
        )
    if chosen is Operation.DELETE_PARTITION:
        raise InvalidError("a source has rows, not partitions: choose another operation")
    return merged


def _never() -> bool:
    return False


def _no_report(result: IngestResult) -> None:
    """Ignore the result of a round."""
