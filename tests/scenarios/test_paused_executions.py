"""A process pauses at any storage call, for longer than its lock and heartbeat are valid.

Other processes take it for crashed and act; then it continues. Whatever the call was, readers see
the rows of all commits that were reported, and of no other write; and what another process has
committed stays. After an execution of a plan a third process executes it again.

    A   requested   inflight [ pause ................. ] continues
    B                          acts, maybe commits
    C                                                     executes the plan
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import cycle, product
from typing import Any

import pytest

from lakewright.clock import Clock
from lakewright.engine.local import LocalEngine
from lakewright.errors import LakewrightError, UnavailableError
from lakewright.model.instant import Action
from lakewright.storage.base import Storage
from lakewright.table.snapshot import load_snapshot
from support.concurrency import ProcessScheduler, ScheduledProcess, scheduled_processes
from support.plan_schedules import (
    DAY,
    HEARTBEAT_EXPIRES_MS,
    MULTI_WRITER,
    SERVICE_OPTIONS,
    PlannedTable,
    Rows,
    after_upsert,
    cancelling,
    cleaning,
    executing,
    planned_table,
    read_rows,
    table_at,
    upserting,
)
from support.soak import SOAK, sized
from support.tables import row

pytestmark = pytest.mark.sampled(3)

Work = Callable[[Storage, Clock], Any]

PAUSE_MS = 10 * HEARTBEAT_EXPIRES_MS
STRIDE = sized(25, soak=1)
LAST_TS = 25
ARCHIVING = {
    "hoodie.keep.min.commits": "2",
    "hoodie.keep.max.commits": "3",
    "hoodie.clean.commits.retained": "1",
}


class FailingEngine(LocalEngine):
    """Writes all files of an execution, and fails then."""

    def map(self, function: Any, items: Any, size: Any) -> Any:
        super().map(function, items, size)
        raise UnavailableError("an executor was lost")


def failing(planned: PlannedTable, **options: str) -> Work:
    """Execute a plan, write its files, fail, and delete them again."""

    def work(storage: Storage, clock: Clock) -> Any:
        services = table_at(storage, clock, **options).services()
        return replace(services, engine=FailingEngine).execute(planned.at)

    return work


def run_to_end(scheduler: ProcessScheduler, process: ScheduledProcess) -> None:
    """Step one process alone; time passes while it sleeps."""
    while not process.is_over:
        if process.wakes_at > scheduler.now.now_ms():
            scheduler.pass_time(process.wakes_at - scheduler.now.now_ms())
        process.step()


def archiving(planned: PlannedTable) -> Work:
    """Write until everything before is cleaned and archived, but for what a pending plan keeps."""

    def work(storage: Storage, clock: Clock) -> None:
        table = table_at(storage, clock)
        for ts in range(LAST_TS - 5, LAST_TS + 1):
            table.upsert([row("k0", ts, f"by {ts}", DAY)])
        for service in ("clean", "archive"):
            table.services(ARCHIVING).run(service)

    return work


ACTIONS: dict[str, Callable[[PlannedTable], Work]] = {
    "an execution": executing,
    "a clean": lambda planned: cleaning(),
    "an upsert": lambda planned: upserting(7),
    "a cancellation": cancelling,
    "writes until all is archived": archiving,
}
PAUSED: dict[str, Callable[[PlannedTable], Work]] = {"executes": executing, "fails": failing}
LOCKS = ("storage", "file")
ACTIONS_AND_LOCKS = [*product(ACTIONS, LOCKS)] if SOAK else [*zip(ACTIONS, cycle(LOCKS))]


@pytest.fixture(autouse=True)
def lock_provider(lock: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(MULTI_WRITER, "hoodie.write.lock.provider", lock)


def pauses(planned: PlannedTable, paused: Work) -> Iterator[int]:
    """The calls of an execution before which it may pause."""
    with scheduled_processes(planned.files, planned.now_ms, planned.age_ms) as scheduler:
        process = scheduler.start("counted", paused)
        run_to_end(scheduler, process)
        calls = process.steps
    yield from range(1, calls, STRIDE)


def run_beside_paused(
    scheduler: ProcessScheduler, paused: Work, call: int, action: Work
) -> tuple[ScheduledProcess, ScheduledProcess]:
    """Pause one process before a call for long, and run another one to its end."""
    first = scheduler.start("paused", paused)
    for _ in range(call):
        first.step()
    first.is_frozen = True
    scheduler.pass_time(PAUSE_MS)
    second = scheduler.start("second", action)
    run_to_end(scheduler, second)
    return first, second


def expected_rows(planned: PlannedTable, process: ScheduledProcess, action: str) -> Rows:
    ts = {"an upsert": 7, "writes until all is archived": LAST_TS}.get(action)
    return planned.rows if ts is None or process.error else after_upsert(planned.rows, ts)


@pytest.mark.parametrize(("action", "lock"), ACTIONS_AND_LOCKS)
@pytest.mark.parametrize("paused", PAUSED)
@pytest.mark.parametrize("cancellable", [False, True], ids=["ordinary", "cancellable"])
@pytest.mark.parametrize("service", SERVICE_OPTIONS)
def test_a_paused_execution_harms_nothing(
    service: str, cancellable: bool, paused: str, action: str, lock: str
) -> None:
    planned = planned_table(service, cancellable=cancellable)
    work = PAUSED[paused](planned)
    for call in pauses(planned, work):
        with scheduled_processes(planned.files, planned.now_ms, planned.age_ms) as scheduler:
            first, second = run_beside_paused(scheduler, work, call, ACTIONS[action](planned))
            rows = expected_rows(planned, second, action)
            where = f"paused before call {call}, {first.last_call}"
            assert read_rows(scheduler.storage) == rows, where
            committed = completed_instants(scheduler.storage)
            first.is_frozen = False
            run_to_end(scheduler, first)
            where += f": {first.error!r}"
            assert read_rows(scheduler.storage) == rows, where
            assert committed <= completed_instants(scheduler.storage), where
            scheduler.pass_time(PAUSE_MS)
            third = scheduler.start("third", executing(planned))
            run_to_end(scheduler, third)
            assert read_rows(scheduler.storage) == rows, where
            assert committed <= completed_instants(scheduler.storage), where
            assert isinstance(third.error, LakewrightError | None), where
            run_to_end(scheduler, scheduler.start("last", upserting(30)))
            assert read_rows(scheduler.storage) == after_upsert(rows, 30), where


@pytest.mark.parametrize(("action", "lock"), ACTIONS_AND_LOCKS)
@pytest.mark.parametrize("service", ["compaction", "clustering"])
def test_a_paused_write_is_reported_as_it_is(service: str, action: str, lock: str) -> None:
    planned = planned_table(service, cancellable=True)
    new_row = row("paused", 1, "new", DAY)

    def insert(storage: Storage, clock: Clock) -> Any:
        return table_at(storage, clock).upsert([new_row])

    for call in pauses(planned, insert):
        with scheduled_processes(planned.files, planned.now_ms, planned.age_ms) as scheduler:
            first, second = run_beside_paused(scheduler, insert, call, ACTIONS[action](planned))
            first.is_frozen = False
            run_to_end(scheduler, first)
            where = f"paused before call {call}, {first.last_call}: {first.error}"
            assert isinstance(first.error, LakewrightError | None), where
            rows = expected_rows(planned, second, action)
            if first.error is None:
                rows = tuple(sorted([*rows, tuple(sorted(new_row.items()))]))
            assert read_rows(scheduler.storage) == rows, where
            scheduler.pass_time(PAUSE_MS)
            run_to_end(scheduler, scheduler.start("last", upserting(30)))
            assert read_rows(scheduler.storage) == after_upsert(rows, 30), where


def completed_instants(storage: Storage) -> frozenset[tuple[str, ...]]:
    """What has completed, and when.

    Two processes may complete one rollback, each with a completion time of its own.
    """
    return frozenset(
        (i.requested_at, i.action)
        if i.action is Action.ROLLBACK
        else (i.requested_at, i.action, i.completed_at or "")
        for i in load_snapshot(storage).timeline.completed()
    )
