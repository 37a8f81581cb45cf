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
    """A table with a plan of a service; `dead`: somebody has begun to execute it, and died."""
    clock = ManualClock()
    storage = MemoryStorage.fresh(now_ms=clock.now_ms)
    table = table_at(storage, clock)
    if service == "clustering":
        table.create("COPY_ON_WRITE")
        for n in range(2):
            table.write("BULK_INSERT", [row(f"k{n}", 1, "first", DAY)])
    else:
        table.create("MERGE_ON_READ")
        table.upsert([row(f"k{n}", 1, "first", DAY) for n in range(3)])
        table.upsert([row("k0", 2, "second", DAY)])
        table.upsert([row("k1", 3, "third", DAY)])
    told = {**SERVICE_OPTIONS[service], CANCELLABLE: str(cancellable).lower()}
    plan = table.services(told).schedule(service)
    assert isinstance(plan, Instant)
    rows = read_rows(storage)
    made = PlannedTable(storage.files(), clock.now_ms(), plan, rows, service, cancellable)
    return _with_crashed_execution(made) if dead else made


def _with_crashed_execution(setting: PlannedTable) -> PlannedTable:
    """The same after somebody died with the first data file made, long ago."""
    with scheduled_processes(setting.files, setting.now_ms) as stage:
        actor = stage.enter("the dead", executing(setting))
        while not _has_data_of(stage.storage, setting.at):
            actor.step()
            assert not actor.is_over
        files = stage.storage.files()
        actor.is_dead = True
    return replace(setting, files=files, age_ms=10 * HEARTBEAT_EXPIRES_MS)


def _has_data_of(storage: MemoryStorage, at: str) -> bool:
    found = (parse_data_file(file.name) for file in storage.list_files(DAY))
    return any(file is not None and file.instant == at for file in found)


def read_rows(storage: Storage) -> Rows:
    found = table_at(storage, ManualClock()).rows()
    return tuple(sorted(tuple(sorted(each.items())) for each in found))


def executing(setting: PlannedTable) -> Callable[[Storage, Clock], Any]:
    return lambda storage, clock: table_at(storage, clock).services().execute(setting.at)


def cleaning(**more: str) -> Callable[[Storage, Clock], Any]:
    return lambda storage, clock: table_at(storage, clock, **more).services().run("clean")


def cancelling(setting: PlannedTable) -> Callable[[Storage, Clock], Any]:
    return lambda storage, clock: table_at(storage, clock).services().cancel(setting.at)


def after_upsert(rows: Rows, ts: int) -> Rows:
    """The rows of a table once `upserting` has written."""
    kept = [each for each in rows if dict(each)["id"] != "k0"]
    return tuple(sorted([*kept, tuple(sorted(row("k0", ts, f"by {ts}", DAY).items()))]))


def upserting(ts: int) -> Callable[[Storage, Clock], Any]:
    new = [row("k0", ts, f"by {ts}", DAY)]
    return lambda storage, clock: table_at(storage, clock).upsert(new)


# ---------------------------------------------------------------------------------------- scripts


def with_switches(turns: Sequence[tuple[int, int]]) -> Schedule:
    """Let actors make so many calls each, one after the other; then each to its end.

    Who sleeps is passed over, and that costs nobody a turn.
    """
    left = [list(turn) for turn in turns]

    def script(stage: ProcessScheduler, able: Sequence[ScheduledProcess]) -> ScheduledProcess:
        while left and left[0][1] <= 0:
            left.pop(0)
        for turn in left:
            actor = stage.actors[turn[0]]
            if actor in able:
                turn[1] -= 1
                return actor
        return able[0]

    return script


def at_random(chance: random.Random, *, freezes: float = 0.0) -> Schedule:
    """Let one actor go on for a while, then another.

    Now and then one stands still, so long that others take it for dead, and goes on later.
    """
    now: list[ScheduledProcess] = []

    def script(stage: ProcessScheduler, able: Sequence[ScheduledProcess]) -> ScheduledProcess:
        for actor in stage.actors:
            actor.is_frozen = actor.is_frozen and chance.random() > 0.02
        if len(able) > 1 and chance.random() < freezes:
            frozen = chance.choice(able)
            frozen.is_frozen = True
            frozen.held_still_at = frozen.steps
            able = [actor for actor in able if actor is not frozen]
            stage.pass_time(2 * HEARTBEAT_EXPIRES_MS)
        if not now or now[0] not in able or chance.random() < 0.15:
            now[:] = [chance.choice(able)]
        return now[0]

    return script


def some_switches(
    calls: tuple[int, int], number: int, chance: random.Random, most: int = 3
) -> set[tuple[tuple[int, int], ...]]:
    """Ways to let two actors take turns with at most so many switches between them."""
    return {_turns(calls, chance, chance.randint(0, most)) for _ in range(number)}


