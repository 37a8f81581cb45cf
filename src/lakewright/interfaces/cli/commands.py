"""What the commands do: they give documents, which `render.py` shows.

Spark is started by the first work for it, and by nothing else.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from datetime import UTC, datetime
from importlib import import_module
from types import TracebackType
from typing import Any, Self

from lakewright.clock import SystemClock
from lakewright.core.instant import Instant
from lakewright.core.table_config import TableConfig, TableType
from lakewright.errors import CorruptError, UnsupportedError
from lakewright.interfaces.cli.render import (
    Document,
    debt_document,
    instant_document,
    outcome_document,
    plan_document,
    service_document,
)
from lakewright.interfaces.cli.stopping import StopRequest
from lakewright.interfaces.freshness import (
    freshness_document,
    load_freshness,
    load_holding,
    wait_until_complete,
)
from lakewright.services.debt import load_debt
from lakewright.services.loop import Round, run_continuously, run_round
from lakewright.services.registry import services
from lakewright.services.runner import ServiceRunner
from lakewright.services.service import Hands
from lakewright.services.sync.settings import SYNC_KEYS
from lakewright.storage.base import Storage, is_hadoop_setting
from lakewright.storage.locate import storage_for, storage_options
from lakewright.table.rolled_back import load_rollbacks
from lakewright.table.snapshot import Snapshot, load_snapshot
from lakewright.write.metrics.meter import metered
from lakewright.write.options import check_write_options

Options = Mapping[str, str]

_SESSION = "lakewright.interfaces.cli.session"
_SPARK = "spark."
_MOST_HELD = 20
_POLL_S = 5.0
_MODE = "hoodie.write.concurrency.mode"
# Who runs services from a process of their own has writers beside them.
_SEVERAL_WRITERS = {_MODE: "OPTIMISTIC_CONCURRENCY_CONTROL"}


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
        runner = runner_at(path, several_writers(options), workers)
        wanted = names or usual_services(load_snapshot(runner.storage).config)

        def report(found: Round) -> None:
            show(_round_document(runner.storage, found))

        if interval_s is not None:
            clock = runner.clock
            run_continuously(
                runner, wanted, interval_s=interval_s, clock=clock, stop=stop, report=report
            )
            return
        only = Round(1, tuple(run_round(runner, wanted, stop)))
        report(only)
        for error in only.errors:
            raise error


def several_writers(options: Options) -> Options:
    """Options with which a process respects the writers beside it, unless they say otherwise."""
    return {**_SEVERAL_WRITERS, **options}


def usual_services(config: TableConfig) -> tuple[str, ...]:
    """What every table of a kind needs now and then, in the order in which it is of most use."""
    merged = ("compaction",) if config.table_type is TableType.MERGE_ON_READ else ()
    return (*merged, "clean", "archive")


def list_services() -> Document:
    """The services there are, own ones and added ones."""
    return {"services": [service_document(service) for service in services()]}


def preview(path: str, name: str, options: Options) -> Document:
    """What a service would do now."""
    runner = runner_at(path, options)
    return {"table": runner.storage.root, "service": name, **plan_document(runner.preview(name))}


def cancel_plan(
    path: str, options: Options, instant: str, *, user: str, reason: str, wait_s: float
) -> Document:
    """Take a plan back, or ask for it."""
    runner = runner_at(path, several_writers(options))
    rollback = runner.cancel(instant, user=user, reason=reason, wait_s=wait_s)
    return {
        "table": runner.storage.root,
        "instant": instant,
        "result": "removed" if rollback.is_completed else "asked to stop",
        "rollback": rollback.requested_at,
        "state": rollback.state,
    }


def show_debt(path: str, options: Options) -> Document:
    """What a table owes."""
    runner = runner_at(path, options)
    owed = load_debt(runner.sight(load_snapshot(runner.storage)))
    return {"table": runner.storage.root, **debt_document(owed)}


def show_freshness(
    path: str,
    options: Options,
    *,
    holding: bool,
    partitions: bool,
    wait: tuple[str, str, float] | None,
) -> Document:
    """How complete and how fresh a table is; `wait` for an event time, of a view, so long."""
    runner = runner_at(path, options)
    storage, clock = runner.storage, runner.clock
    if wait is not None:
        time, view, timeout = wait
        found = wait_until_complete(storage, clock, time, view=view, timeout=timeout, poll=_POLL_S)
    else:
        found = load_freshness(storage, clock, runner.options)
    document = {
        "table": storage.root,
        **freshness_document(found, partitions=partitions),
    }
    if holding:
        document["holding_back"] = [asdict(each) for each in load_holding(storage, _MOST_HELD)]
    return document


def show_timeline(path: str, options: Options, *, archived: bool) -> Document:
    """What has happened to a table."""
    storage = storage_for(path, storage_options(options))
    snapshot = load_snapshot(storage)
    instants = (*(snapshot.archived if archived else ()), *snapshot.timeline)
    told = _told_of(snapshot)
    return {
        "table": storage.root,
        "instants": [instant_document(each) | _detail(told.get(each)) for each in instants],
    }


def _told_of(snapshot: Snapshot) -> dict[Instant, str]:
    """What the names of instants do not tell: what rollbacks take back, which plans may go."""
    told: dict[Instant, str] = {}
    # The timeline can be shown, whatever is wrong with the files behind its names.
    with suppress(CorruptError, UnsupportedError):
        told |= {each.instant: str(each) for each in load_rollbacks(snapshot)}
    with suppress(CorruptError, UnsupportedError):
        waiting = (i for i, plan in snapshot.pending_plans() if plan.cancellable)
        told |= dict.fromkeys(waiting, "cancellable")
    return told


def _detail(text: str | None) -> Document:
    return {} if text is None else {"detail": text}


def runner_at(
    path: str, options: Options, hands: Callable[[], Hands] | None = None
) -> ServiceRunner:
    """What runs services on the table at a path; option names are checked."""
    known = [*SYNC_KEYS, *(key for service in services() for key in service.keys)]
    told = {
        key: value
        for key, value in options.items()
        if not (key.startswith(_SPARK) or is_hadoop_setting(key))
    }
    checked = check_write_options(told, also=known)
    for key in checked.ignored:
        warnings.warn(f"option {key} has no effect on services", stacklevel=2)
    storage = metered(storage_for(path, storage_options(options)), checked.told)
    return ServiceRunner(storage, SystemClock(), hands or _no_hands, checked.told)


class Workers:
    """Spark's workers, of a session that is started when they are first asked for."""

    def __init__(self, master: str, options: Options, started: Callable[[], None]) -> None:
        self._master = master
        self._configs = {k: v for k, v in options.items() if k.startswith("spark.")}
        self._started = started
        self._session: Any = None

    def __enter__(self) -> Self:
        return self

    def __call__(self) -> Hands:
        """The workers; starts the session, the first time."""
        module = import_module(_SESSION)
        if self._session is None:
            self._session = module.start_session(self._master, self._configs)
            # Spark has put a handler of its own in the place of ours.
            self._started()
        hands: Hands = module.SparkHands(self._session)
        return hands

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._session is not None:
            self._session.stop()


def _no_hands() -> Hands:
    raise AssertionError("a plan is only looked at")


def _round_document(storage: Storage, found: Round) -> Document:
    now = datetime.fromtimestamp(SystemClock().now_ms() // 1000, UTC)
    return {
        "table": storage.root,
        "round": found.number,
        "at": now.isoformat(),
        "steps": [
            {"service": step.service, **outcome_document(step.outcome)} for step in found.steps
        ],
    }
