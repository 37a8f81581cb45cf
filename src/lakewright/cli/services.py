"""Commands that plan, run and cancel table services."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from types import TracebackType
from typing import Annotated, Any, Self

import typer

from lakewright.cli.common import (
    JsonOption,
    MasterOption,
    OptionsFileOption,
    OptionsOption,
    PathArgument,
    StopRequest,
    example,
    exit_codes,
    group,
    parse_options,
)
from lakewright.cli.output import Document, show
from lakewright.cli.progress import watching
from lakewright.client.command_options import spark_options
from lakewright.client.documents import outcome_document, plan_document, service_document
from lakewright.client.service_client import (
    Options,
    cancel_plan,
    default_services,
    service_runner,
    with_optimistic_concurrency,
)
from lakewright.clock import SystemClock
from lakewright.engine.base import Engine
from lakewright.errors import InvalidError
from lakewright.model.instant import Instant
from lakewright.model.plans import Skip
from lakewright.services.maintenance_loop import MaintenanceRound, run_continuously, run_round
from lakewright.services.registry import service_by_name, services
from lakewright.services.runner import ServiceRunner
from lakewright.storage.base import Storage
from lakewright.table.snapshot import load_snapshot

services_app = group("Run table services.")


@services_app.command(
    "run",
    epilog=example(
        "lakewright services run data/trips",
        "lakewright services run data/trips --service clean --continuous --interval 300",
    ),
)
def services_run(
    path: PathArgument,
    service: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="Which to run, in this order; by default compaction (if there can be log files), "
            "clean and archive.",
        ),
    ] = None,
    continuous: Annotated[
        bool, typer.Option("--continuous", help="Go on until a signal says stop.")
    ] = False,
    interval: Annotated[
        float, typer.Option(metavar="SECONDS", help="The pause between two rounds.")
    ] = 60.0,
    option: OptionsOption = None,
    options_file: OptionsFileOption = None,
    master: MasterOption = "local[*]",
    as_json: JsonOption = False,
) -> None:
    """Execute pending plans, then run the services that are due."""
    with exit_codes():
        run_services(
            path,
            service or (),
            parse_options(option, options_file),
            master=master,
            interval_s=interval if continuous else None,
            report=lambda document: show(document, as_json=as_json, one_line=continuous),
        )


@services_app.command("list", epilog=example("lakewright services list --json"))
def services_list(as_json: JsonOption = False) -> None:
    """List the services."""
    with exit_codes():
        show(list_services(), as_json=as_json)


app = group()

ScheduleOption = Annotated[
    bool, typer.Option("--schedule", help="Only put the plan on the timeline.")
]
ExecuteOption = Annotated[
    str | None,
    typer.Option(metavar="INSTANT", help="Only execute a plan that is on the timeline."),
]


@app.command(
    epilog=example(
        "lakewright compact data/trips",
        "lakewright compact data/trips --schedule -o hoodie.compaction.strategy=log_file_size",
        "lakewright compact data/trips --execute 20260131120000000",
    )
)
def compact(
    path: PathArgument,
    schedule: ScheduleOption = False,
    execute: ExecuteOption = None,
    option: OptionsOption = None,
    options_file: OptionsFileOption = None,
    master: MasterOption = "local[*]",
    as_json: JsonOption = False,
) -> None:
    """Merge log files into base files."""
    _run("compaction", path, schedule, execute, (option, options_file), master, as_json)


@app.command(
    epilog=example(
        "lakewright cluster data/trips -o hoodie.clustering.plan.strategy.sort.columns=city"
    )
)
def cluster(
    path: PathArgument,
    schedule: ScheduleOption = False,
    execute: ExecuteOption = None,
    option: OptionsOption = None,
    options_file: OptionsFileOption = None,
    master: MasterOption = "local[*]",
    as_json: JsonOption = False,
) -> None:
    """Rewrite small files into larger ones, with rows sorted."""
    _run("clustering", path, schedule, execute, (option, options_file), master, as_json)


@app.command(epilog=example("lakewright clean data/trips -o hoodie.clean.commits.retained=24"))
def clean(
    path: PathArgument,
    schedule: ScheduleOption = False,
    execute: ExecuteOption = None,
    option: OptionsOption = None,
    options_file: OptionsFileOption = None,
    master: MasterOption = "local[*]",
    as_json: JsonOption = False,
) -> None:
    """Delete files that no query of the retained commits reads."""
    _run("clean", path, schedule, execute, (option, options_file), master, as_json)


@app.command(epilog=example("lakewright archive data/trips -o hoodie.keep.max.commits=60"))
def archive(
    path: PathArgument,
    schedule: ScheduleOption = False,
    execute: ExecuteOption = None,
    option: OptionsOption = None,
    options_file: OptionsFileOption = None,
    master: MasterOption = "local[*]",
    as_json: JsonOption = False,
) -> None:
    """Move old instants to the archived timeline."""
    _run("archive", path, schedule, execute, (option, options_file), master, as_json)


def _run(
    name: str,
    path: str,
    schedule: bool,
    execute: str | None,
    given: tuple[list[str] | None, str | None],
    master: str,
    as_json: bool,
) -> None:
    with exit_codes():
        document = run_service(
            path, name, parse_options(*given), schedule=schedule, execute=execute, master=master
        )
        show(document, as_json=as_json)


@app.command(
    epilog=example("lakewright plan data/trips compaction", "lakewright plan data/trips clean")
)
def plan(
    path: PathArgument,
    service: Annotated[str, typer.Argument(metavar="SERVICE", help="Such as compaction.")],
    option: OptionsOption = None,
    options_file: OptionsFileOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show what a service would do now, and why not more."""
    with exit_codes():
        show(preview(path, service, parse_options(option, options_file)), as_json=as_json)