def _turns(
    calls: tuple[int, int], chance: random.Random, switches: int
) -> tuple[tuple[int, int], ...]:
    """Turns of two; the last turn of each goes to its end."""
    first = chance.randrange(2)
    steps: tuple[list[int], list[int]] = ([], [])
    for nth, count in ((0, (switches + 1) // 2), (1, switches // 2)):
        actor = (first + nth) % 2
        inner = range(1, calls[actor])
        places = [0, *sorted(chance.sample(inner, min(count, len(inner))))]
        steps[actor].extend(later - earlier for earlier, later in pairwise(places))
    turns = []
    for nth in range(switches):
        actor = (first + nth) % 2
        if steps[actor]:
            turns.append((actor, steps[actor].pop(0)))
    return (*turns, ((first + switches) % 2, 10**6))


# ------------------------------------------------------------------------------------- invariants


# States of a table, by what was read from them: each is read once.
_READ_STATES: dict[Rows, set[int]] = {}
_CALLS_AFTER_STILLNESS = 1
TEMPORARY = (".hoodie/.heartbeat", ".hoodie/.temp", ".hoodie/lock")


@dataclass
class Invariants:
    """What must hold after each change; `rows` are the states that readers may see."""

    stage: ProcessScheduler
    setting: PlannedTable
    rows: tuple[Rows, ...]
    clocks_agree: bool = True
    executor: ScheduledProcess | None = None
    condemned: bool = False
    doomed: bool = False
    roller: ScheduledProcess | None = None

    def __call__(self) -> None:
        files = self.stage.storage.files()
        names = [path.removeprefix(TIMELINE) for path in files if path.startswith(TIMELINE)]
        instants = [i for name in names if (i := parse_instant(name)) is not None]
        mine = [i for i in instants if i.requested_at == self.setting.at]
        assert sum(i.is_completed for i in mine) <= 1, f"two results of one plan: {mine}"
        over = {i.requested_at for i in instants if i.action == "rollback" and i.is_completed}
        pending = [i for i in instants if i.action == "rollback" and i.requested_at not in over]
        rollbacks = [i for i in pending if self._is_ours(i, files)]
        self._look_at_execution(mine, rollbacks)
        self._one_base_file(files, {i.requested_at for i in instants if i.is_completed})
        self._same_rows(files)

    def _look_at_execution(self, mine: Sequence[Instant], rollbacks: Sequence[Instant]) -> None:
        """What is to be removed must not begin, and what lives must not be rolled back.

        Who has held still for minutes right before the call may begin it, and must not end it.
        """
        inflight = any(i.state is State.INFLIGHT for i in mine)
        mover = self.stage.mover
        assert mover is not None
        if inflight and self.executor is None:
            self.doomed = self.condemned and self.setting.cancellable
            late = mover.steps - mover.held_still_at <= _CALLS_AFTER_STILLNESS
            assert late or not self.doomed, "condemned, and begun"
            self.executor = mover
        elif not inflight:
            self.executor = None
        assert not (self.doomed and any(i.is_completed for i in mine)), "condemned, and completed"
        self.condemned = bool(rollbacks)
        going = any(i.state is State.INFLIGHT for i in rollbacks)
        self.roller = (self.roller or mover) if going else None
        by_another = self.executor is not None and self.roller not in (None, self.executor)
        if by_another and self.clocks_agree and self._lives():
            raise AssertionError("a living execution was rolled back")

    def _lives(self) -> bool:
        beat = self.stage.storage.status(f".hoodie/.heartbeat/{self.setting.at}")
        fresh = (
            beat is not None and self.stage.now.now_ms() - beat.modified_ms <= HEARTBEAT_EXPIRES_MS
        )
        return fresh and self.executor is not None and self.executor.is_alive

    def _is_ours(self, rollback: Instant, files: Mapping[str, bytes]) -> bool:
        requested = Instant(rollback.requested_at, Action.ROLLBACK, State.REQUESTED)
        data = files.get(f"{TIMELINE}{requested.file_name}")
        return (
            bool(data) and parse_rollback_plan(data or b"").instant.requested_at == self.setting.at
        )

    def _one_base_file(self, files: Mapping[str, bytes], completed: set[str]) -> None:
        found = [parse_data_file(p.rpartition("/")[2]) for p in files if p.startswith(DAY)]
        bases = Counter(
            (f.file_id, f.instant)
            for f in found
            if isinstance(f, BaseFile) and f.instant in completed
        )
        twice = [key for key, number in bases.items() if number > 1]
        assert not twice, f"two base files of one group and instant: {twice}"

    def _same_rows(self, files: Mapping[str, bytes]) -> None:
        state = hash(frozenset((p, d) for p, d in files.items() if not p.startswith(TEMPORARY)))
        if any(state in _READ_STATES.setdefault(rows, set()) for rows in self.rows):
            return
        found = read_rows(self.stage.storage)
        assert found in self.rows, f"readers see other rows: {found}"
        _READ_STATES[found].add(state)
