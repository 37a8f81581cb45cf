"""Asynchronous table services: those that run in a thread of the writer, beside its writes.

A thread of the writer runs one service after another, and another one TTL:

- cleans and archiving (`hoodie.clean.async.enabled`, `hoodie.archive.async`) and TTL that is not
  inline (`hoodie.ttl.run.inline=false`) are run;
- clusterings (`hoodie.clustering.async.enabled`), and compactions of streams
  (`hoodie.datasource.compaction.async.enable`), are scheduled by the writer after its commit and
  executed by the thread.

A batch write starts them before it begins, and waits for them after its commit. Those of a stream
go on while batches come and go; the process waits for them before it ends.

The commit of a write never loses to a service of its own writer:

- The write, with the services that follow it inline, and the commit of a service beside it exclude
  each other (`CommitTurns`): a service does its work beside the write, and then waits for its turn.
  So it is the service that finds the conflict.
- Clusterings are scheduled between two writes, and as cancellable plans: a write that updates their
  rows is not refused, it preempts them.
- Compactions are scheduled between two writes as well. No plan appears while a write is under way.

To other processes the thread is one more of several writers, so the writer has a heartbeat and
takes the table's lock whatever its concurrency mode is (`with_heartbeat`).
"""

from __future__ import annotations

import atexit
import threading
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from lakewright.engine.base import Engine, Rows
from lakewright.errors import ConflictError, LakewrightError, after_commit
from lakewright.model.instant import InstantTime
from lakewright.model.plans import Skip
from lakewright.options import option, option_keys, parse_bool, settings_from
from lakewright.scan.scan_plan import ScanPlan
from lakewright.services.clustering.options import clustering_settings
from lakewright.services.inline import InlineSettings
from lakewright.services.maintenance_loop import ServiceOutcome, execute_plans
from lakewright.services.runner import ServiceRunner
from lakewright.storage.base import Storage
from lakewright.table.options import Concurrency, TransactionSettings
from lakewright.write.task import WriteStatus, WriteTask
from lakewright.write.writer import Commit, RowSource

_CONCURRENCY_MODE = "hoodie.write.concurrency.mode"
_REWRITES = ("compaction", "clustering")
_CLEANS = ("clean", "archive")
# One for TTL, and one for the others.
_THREADS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class AsyncSettings:
    """Which services run in a thread of the writer."""

    clean: bool = option(
        "hoodie.clean.async.enabled",
        False,
        parse=parse_bool,
        aliases=("hoodie.clean.async",),
        doc="Whether the clean of a write runs beside it, in a thread, and not after its commit.",
    )
    archive: bool = option(
        "hoodie.archive.async",
        False,
        parse=parse_bool,
        doc="Whether archiving runs beside a write, in a thread, and not after its commit.",
    )
    compaction: bool = option(
        "hoodie.datasource.compaction.async.enable",
        False,
        parse=parse_bool,
        doc="Whether a stream only schedules compactions after its batches, and executes them in a "
        "thread beside them.",
    )


ASYNC_KEYS = option_keys(AsyncSettings)


def async_services(options: Mapping[str, str], *, stream: bool = False) -> frozenset[str]:
    """Return the services that the options ask to run beside writes, TTL apart."""
    settings, inline = settings_from(AsyncSettings, options), settings_from(InlineSettings, options)
    requested = {
        "clean": settings.clean and inline.clean,
        "archive": settings.archive and inline.archive,
        "clustering": clustering_settings(options).asynchronous,
        "compaction": settings.compaction and stream,
    }
    return frozenset(name for name, is_requested in requested.items() if is_requested)


def with_heartbeat(options: Mapping[str, str]) -> dict[str, str]:
    """Return options for a writer that has services beside it: it has a lock and a heartbeat."""
    if settings_from(TransactionSettings, options).concurrency is not Concurrency.SINGLE:
        return dict(options)
    return {**options, _CONCURRENCY_MODE: Concurrency.OPTIMISTIC.value}


