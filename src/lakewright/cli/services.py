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
from lakewright.table.options import with_optimistic_concurrency
from lakewright.table.snapshot import load_snapshot

app = group()
services_app = group("Run table services.")

ScheduleOption = Annotated[
    bool, typer.Option("--schedule", help="Only schedule: add the plan to the timeline.")
]
ExecuteOption = Annotated[
    str | None,
    typer.Option(metavar="INSTANT", help="Only execute this pending plan."),
]


def _service_command(name: str, service: str, text: str, *examples: str) -> None:
    """Register the command that runs a service; `text` is its help."""

    @app.command(name, help=text, epilog=example(*examples))
    def run(
        path: PathArgument,
        schedule: ScheduleOption = False,
        execute: ExecuteOption = None,
        option: OptionsOption = None,
        options_file: OptionsFileOption = None,
        master: MasterOption = "local[*]",
        as_json: JsonOption = False,
    ) -> None:
        with exit_codes():
            options = parse_options(option, options_file)
            document = run_service(
                path, service, options, schedule=schedule, execute=execute, master=master
            )
            show(document, as_json=as_json)


_service_command(
    "compact",
    "compaction",
    "Merge log files into base files.",
    "lakewright compact data/trips",
    "lakewright compact data/trips --schedule -o hoodie.compaction.strategy=log_file_size",
    "lakewright compact data/trips --execute 20260131120000000",
)
_service_command(
    "cluster",
    "clustering",
    "Rewrite small files into larger ones, with rows sorted.",
    "lakewright cluster data/trips -o hoodie.clustering.plan.strategy.sort.columns=city",
)
_service_command(
    "clean",
    "clean",
    "Delete files that no query of the retained commits reads.",
    "lakewright clean data/trips -o hoodie.clean.commits.retained=24",
)
_service_command(
    "archive",
    "archive",
    "Move old instants to the archived timeline.",
    "lakewright archive data/trips -o hoodie.keep.max.commits=60",
)


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
    instant: Annotated[str, typer.Argument(metavar="INSTANT", help="The instant of the plan.")],
    reason: Annotated[str, typer.Option(metavar="TEXT", help="Stored with the rollback.")] = "",
    user: Annotated[str, typer.Option(metavar="NAME", help="The user that cancels it.")] = "",
    wait: Annotated[
        float,
        typer.Option(metavar="SECONDS", help="How long to wait for a running execution to stop."),
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
            help="A service to run; may be repeated, they run in this order. By default compaction "
            "(of merge-on-read tables), clean and archive.",
        ),
    ] = None,
    continuous: Annotated[
        bool, typer.Option("--continuous", help="Run rounds until SIGINT or SIGTERM.")
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


def run_services(
    path: str,
    names: Sequence[str],
    options: Options,
    *,
    master: str,
    interval_s: float | None,
    report: Callable[[Document], None],
) -> None:
    """Run services once, or in rounds `interval_s` apart until a signal.

    Raises:
        LakewrightError: The first error of a single round; for rounds see `run_continuously`.
    """
    with StopRequest() as stop, LazySpark(master, options, stop.listen) as engine:
        runner = _with_progress(service_runner(path, with_optimistic_concurrency(options), engine))
        service_names = names or default_services(load_snapshot(runner.storage).config)

        def report_round(result: MaintenanceRound) -> None:
            report(_round_document(runner.storage, result))

        if interval_s is not None:
            clock = runner.clock
            run_continuously(
                runner,
                service_names,
                interval_s=interval_s,
                clock=clock,
                stop=stop,
                report=report_round,
            )
            return
        single = MaintenanceRound(1, tuple(run_round(runner, service_names, stop)))
        report_round(single)
        for error in single.errors:
            raise error


def list_services() -> Document:
    """Return all services, built-in and registered ones."""
    return {"services": [service_document(service) for service in services()]}


def preview(path: str, name: str, options: Options) -> Document:
    """Return the plan that a service would schedule now."""
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
    """Schedule and execute a service, or only one of the two.

    Raises:
        LakewrightError: The service failed.
    """
    if schedule and execute is not None:
        raise InvalidError("a plan is either scheduled or executed: give one of the two")
    with StopRequest() as stop, LazySpark(master, options, stop.listen) as engine:
        runner = _with_progress(service_runner(path, with_optimistic_concurrency(options), engine))
        head = {"table": runner.storage.root, "service": name}
        if schedule:
            scheduled = runner.schedule(name)
            # This process ends now: others need not wait until its heartbeat has expired.
            runner.heartbeats.stop_all()
            return {**head, **_schedule_document(scheduled)}
        if execute is not None:
            _require_plan_of(runner, name, execute)
            return {**head, **outcome_document(runner.execute(execute))}
        return {**head, **outcome_document(runner.run(name))}


def _with_progress(runner: ServiceRunner) -> ServiceRunner:
    return replace(runner, progress=partial(watching, runner.storage))


def _schedule_document(scheduled: Instant | Skip) -> Document:
    if isinstance(scheduled, Skip):
        return {"result": "skipped", "detail": scheduled.reason}
    return {"result": "scheduled", "instant": scheduled.requested_at}


def _require_plan_of(runner: ServiceRunner, name: str, instant: str) -> None:
    """Raise InvalidError if the instant is a pending plan of another service."""
    pending = load_snapshot(runner.storage).timeline.pending()
    action = service_by_name(name).action
    planned_actions = [i.action for i in pending if i.requested_at == instant]
    if planned_actions and action not in planned_actions:
        raise InvalidError(
            "the plan of this instant is that of another service",
            instant=instant,
            action=planned_actions[0],
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
            # Spark has installed signal handlers of its own.
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


def _round_document(storage: Storage, result: MaintenanceRound) -> Document:
    now = datetime.fromtimestamp(SystemClock().now_ms() // 1000, UTC)
    return {
        "table": storage.root,
        "round": result.number,
        "at": now.isoformat(),
        "steps": [
            {"service": step.service, **outcome_document(step.outcome)} for step in result.steps
        ],
    }
