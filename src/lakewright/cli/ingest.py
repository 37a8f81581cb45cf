"""The command ingest: it runs rounds of an ingestion, and prints each as a line or as JSON."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from datetime import UTC, datetime
from types import TracebackType
from typing import Annotated, Self

import typer
from rich.console import Console
from rich.status import Status
from rich.text import Text

from lakewright.cli.common import (
    JsonOption,
    OptionsFileOption,
    OptionsOption,
    PathArgument,
    StopRequest,
    example,
    exit_codes,
    group,
    parse_options,
)
from lakewright.cli.output import Document, show, size_text
from lakewright.cli.progress import following
from lakewright.cli.spark import spark_work, start_session
from lakewright.client.command_options import spark_options
from lakewright.client.documents import outcome_document
from lakewright.clock import SystemClock
from lakewright.ingestion.checkpoints import Checkpoint
from lakewright.ingestion.ingester import IngestResult
from lakewright.ingestion.loop import Ingestion, ingestion
from lakewright.model.plans import Skip
from lakewright.storage.factory import other_options
from lakewright.utils.terminal import SafeConsole, say

app = group()


@app.command(
    epilog=example(
        "lakewright ingest data/trips --source files -o hoodie.streamer.source.dfs.root=landing",
        "lakewright ingest data/trips --source kafka --continuous -o ...",
    )
)
def ingest(
    path: PathArgument,
    source: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="hudi, files, kafka, s3-events, gcs-events, cloud, or a registered source.",
        ),
    ],
    transform: Annotated[
        str | None,
        typer.Option(
            metavar="SQL", help="A query on the rows of the source: SELECT ... FROM <SRC>."
        ),
    ] = None,
    operation: Annotated[
        str, typer.Option(metavar="NAME", help="The write operation, such as upsert or insert.")
    ] = "upsert",
    continuous: Annotated[
        bool, typer.Option("--continuous", help="Run rounds until SIGINT or SIGTERM.")
    ] = False,
    min_interval: Annotated[
        float,
        typer.Option(metavar="SECONDS", help="The least time between the starts of two rounds."),
    ] = 10.0,
    table_services: Annotated[
        str,
        typer.Option(
            "--services",
            metavar="MODE",
            help="inline: after each commit; async: in the background; off: not in this process.",
        ),
    ] = "inline",
    checkpoint: Annotated[
        str | None,
        typer.Option(
            metavar="TEXT",
            help="The checkpoint to resume from; ignored if the table has resumed from it before.",
        ),
    ] = None,
    option: OptionsOption = None,
    options_file: OptionsFileOption = None,
    master: Annotated[str, typer.Option(metavar="URL", help="The Spark master.")] = "local[*]",
    as_json: JsonOption = False,
) -> None:
    """Write what a source has into a table: one batch, or batch after batch."""
    with exit_codes():
        request = IngestRequest(
            path,
            source,
            parse_options(option, options_file),
            transform,
            operation,
            table_services,
            checkpoint,
        )
        interval = min_interval if continuous else None
        run_ingest(request, master=master, interval_s=interval, as_json=as_json)


@dataclasses.dataclass(frozen=True, slots=True)
class IngestRequest:
    """The arguments of the command."""

    table: str
    source: str
    options: Mapping[str, str]
    transform: str | None = None
    operation: str = "upsert"
    services: str = "inline"
    checkpoint: str | None = None


def run_ingest(
    request: IngestRequest, *, master: str, interval_s: float | None, as_json: bool
) -> None:
    """Run one round, or rounds at least `interval_s` apart until a signal.

    Raises:
        LakewrightError: A single round failed, or a round with an error that a retry cannot fix.
    """
    configs = spark_options(request.options)
    with StopRequest() as stop:
        spark = start_session(master, configs)
        # Spark has installed signal handlers of its own.
        stop.listen()
        try:
            prepared_ingestion = create_ingestion(request, spark)
            storage, work = prepared_ingestion.ingester.writer.storage, spark_work(spark)
            with (
                RoundPrinter(storage.root, as_json=as_json) as printer,
                following(storage, printer.show_progress, work)
                if printer.is_live
                else nullcontext(),
            ):
                if interval_s is None:
                    prepared_ingestion.run_once(printer)
                else:
                    prepared_ingestion.run_continuously(interval_s, stop, printer)
        finally:
            spark.stop()


def ingestion_options(options: Mapping[str, str]) -> dict[str, str]:
    """Return the options without those of the Spark session."""
    session_options = spark_options(other_options(options))
    return {key: value for key, value in options.items() if key not in session_options}


def create_ingestion(request: IngestRequest, spark: object) -> Ingestion:
    """Create the ingestion of a request, without starting it."""
    return ingestion(
        spark,  # type: ignore[arg-type]
        request.source,
        request.table,
        transform=request.transform,
        options=ingestion_options(request.options),
        operation=request.operation,
        services=request.services,
        checkpoint=request.checkpoint,
    )


class RoundPrinter:
    """Prints a line for each round; on a terminal, rounds without rows share a status line."""

    def __init__(self, table: str, *, as_json: bool, console: Console | None = None) -> None:
        self._table = table
        self._as_json = as_json
        self._console = console or SafeConsole()
        self._status: Status | None = None
        self._skip_reason = ""
        self._idle_text = ""

    def __enter__(self) -> Self:
        if self._console.is_terminal and not self._as_json:
            self._status = self._console.status("reading")
            self._status.start()
        return self

    @property
    def is_live(self) -> bool:
        """Whether there is a status line: on a terminal."""
        return self._status is not None

    def show_progress(self, text: str) -> None:
        """Show the progress of the round in the status line, if there is one."""
        if self._status is not None and not self._idle_text:
            self._status.update(Text(text))

    def __call__(self, result: IngestResult) -> None:
        """Print the result of a round."""
        if self._as_json:
            show(round_document(self._table, result), as_json=True, one_line=True)
            return
        text = round_text(result)
        if self._status is not None and isinstance(result.outcome, Skip):
            self._idle_text = text
            self._status.update(Text(text))
        elif not self._is_repeated_skip(result):
            self._idle_text = ""
            self._print(text)
        failures = [f"{step.service}: {step.error}" for step in result.services if step.error]
        for problem in (*result.troubles, *failures):
            say(f"warning: {problem}", err=True)

    def _is_repeated_skip(self, result: IngestResult) -> bool:
        """Whether the round was skipped for the same reason as the one before."""
        previous, self._skip_reason = self._skip_reason, ""
        if isinstance(result.outcome, Skip):
            self._skip_reason = result.outcome.reason
        return bool(self._skip_reason) and self._skip_reason == previous

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._status is not None:
            self._status.stop()
        if self._idle_text:
            self._print(self._idle_text)

    def _print(self, text: str) -> None:
        self._console.print(Text(text), soft_wrap=True)


def round_document(table: str, result: IngestResult) -> Document:
    """Return the document of a round."""
    now = datetime.fromtimestamp(SystemClock().now_ms() / 1000, UTC)
    return {
        "table": table,
        "round": result.number,
        "at": now.isoformat(timespec="milliseconds"),
        "source": result.source,
        **outcome_document(result.outcome),
        "rows": result.rows,
        "inserted": result.inserted,
        "updated": result.updated,
        "deleted": result.deleted,
        "bytes": result.bytes,
        "lag_ms": result.lag_ms,
        "objects_waiting": result.waiting,
        "took_ms": result.took_ms,
        "checkpoint_before": _checkpoint_text(result.before),
        "checkpoint_after": _checkpoint_text(result.after),
        "facts": dict(result.facts),
        "troubles": list(result.troubles),
        "services": [
            {"service": step.service, **outcome_document(step.outcome)} for step in result.services
        ],
    }


def round_text(result: IngestResult) -> str:
    """Return the result of a round as a line of text."""
    if result.commit is None:
        status = "failed" if result.error is not None else "nothing"
        detail = result.error if result.error is not None else getattr(result.outcome, "reason", "")
        parts = [f"round {result.number}: {status}, {detail}"]
    else:
        kinds = {"new": result.inserted, "updated": result.updated, "deleted": result.deleted}
        counts = ", ".join(f"{count} {kind}" for kind, count in kinds.items() if count)
        parts = [f"round {result.number}: {result.rows} rows" + (f" ({counts})" if counts else "")]
        parts += [f"commit {result.commit.instant}", f"{result.took_ms / 1000:.1f} s"]
    figures: list[tuple[int | None, Callable[[int], str]]] = [
        (result.bytes, size_text),
        (result.lag_ms, lambda ms: f"{ms / 1000:.1f} s behind"),
        (result.waiting, lambda count: f"{count} waiting"),
    ]
    return "; ".join([*parts, *(text(value) for value, text in figures if value)])


def _checkpoint_text(checkpoint: Checkpoint | None) -> str | None:
    return checkpoint.text if checkpoint is not None else None