class CommitTurns:
    """Mutual exclusion of a write and the commits of the services beside it, first come first."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._waiting: deque[object] = deque()

    @contextmanager
    def taken(self) -> Iterator[None]:
        """Wait for the turn, and hold it until the block ends."""
        ticket = self.acquire()
        try:
            yield
        finally:
            self.release(ticket)

    def acquire(self) -> object:
        """Wait for the turn; returns the ticket to release it with."""
        ticket = object()
        with self._changed:
            self._waiting.append(ticket)
            self._changed.wait_for(lambda: self._waiting[0] is ticket)
        return ticket

    def release(self, ticket: object) -> None:
        """Let the next one have the turn."""
        with self._changed:
            self._waiting.remove(ticket)
            self._changed.notify_all()


class _TurnAfterWork:
    """An engine after whose work the service waits for its turn to commit."""

    def __init__(self, inner: Engine, take_turn: Callable[[], None]) -> None:
        self._inner = inner
        self._take_turn = take_turn

    def scan(self, storage: Storage, plan: ScanPlan) -> Rows:
        """See `Engine`."""
        return self._inner.scan(storage, plan)

    def write(self, task: WriteTask, rows: RowSource) -> Sequence[WriteStatus]:
        """See `Engine`."""
        return self._inner.write(task, rows)

    def map(self, function: Any, items: Any, size: Any) -> Any:
        """See `Engine`."""
        answers = self._inner.map(function, items, size)
        self._take_turn()
        return answers


@dataclass(eq=False)
class AsyncServices:
    """The threads of one writer for its asynchronous services.

    `names` are the services of each round, TTL apart. The outcomes of services wait until the
    writer takes them. No thread exists before the first service.
    """

    runner: ServiceRunner
    names: frozenset[str] = frozenset()
    turns: CommitTurns = field(default_factory=CommitTurns)
    _outcomes: list[ServiceOutcome] = field(default_factory=list)
    _guard: threading.Lock = field(default_factory=threading.Lock)
    _running: dict[str, Future[None]] = field(default_factory=dict)
    _pool: ThreadPoolExecutor | None = None

    def start_round(self) -> None:
        """Run the services once in the thread, unless it is still running them."""
        if self.names:
            self.start("services", self._run_services)

    def start(self, kind: str, task: Callable[[], Iterator[ServiceOutcome]]) -> bool:
        """Run a task in a thread and keep its outcomes; False if one of its kind is running."""
        last = self._running.get(kind)
        if last is not None and not last.done():
            return False
        if last is not None:
            last.result()  # an error that no service should have
        if self._pool is None:
            # At the end of the process Python waits for the threads of a pool.
            self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="lakewright-services")
            atexit.register(self._show_rest)
        self._running[kind] = self._pool.submit(self._record, task)
        return True

    def take(self) -> tuple[ServiceOutcome, ...]:
        """Return the outcomes since the last call."""
        with self._guard:
            outcomes, self._outcomes = tuple(self._outcomes), []
        return outcomes

    def close(self) -> tuple[ServiceOutcome, ...]:
        """Wait for the services that are running, and end the thread; returns their outcomes."""
        if self._pool is not None:
            self._pool.shutdown(wait=True)
            self._pool = None
            atexit.unregister(self._show_rest)
        while self._running:
            self._running.popitem()[1].result()
        return self.take()

    def _record(self, task: Callable[[], Iterator[ServiceOutcome]]) -> None:
        for outcome in task():
            with self._guard:
                self._outcomes.append(outcome)

    def _run_services(self) -> Iterator[ServiceOutcome]:
        requested = self.names
        yield from self._execute_plans([name for name in _REWRITES if name in requested])
        for name in _CLEANS:
            if name in requested:
                yield attempt(name, partial(self.runner.run, name, triggered=True))

    def _execute_plans(self, names: Sequence[str]) -> Iterator[ServiceOutcome]:
        """Execute pending plans; each execution takes the turn between its work and its commit."""
        if not names:
            return
        tickets: list[object] = []

        def take_turn() -> None:
            if not tickets:
                tickets.append(self.turns.acquire())

        def give_back() -> None:
            while tickets:
                self.turns.release(tickets.pop())

        def engine() -> Engine:
            return _TurnAfterWork(self.runner.engine(), take_turn)

        try:
            for outcome in execute_plans(replace(self.runner, engine=engine), names):
                give_back()
                yield outcome
        except LakewrightError as error:
            yield from (ServiceOutcome(name, error) for name in names)
        finally:
            give_back()

    def _show_rest(self) -> None:
        """Show the errors that the writer has not taken when the process ends."""
        for outcome in self.take():
            if outcome.error is not None:
                warn_of(outcome.service, outcome.error)


def attempt(name: str, do: Callable[[], Commit | Skip]) -> ServiceOutcome:
    """Run a service; a conflict with another process is no error, as the next round runs it."""
    try:
        return ServiceOutcome(name, do())
    except ConflictError as error:
        return ServiceOutcome(name, Skip(f"{name}: {error}"))
    except LakewrightError as error:
        return ServiceOutcome(name, error)


def warn_of(service: str, error: LakewrightError) -> None:
    """Warn of the failure of a service beside a write."""
    warnings.warn(f"{service} beside a write failed: {error}", RuntimeWarning, stacklevel=2)


def outcomes_for_writer(
    outcomes: Sequence[ServiceOutcome],
    options: Mapping[str, str],
    *,
    stream: bool,
    committed: InstantTime | None = None,
) -> tuple[Commit | Skip, ...]:
    """Return what services beside a write did, `committed`; raise or warn where one has failed.

    As after a write: a failure is an error unless options say otherwise, and for TTL a warning. In
    a stream it is a warning unless options say otherwise, as the rows of later batches are not to
    wait for a service.
    """
    settings = settings_from(InlineSettings, options)
    if stream and settings.must_succeed is None:
        settings = replace(settings, must_succeed=False)
    results: list[Commit | Skip] = []
    for service, outcome in ((o.service, o.outcome) for o in outcomes):
        if not isinstance(outcome, LakewrightError):
            results.append(outcome)
        elif settings.is_error(service):
            if committed is None:
                raise outcome
            raise after_commit(outcome, committed, f"the {service} beside it") from outcome
        else:
            warn_of(service, outcome)
            results.append(Skip(f"{service}: {outcome}"))
    return tuple(results)