@app.command(
    epilog=example("lakewright cancel data/trips 20260131120000000 --reason 'make way' --wait 60")
)
def cancel(
    path: PathArgument,
    instant: Annotated[str, typer.Argument(metavar="INSTANT", help="The plan, by its instant.")],
    reason: Annotated[str, typer.Option(metavar="TEXT", help="Why; kept with the rollback.")] = "",
    user: Annotated[str, typer.Option(metavar="NAME", help="Who asks for it.")] = "",
    wait: Annotated[
        float,
        typer.Option(metavar="SECONDS", help="How long to wait for who executes it to stop."),
    ] = 0.0,
    option: OptionsOption = None,
    options_file: OptionsFileOption = None,
    as_json: JsonOption = False,
) -> None:
    """Cancel a cancellable plan, or ask the process that executes it to stop."""
    with exit_codes():
        options = parse_options(option, options_file)
        document = cancel_plan(path, options, instant, user=user, reason=reason, wait_s=wait)
        show(document, as_json=as_json)


def run_services(
    path: str,
    names: Sequence[str],
    options: Options,
    *,
    master: str,
    interval_s: float | None,
    report: Callable[[Document], None],
) -> None:
    """Run services once, or in rounds `interval_s` apart until a signal says stop.

    Raises:
        LakewrightError: the first failure of a single round; else see `run_continuously`.
    """
    with StopRequest() as stop, LazySpark(master, options, stop.listen) as engine:
        runner = _watched(service_runner(path, with_optimistic_concurrency(options), engine))
        wanted = names or default_services(load_snapshot(runner.storage).config)

        def report_round(found: MaintenanceRound) -> None:
            report(_round_document(runner.storage, found))

        if interval_s is not None:
            clock = runner.clock
            run_continuously(
                runner, wanted, interval_s=interval_s, clock=clock, stop=stop, report=report_round
            )
            return
        only = MaintenanceRound(1, tuple(run_round(runner, wanted, stop)))
        report_round(only)
        for error in only.errors:
            raise error


def list_services() -> Document:
    """The services there are, own ones and added ones."""
    return {"services": [service_document(service) for service in services()]}


def preview(path: str, name: str, options: Options) -> Document:
    """What a service would do now."""
    runner = service_runner(path, options)
    return {"table": runner.storage.root, "service": name, **plan_document(runner.preview(name))}


def run_service(
    path: str,
    name: str,
    options: Options,
    *,
    schedule: bool,
    execute: str | None,
    master: str,
) -> Document:
    """Plan and execute a service, or do one of the two.

    Raises:
        LakewrightError: it failed; what it began is taken back.
    """
    if schedule and execute is not None:
        raise InvalidError("a plan is either scheduled or executed: give one of the two")
    with StopRequest() as stop, LazySpark(master, options, stop.listen) as engine:
        runner = _watched(service_runner(path, with_optimistic_concurrency(options), engine))
        told = {"table": runner.storage.root, "service": name}
        if schedule:
            return {**told, **_scheduled(runner.schedule(name))}
        if execute is not None:
            _require_plan_of(runner, name, execute)
            return {**told, **outcome_document(runner.execute(execute))}
        return {**told, **outcome_document(runner.run(name))}


def _watched(runner: ServiceRunner) -> ServiceRunner:
    return replace(runner, progress=partial(watching, runner.storage))


def _scheduled(found: Instant | Skip) -> Document:
    if isinstance(found, Skip):
        return {"result": "skipped", "detail": found.reason}
    return {"result": "scheduled", "instant": found.requested_at}


def _require_plan_of(runner: ServiceRunner, name: str, instant: str) -> None:
    """InvalidError for the plan of another service: each has a command of its own."""
    waiting = load_snapshot(runner.storage).timeline.pending()
    action = service_by_name(name).action
    found = [i.action for i in waiting if i.requested_at == instant]
    if found and action not in found:
        raise InvalidError(
            "the plan of this instant is that of another service", instant=instant, action=found[0]
        )


class LazySpark:
    """Starts a Spark session when its engine is first needed; stops it at the end of the block."""

    def __init__(self, master: str, options: Options, started: Callable[[], None]) -> None:
        self._master = master
        self._configs = spark_options(options)
        self._started = started
        self._session: Any = None

    def __enter__(self) -> Self:
        return self

    def __call__(self) -> Engine:
        """Return the engine; starts the session on the first call."""
        from lakewright.cli.spark import SparkEngine, start_session

        if self._session is None:
            self._session = start_session(self._master, self._configs)
            # Spark has put a handler of its own in the place of ours.
            self._started()
        return SparkEngine(self._session)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._session is not None:
            self._session.stop()


def _round_document(storage: Storage, found: MaintenanceRound) -> Document:
    now = datetime.fromtimestamp(SystemClock().now_ms() // 1000, UTC)
    return {
        "table": storage.root,
        "round": found.number,
        "at": now.isoformat(),
        "steps": [
            {"service": step.service, **outcome_document(step.outcome)} for step in found.steps
        ],
    }
