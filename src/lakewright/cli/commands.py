"""What the commands do: they give documents, which `printing.py` shows.

Spark is started by the first work for it, and by nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from importlib import import_module
from types import TracebackType
from typing import Any, Self

from lakewright.cli.printing import Document
from lakewright.cli.progress import watching
from lakewright.cli.stopping import StopRequest
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

__all__ = ["cancel_plan", "list_services", "preview", "run_service", "run_services"]

_SESSION = "lakewright.cli.session"


def run_services(
    path: str,
    names: Sequence[str],
    options: Options,
    *,
    master: str,
    interval_s: float | None,
    show: Callable[[Document], None],
) -> None:
    """Run services once, or in rounds `interval_s` apart until a signal says stop.

    Raises:
        LakewrightError: the first failure of a single round; else see `run_continuously`.
    """
    with StopRequest() as stop, Workers(master, options, stop.listen) as workers:
        runner = _watched(service_runner(path, with_optimistic_concurrency(options), workers))
        wanted = names or default_services(load_snapshot(runner.storage).config)

        def report(found: MaintenanceRound) -> None:
            show(_round_document(runner.storage, found))

        if interval_s is not None:
            clock = runner.clock
            run_continuously(
                runner, wanted, interval_s=interval_s, clock=clock, stop=stop, report=report
            )
            return
        only = MaintenanceRound(1, tuple(run_round(runner, wanted, stop)))
        report(only)
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
    with StopRequest() as stop, Workers(master, options, stop.listen) as workers:
        runner = _watched(service_runner(path, with_optimistic_concurrency(options), workers))
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


class Workers:
    """Spark's workers, of a session that is started when they are first asked for."""

    def __init__(self, master: str, options: Options, started: Callable[[], None]) -> None:
        self._master = master
        self._configs = spark_options(options)
        self._started = started
        self._session: Any = None

    def __enter__(self) -> Self:
        return self

    def __call__(self) -> Engine:
        """The workers; starts the session, the first time."""
        module = import_module(_SESSION)
        if self._session is None:
            self._session = module.start_session(self._master, self._configs)
            # Spark has put a handler of its own in the place of ours.
            self._started()
        engine: Engine = module.SparkEngine(self._session)
        return engine

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
