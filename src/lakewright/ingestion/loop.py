"""Table services beside an ingestion: after each commit, in a thread of their own, or none."""

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
from lakewright.table.snapshot import load_snapshot
from lakewright.write.task import Operation

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_MODE = "hoodie.write.concurrency.mode"
_SEVERAL_WRITERS = {_MODE: "OPTIMISTIC_CONCURRENCY_CONTROL"}
_NOT_INLINE = {
    "hoodie.compact.inline": "false",
    "hoodie.compact.schedule.inline": "false",
    "hoodie.log.compaction.inline": "false",
    "hoodie.clustering.inline": "false",
    "hoodie.clustering.schedule.inline": "false",
    "hoodie.clean.automatic": "false",
    "hoodie.archive.automatic": "false",
}
_FATE = "hoodie.fail.writes.on.inline.table.service.exception"
_SWITCHES = option_keys(InlineSettings) - {_FATE}


class ServiceMode(StrEnum):
    """Who takes care of the table while it is filled."""

    INLINE = "inline"  # the round that has committed
    ASYNC = "async"  # a thread beside the rounds
    OFF = "off"  # somebody else


def parse_mode(text: str) -> ServiceMode:
    """The mode of a name."""
    try:
        return ServiceMode(text.strip().lower())
    except ValueError as error:
        known = [str(mode) for mode in ServiceMode]
        raise InvalidError("no such mode of services", services=text, known=known) from error


def writer_options(options: Mapping[str, str], mode: ServiceMode) -> dict[str, str]:
    """The options of the rounds' own writes."""
    if mode is ServiceMode.INLINE:
        return dict(options)
    if mode is ServiceMode.ASYNC:
        return {**_SEVERAL_WRITERS, **options, **_NOT_INLINE}
    asked = [key for key in sorted(_SWITCHES & options.keys()) if parse_bool(options[key])]
    if asked:
        raise InvalidError(
            "services are off, and options ask for some: leave them out", options=asked
        )
    return {**options, **_NOT_INLINE}


