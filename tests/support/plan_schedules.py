"""Schedules of processes that execute, clean up and preempt plans, and their invariants."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise
from typing import Any

from lakewright.clock import Clock
from lakewright.format.timeline_metadata import parse_rollback_plan
from lakewright.model.file_group import BaseFile, parse_data_file
from lakewright.model.instant import Action, Instant, State, parse_instant
from lakewright.storage.base import Storage
from lakewright.storage.memory import MemoryStorage
from lakewright.testing.clock import ManualClock
from support.concurrency import ProcessScheduler, Schedule, ScheduledProcess, scheduled_processes
from support.tables import NO_SERVICES, WrittenTable, row

DAY = "2026-01-01"
TIMELINE = ".hoodie/timeline/"
HEARTBEAT_EXPIRES_MS = 120_000
CANCELLABLE = "hoodie.table.service.plan.cancellable"
ROLLBACK_DELAY = "hoodie.table.service.rollback.delay.minutes"
MULTI_WRITER = {
    **NO_SERVICES,
    "hoodie.write.concurrency.mode": "OPTIMISTIC_CONCURRENCY_CONTROL",
    "hoodie.clean.failed.writes.policy": "LAZY",
    "hoodie.write.lock.filesystem.expire": "1",
    "hoodie.write.lock.wait_time_ms": "600000",
    "hoodie.write.lock.wait_time_ms_between_retry": "5000",
    "hoodie.time.generator.max_expected_clock_skew_ms": "1",
    "hoodie.write.num.retries.on.conflict.failures": "0",
}
SERVICE_OPTIONS: dict[str, dict[str, str]] = {
    "compaction": {"hoodie.compact.inline.max.delta.commits": "1"},
    "logcompaction": {"hoodie.log.compaction.blocks.threshold": "2"},
    "clustering": {},
}

Rows = tuple[tuple[Any, ...], ...]


@dataclass(frozen=True)
class PlannedTable:
    """A table with a plan on its timeline: its files, when they were made, and its rows."""

    files: Mapping[str, bytes]
    now_ms: int
    plan: Instant
    rows: Rows
    service: str
    cancellable: bool
    age_ms: int = 0

    @property
    def at(self) -> str:
        return self.plan.requested_at


def table_at(storage: Storage, clock: Clock, **more: str) -> WrittenTable:
    return WrittenTable(storage, clock, {**MULTI_WRITER, **more})


@cache
def planned_table(service: str, *, cancellable: bool, dead: bool = False) -> PlannedTable:
    """A table with a plan of a service; `dead`: a process has begun to execute it, and crashed."""
    clock = ManualClock()
    storage = MemoryStorage.fresh(now_ms=clock.now_ms)
    plan = write_and_schedule(table_at(storage, clock), service, cancellable=cancellable)
    rows = read_rows(storage)
    planned = PlannedTable(storage.files(), clock.now_ms(), plan, rows, service, cancellable)
    return _with_crashed_execution(planned) if dead else planned


def write_and_schedule(table: WrittenTable, service: str, *, cancellable: bool) -> Instant:
    """Create a table with work for a service, and schedule it; returns the instant of the plan."""
    if service == "clustering":
        table.create("COPY_ON_WRITE")
        for n in range(2):
            table.write("BULK_INSERT", [row(f"k{n}", 1, "first", DAY)])
    else:
        table.create("MERGE_ON_READ")
        table.upsert([row(f"k{n}", 1, "first", DAY) for n in range(3)])
        table.upsert([row("k0", 2, "second", DAY)])
        table.upsert([row("k1", 3, "third", DAY)])
    options = {**SERVICE_OPTIONS[service], CANCELLABLE: str(cancellable).lower()}
    plan = table.services(options).schedule(service)
    assert isinstance(plan, Instant)
    return plan


def _with_crashed_execution(planned: PlannedTable) -> PlannedTable:
    """The same table after an execution crashed with its first data file written, long ago."""
    with scheduled_processes(planned.files, planned.now_ms) as scheduler:
        process = scheduler.start("crashed execution", executing(planned))
        while not _has_data_of(scheduler.storage, planned.at):
            process.step()
            assert not process.is_over
        files = scheduler.storage.files()
        process.is_dead = True
    return replace(planned, files=files, age_ms=10 * HEARTBEAT_EXPIRES_MS)


def _has_data_of(storage: MemoryStorage, at: str) -> bool:
    files = (parse_data_file(file.name) for file in storage.list_files(DAY))
    return any(file is not None and file.instant == at for file in files)


def read_rows(storage: Storage) -> Rows:
    records = table_at(storage, ManualClock()).rows()
    return tuple(sorted(tuple(sorted(record.items())) for record in records))


def executing(planned: PlannedTable) -> Callable[[Storage, Clock], Any]:
    return lambda storage, clock: table_at(storage, clock).services().execute(planned.at)


def cleaning(**more: str) -> Callable[[Storage, Clock], Any]:
    return lambda storage, clock: table_at(storage, clock, **more).services().run("clean")


def cancelling(planned: PlannedTable) -> Callable[[Storage, Clock], Any]:
    return lambda storage, clock: table_at(storage, clock).services().cancel(planned.at)


def after_upsert(rows: Rows, ts: int) -> Rows:
    """The rows of a table once `upserting` has written."""
    others = [values for values in rows if dict(values)["id"] != "k0"]
    return tuple(sorted([*others, tuple(sorted(row("k0", ts, f"by {ts}", DAY).items()))]))


def upserting(ts: int) -> Callable[[Storage, Clock], Any]:
    new = [row("k0", ts, f"by {ts}", DAY)]
    return lambda storage, clock: table_at(storage, clock).upsert(new)


# ---------------------------------------------------------------------------------------- scripts


def with_switches(turns: Sequence[tuple[int, int]]) -> Schedule:
    """Step processes so many calls each, one after the other; then each to its end.

    A process that sleeps is skipped and keeps its turn.
    """
    remaining = [list(turn) for turn in turns]

    def schedule(
        scheduler: ProcessScheduler, runnable: Sequence[ScheduledProcess]
    ) -> ScheduledProcess:
        while remaining and remaining[0][1] <= 0:
            remaining.pop(0)
        for turn in remaining:
            process = scheduler.processes[turn[0]]
            if process in runnable:
                turn[1] -= 1
                return process
        return runnable[0]

    return schedule


def at_random(chance: random.Random, *, freezes: float = 0.0) -> Schedule:
    """Step one process for a while, then another.

    At times one freezes for so long that its heartbeat expires, and continues later.
    """
    now: list[ScheduledProcess] = []

    def schedule(
        scheduler: ProcessScheduler, runnable: Sequence[ScheduledProcess]
    ) -> ScheduledProcess:
        for process in scheduler.processes:
            process.is_frozen = process.is_frozen and chance.random() > 0.02
        if len(runnable) > 1 and chance.random() < freezes:
            frozen = chance.choice(runnable)
            frozen.is_frozen = True
            frozen.last_frozen_step = frozen.steps
            runnable = [process for process in runnable if process is not frozen]
            scheduler.pass_time(2 * HEARTBEAT_EXPIRES_MS)
        if not now or now[0] not in runnable or chance.random() < 0.15:
            now[:] = [chance.choice(runnable)]
        return now[0]

    return schedule


def some_switches(
    calls: tuple[int, int], number: int, chance: random.Random, most: int = 3
) -> set[tuple[tuple[int, int], ...]]:
    """Orders of two processes with at most so many switches between them."""
    return {_turns(calls, chance, chance.randint(0, most)) for _ in range(number)}


def _turns(
    calls: tuple[int, int], chance: random.Random, switches: int
) -> tuple[tuple[int, int], ...]:
    """Turns of two processes; in its last turn each runs to its end."""
    first = chance.randrange(2)
    steps: tuple[list[int], list[int]] = ([], [])
    for nth, count in ((0, (switches + 1) // 2), (1, switches // 2)):
        process = (first + nth) % 2
        inner = range(1, calls[process])
        places = [0, *sorted(chance.sample(inner, min(count, len(inner))))]
        steps[process].extend(later - earlier for earlier, later in pairwise(places))
    turns = []
    for nth in range(switches):
        process = (first + nth) % 2
        if steps[process]:
            turns.append((process, steps[process].pop(0)))
    return (*turns, ((first + switches) % 2, 10**6))


# ------------------------------------------------------------------------------------- invariants


# States of a table by the rows that were read from them: each state is read once.
_READ_STATES: dict[Rows, set[int]] = {}
_CALLS_AFTER_FREEZE = 1
TEMPORARY = (".hoodie/.heartbeat", ".hoodie/.temp", ".hoodie/lock")


@dataclass
class Invariants:
    """What must hold after each change; `rows` are the states of the table that readers may see."""

    scheduler: ProcessScheduler
    planned: PlannedTable
    rows: tuple[Rows, ...]
    clocks_agree: bool = True
    executor: ScheduledProcess | None = None
    rollback_pending: bool = False
    must_fail: bool = False
    rolled_back_by: ScheduledProcess | None = None

    def __call__(self) -> None:
        files = self.scheduler.storage.files()
        names = [path.removeprefix(TIMELINE) for path in files if path.startswith(TIMELINE)]
        instants = [i for name in names if (i := parse_instant(name)) is not None]
        mine = [i for i in instants if i.requested_at == self.planned.at]
        assert sum(i.is_completed for i in mine) <= 1, f"two results of one plan: {mine}"
        over = {i.requested_at for i in instants if i.action == "rollback" and i.is_completed}
        pending = [i for i in instants if i.action == "rollback" and i.requested_at not in over]
        rollbacks = [i for i in pending if self._is_of_this_plan(i, files)]
        self._check_execution(mine, rollbacks)
        self._one_base_file(files, {i.requested_at for i in instants if i.is_completed})
        self._same_rows(files)

    def _check_execution(self, mine: Sequence[Instant], rollbacks: Sequence[Instant]) -> None:
        """No execution begins during a rollback of its plan, and no live one is rolled back.

        A process that was frozen for minutes right before the call may begin it, but must not
        complete it.
        """
        inflight = any(i.state is State.INFLIGHT for i in mine)
        stepped = self.scheduler.last_stepped
        assert stepped is not None
        if inflight and self.executor is None:
            self.must_fail = self.rollback_pending and self.planned.cancellable
            late = stepped.steps - stepped.last_frozen_step <= _CALLS_AFTER_FREEZE
            assert late or not self.must_fail, "rolled back, and begun"
            self.executor = stepped
        elif not inflight:
            self.executor = None
        assert not (self.must_fail and any(i.is_completed for i in mine)), (
            "rolled back, and completed"
        )
        self.rollback_pending = bool(rollbacks)
        going = any(i.state is State.INFLIGHT for i in rollbacks)
        self.rolled_back_by = (self.rolled_back_by or stepped) if going else None
        by_another = self.executor is not None and self.rolled_back_by not in (None, self.executor)
        if by_another and self.clocks_agree and self._executor_lives():
            raise AssertionError("a live execution was rolled back")

    def _executor_lives(self) -> bool:
        beat = self.scheduler.storage.status(f".hoodie/.heartbeat/{self.planned.at}")
        fresh = (
            beat is not None
            and self.scheduler.now.now_ms() - beat.modified_ms <= HEARTBEAT_EXPIRES_MS
        )
        return fresh and self.executor is not None and self.executor.is_alive

    def _is_of_this_plan(self, rollback: Instant, files: Mapping[str, bytes]) -> bool:
        requested = Instant(rollback.requested_at, Action.ROLLBACK, State.REQUESTED)
        data = files.get(f"{TIMELINE}{requested.file_name}")
        return (
            bool(data) and parse_rollback_plan(data or b"").instant.requested_at == self.planned.at
        )

    def _one_base_file(self, files: Mapping[str, bytes], completed: set[str]) -> None:
        parsed = [parse_data_file(p.rpartition("/")[2]) for p in files if p.startswith(DAY)]
        bases = Counter(
            (f.file_id, f.instant)
            for f in parsed
            if isinstance(f, BaseFile) and f.instant in completed
        )
        twice = [key for key, number in bases.items() if number > 1]
        assert not twice, f"two base files of one group and instant: {twice}"

    def _same_rows(self, files: Mapping[str, bytes]) -> None:
        state = hash(frozenset((p, d) for p, d in files.items() if not p.startswith(TEMPORARY)))
        if any(state in _READ_STATES.setdefault(rows, set()) for rows in self.rows):
            return
        rows_read = read_rows(self.scheduler.storage)
        assert rows_read in self.rows, f"readers see other rows: {rows_read}"
        _READ_STATES[rows_read].add(state)