@dataclass
class ServiceThread:
    """The services that options ask for, in a thread that rounds need not wait for."""

    writer: WriteClient
    options: Mapping[str, str]
    interval_s: float
    clock: Clock
    _steps: list[ServiceOutcome] = field(default_factory=list)
    _stop: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None
    _guard: threading.Lock = field(default_factory=threading.Lock)

    @property
    def has_begun(self) -> bool:
        """Whether it was started."""
        return self._thread is not None

    def start(self) -> None:
        """Begin; UnavailableError if the table could not be looked at, and nothing has begun."""
        work = partial(self._run, self._names)
        self._thread = threading.Thread(target=work, name="lakewright-services", daemon=True)
        self._thread.start()

    def run_once(self) -> tuple[ServiceOutcome, ...]:
        """One round of services, in the caller's own thread; errors are outcomes."""
        try:
            return tuple(run_round(self._runner, self._names))
        except LakewrightError as error:
            return (ServiceOutcome("services", error),)

    def take_outcomes(self) -> tuple[ServiceOutcome, ...]:
        """What was done since somebody asked last."""
        with self._guard:
            steps, self._steps = tuple(self._steps), []
        return steps

    def stop(self) -> None:
        """End after the step that is under way."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()

    @property
    def _runner(self) -> ServiceRunner:
        told = {**_SEVERAL_WRITERS, **self.options}
        return replace(self.writer.services, options=told)

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
                report=self._note,
            )
        except LakewrightError as error:
            # The steps have told of it; the rounds go on without services.
            self._note(MaintenanceRound(0, (ServiceOutcome("services", error),)))

    def _note(self, found: MaintenanceRound) -> None:
        with self._guard:
            self._steps += found.steps


# ------------------------------------------------------------------------------------------------
# `lw.ingest`: a source, an optional transformation, a table; once, or round after round.


Report = Callable[[IngestResult], None]

MIN_INTERVAL_S = 10.0
_SRC = "<SRC>"
_LONGEST_REST_S = 60.0
_SOURCE_PREFIXES = (
    "hoodie.streamer.",
    "hoodie.deltastreamer.",
    "lakewright.source.",
    "lakewright.ingest.",
)
# The key generators' own, which came into the world with Hudi's streamer.
_KEYGEN_PREFIXES = ("hoodie.streamer.keygen.", "hoodie.deltastreamer.keygen.")


def _text(text: str) -> str:
    if not text.strip():
        raise ValueError("a text expected")
    return text.strip()


@dataclass(frozen=True, slots=True, kw_only=True)
class IngestSettings:
    """What options say about an ingestion, besides its source and its table."""

    source_name: str | None = option(
        "hoodie.streamer.multiwriter.source.checkpoint.id",
        None,
        parse=_text,
        aliases=("hoodie.deltastreamer.multiwriter.source.checkpoint.id",),
        doc="What tells this source from others that fill the same table. Its position is then "
        "looked for among the commits with this name alone.",
    )
    transform: str | None = option(
        "hoodie.streamer.transformer.sql",
        None,
        parse=_text,
        aliases=("hoodie.deltastreamer.transformer.sql",),
        doc="A query on what the source gives, which it calls <SRC>.",
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
    """Bring what a source has into a table: one batch, or batch after batch.

    A source is an object or a name (`hudi`, `files`, `kafka`, ...) whose options are among
    `options`, with those of the write and of storage. `transform` is a query with `<SRC>` for the
    source's rows, or a function on DataFrames. A table that is not there is made by the first rows
    from the options that describe it. `checkpoint` is where to go on from instead of where the
    table is; the same one given again means nothing.

    A `continuous` ingestion goes on until `stop` says so; rounds begin at least `min_interval_s`
    apart. `report` is told of each round; the last one is given back.

    Raises:
        LakewrightError: a round failed; a continuous ingestion tries again what may pass.
    """
    made = ingestion(
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
        return made.run_continuously(min_interval_s, stop or _never, report or _no_report)
    return made.run_once(report or _no_report)


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
    """An ingestion that has not begun; what can be checked without reading anything is checked."""
    told = {key: str(value) for key, value in (options or {}).items()}
    places = {**session_storage_options(spark), **storage_options(told)}
    storage = table.storage if isinstance(table, Table) else storage_for(table, places)
    settings = settings_from(IngestSettings, told)
    if transform is not None and settings.transform is not None:
        raise InvalidError("a transformation is given twice: by an option as well")
    found = _source(source, told, places)
    wanted = _with_operation(_write_options(told, found, made=isinstance(source, str)), operation)
    mode = parse_mode(services)
    writer = WriteClient.create(storage, writer_options(wanted, mode), clock, spark)
    parse_operation(writer.options)
    made = Ingester(
        found,
        writer,
        spark,
        _transform(transform if transform is not None else settings.transform),
        settings.source_name,
        checkpoint,
    )
    return Ingestion(made, mode, wanted)


@dataclass(frozen=True)
class Ingestion:
    """Rounds of an ingester, and the services beside them; `options` are those of the writes."""

    ingester: Ingester
    services: ServiceMode = ServiceMode.INLINE
    options: Mapping[str, str] | None = None

    def run_once(self, report: Report) -> IngestResult:
        """One batch; services of the mode `async` follow it, and their failures are only told."""
        done = self.ingester.run()
        if self.services is ServiceMode.ASYNC and done.commit is not None:
            done = replace(done, services=self._thread(MIN_INTERVAL_S).run_once())
        report(done)
        return done

    def run_continuously(
        self, min_interval_s: float, stop: Callable[[], bool], report: Report
    ) -> IngestResult:
        """Batch after batch, until `stop` says so between two rounds.

        Raises:
            LakewrightError: one that will not pass by itself; it was reported before.
        """
        if min_interval_s < 0:
            raise InvalidError("the interval of rounds cannot be negative", seconds=min_interval_s)
        thread = self._thread(max(min_interval_s, 1.0))
        try:
            return self._rounds(min_interval_s, stop, report, thread)
        finally:
            thread.stop()

    def _rounds(
        self, least_s: float, stop: Callable[[], bool], report: Report, thread: ServiceThread
    ) -> IngestResult:
        clock = self.ingester.writer.clock
        number = failures = 0
        while True:
            number += 1
            started = clock.monotonic_ms()
            done = self._attempt(number)
            if self.services is ServiceMode.ASYNC:
                done = replace(done, services=thread.take_outcomes())
            report(done)
            if done.error is not None and not done.is_retryable:
                raise done.error
            if self.services is ServiceMode.ASYNC and not thread.has_begun:
                self._begin(thread)
            failures = failures + 1 if done.error is not None else 0
            rest_s = max(least_s, rest_after(failures))
            pause(rest_s - (clock.monotonic_ms() - started) / 1000, clock, stop)
            if stop():
                return done

    def _begin(self, thread: ServiceThread) -> None:
        """Let services begin once there is a table; if that cannot be told now, the next time."""
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


def rest_after(failures: int) -> float:
    """How long to wait after some failures in a row, in seconds."""
    return min(2.0 ** (failures - 1), _LONGEST_REST_S) if failures else 0.0


def sql_transform(text: str) -> Transform:
    """A query as a function on DataFrames; it calls the rows `<SRC>`."""
    if _SRC not in text:
        raise InvalidError(f"the query does not say {_SRC}, where its rows come from", query=text)
    # Spark replaces names in braces; those of the query are its own.
    safe = text.replace("{", "{{").replace("}", "}}").replace(_SRC, "{rows}")

    def transform(frame: DataFrame) -> DataFrame:
        return frame.sparkSession.sql(safe, rows=frame)

    return transform


def _transform(told: str | Transform | None) -> Transform | None:
    return sql_transform(told) if isinstance(told, str) else told


def _source(source: Source | str, told: Mapping[str, str], places: Mapping[str, str]) -> Source:
    """The source, after a check of the options that only a source can mean."""
    mine = {key: value for key, value in told.items() if _is_for_source(key)}
    if isinstance(source, Source):
        _check_names(mine, INGEST_KEYS)
        return source
    kind = source_kind(source)
    _check_names(mine, INGEST_KEYS | (kind.keys or mine.keys()))
    return kind.from_options({**places, **told})


def _check_names(options: Mapping[str, str], known: Collection[str]) -> None:
    for key in ignored_options(options, known, {}):
        warnings.warn(f"option {key} has no effect on this source", stacklevel=5)


def _write_options(told: Mapping[str, str], source: Source, *, made: bool) -> dict[str, str]:
    """The options of the writes: neither storage's nor the source's, if they have `made` it."""
    return {
        key: value
        for key, value in other_options(told).items()
        if not (_is_for_source(key) or key in source.keys or (made and source.takes(key)))
    }


def _is_for_source(key: str) -> bool:
    return key.startswith(_SOURCE_PREFIXES) and not key.startswith(_KEYGEN_PREFIXES)


def _with_operation(options: Mapping[str, str], operation: str) -> dict[str, str]:
    """The options of writes; the operation that they name goes before the usual one."""
    told = {OPERATION: operation, **options}
    chosen = parse_operation(told)
    if operation != "upsert" and parse_operation({OPERATION: operation}) is not chosen:
        raise InvalidError(
            "an option names another operation than the call: leave it out",
            call=operation,
            **{OPERATION: told[OPERATION]},
        )
    if chosen is Operation.DELETE_PARTITION:
        raise InvalidError("a source gives rows, not partitions: choose another operation")
    return told


def _never() -> bool:
    return False


def _no_report(done: IngestResult) -> None:
    """Hear of a round, and do nothing."""
