"""Concurrent processes in one test: which of them makes the next storage call is decided here.

Two tools, from coarse to fine:

- `InterruptedEngine`, `InterruptedRows` and `InterruptedStorage` let another process act at one
  chosen moment: after a task, before an item, in place of the creation of a file.
- `ProcessScheduler` runs any number of processes and schedules them call by call. Each process is a
  thread that runs up to its next storage call and waits there until the scheduler steps it. Time
  stands still: a process that sleeps is not scheduled until its time has come, and if all sleep,
  the clock advances to the first of them. Periodic tasks such as heartbeats have no threads of
  their own; they run when the clock advances, as long as their process is not frozen. So a run
  depends on nothing but its schedule.
"""

from __future__ import annotations

import io
import re
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, BinaryIO, TypeVar
from unittest import mock

import pyarrow as pa

from lakewright.clock import Clock
from lakewright.engine.local import ArrowRows, LocalEngine
from lakewright.errors import LakewrightError, UnavailableError
from lakewright.storage import memory
from lakewright.storage.base import Storage
from lakewright.storage.memory import MemoryStorage
from lakewright.table.locks import base as locks
from lakewright.testing.clock import ManualClock
from lakewright.testing.storage import CountingStorage, Crash
from lakewright.write.task import WriteStatus, WriteTask
from lakewright.write.writer import RowSource
from support.processes import HANG_TIMEOUT_S

Result = TypeVar("Result")
Interruption = Callable[[], object]
Work = Callable[[Storage, Clock], Any]
Schedule = Callable[["ProcessScheduler", Sequence["ScheduledProcess"]], "ScheduledProcess"]

CHANGES = frozenset({"create", "replace", "replace_if", "delete", "delete_many", "delete_folder"})
_PERIODIC_TASKS = (
    "lakewright.table.heartbeat.PeriodicTask",
    "lakewright.table.locks.storage_lock.PeriodicTask",
)


# ---------------------------------------------------------------------- another process, one moment


def once(act: Interruption) -> Interruption:
    """Act at the first call alone."""
    pending = [act]

    def act_once() -> None:
        if pending:
            pending.pop()()

    return act_once


def _nothing(*_: object) -> None:
    """No other process acts."""


class InterruptedEngine(LocalEngine):
    """A local engine during whose work another process acts.

    `after_map` runs after all items, `before_item` before each of them, with its number;
    `after_write` and `after_scan` run after the rows of a write or scan.
    """

    def __init__(
        self,
        after_map: Interruption = _nothing,
        *,
        before_item: Callable[[int], object] = _nothing,
        after_write: Interruption = _nothing,
        after_scan: Interruption = _nothing,
    ) -> None:
        self._after_map = after_map
        self._before_item = before_item
        self._after_write = after_write
        self._after_scan = after_scan

    def scan(self, *arguments: Any) -> ArrowRows:
        rows = super().scan(*arguments)
        self._after_scan()
        return rows

    def write(self, task: WriteTask, rows: RowSource) -> Sequence[WriteStatus]:
        written = super().write(task, rows)
        self._after_write()
        return written

    def map(self, function: Any, items: Any, size: Any) -> Any:
        count = 0

        def interrupted(item: Any, token: Any) -> Any:
            nonlocal count
            self._before_item(count)
            count += 1
            return function(item, token)

        answers = super().map(interrupted, items, size)
        self._after_map()
        return answers


class InterruptedRows(ArrowRows):
    """Rows of a write: another process acts once they are read, before the write commits."""

    def __init__(self, rows: pa.Table, act: Interruption) -> None:
        super().__init__(rows)
        self._act = act

    @contextmanager
    def open(self) -> Iterator[pa.Table]:
        with super().open() as table:
            yield table
        self._act()


Creation = Callable[[Storage, str, bytes], None]


class InterruptedStorage(CountingStorage):
    """Another process acts in place of the first creation of a file whose path matches."""

    def __init__(self, inner: Storage, pattern: str, act: Creation) -> None:
        super().__init__(inner)
        self.pattern = re.compile(pattern)
        self.act: Creation | None = act

    def create(self, path: str, data: bytes) -> None:
        if self.act is not None and self.pattern.search(path):
            act, self.act = self.act, None
            act(self.inner, path, data)
        else:
            super().create(path, data)


class InterruptedAfter(CountingStorage):
    """Another process acts once, after the first call of a method on a path that matches."""

    def __init__(self, inner: Storage, method: str, pattern: str, act: Interruption) -> None:
        super().__init__(inner)
        self.method = method
        self.pattern = re.compile(pattern)
        self.act = once(act)

    def _call(self, method: Callable[..., Result], *arguments: Any) -> Result:
        result = super()._call(method, *arguments)
        if method.__name__ == self.method and self.pattern.search(str(arguments[0])):
            self.act()
        return result


@contextmanager
def another_process() -> Iterator[None]:
    """Run the block as another process would: locks held in this process are not visible."""
    slots = dict(locks._SLOTS)
    locks._SLOTS.clear()
    try:
        yield
    finally:
        locks._SLOTS.clear()
        locks._SLOTS.update(slots)


# ----------------------------------------------------------------- processes scheduled call by call


class ScheduledProcess(CountingStorage):
    """One process: its thread, and the storage as it sees it."""

    def __init__(self, scheduler: ProcessScheduler, name: str) -> None:
        super().__init__(scheduler.storage)
        self.scheduler = scheduler
        self.name = name
        self.clock = _ProcessClock(self)
        self.result: Any = None
        self.error: BaseException | None = None
        self.is_over = self.is_dead = self.is_frozen = False
        self.wakes_at = 0
        self.steps = 0
        self.last_frozen_step = -10
        self.dies_at: int | None = None
        self.cut_off = range(0)
        self.last_call: tuple[str, str] = ("", "")
        self._go = threading.Semaphore(0)
        self._arrived = threading.Semaphore(0)
        self._thread: threading.Thread | None = None

    @property
    def root(self) -> str:
        """A root of its own, so that in-process locks distinguish the processes."""
        return f"{self.inner.root}-of-{self.name}"

    @property
    def is_alive(self) -> bool:
        return not (self.is_dead or self.is_over)

    @property
    def is_runnable(self) -> bool:
        asleep = self.wakes_at > self.scheduler.now.now_ms()
        return self.is_alive and not self.is_frozen and not asleep

    def start(self, work: Work) -> None:
        """Run up to the first storage call."""
        self._thread = threading.Thread(target=self._run, args=(work,), name=self.name, daemon=True)
        self._thread.start()
        self._wait()

    def step(self) -> None:
        """Make one storage call, and run up to the next."""
        assert not self.is_over, f"{self.name} has ended"
        self.steps += 1
        self._go.release()
        self._wait()

    def kill(self) -> None:
        """End the thread; no further call reaches the storage."""
        self.is_dead = True
        while not self.is_over:
            self.step()

    def pause(self) -> None:
        """Wait until the scheduler steps this process."""
        if threading.current_thread() is not self._thread:
            return  # periodic tasks run between steps
        self._arrived.release()
        assert self._go.acquire(timeout=HANG_TIMEOUT_S)

    @contextmanager
    def open_output(self, path: str) -> Iterator[BinaryIO]:
        """Collect the file and create it when the block ends: one call like others."""
        pieces = io.BytesIO()
        yield pieces
        self.create(path, pieces.getvalue())

    def _run(self, work: Work) -> None:
        try:
            self.result = work(self, self.clock)
        except Crash as error:
            self.error = error
            self.is_dead = True
        except Exception as error:
            self.error = error
        finally:
            self.is_over = True
            self._arrived.release()

    def _wait(self) -> None:
        assert self._arrived.acquire(timeout=HANG_TIMEOUT_S), f"{self.name} hangs"

    def _call(self, method: Callable[..., Result], *arguments: Any) -> Result:
        self.pause()
        if self.dies_at is not None and self.steps >= self.dies_at:
            self.is_dead = True
        if self.is_dead:
            raise Crash(self.name)
        if self.steps in self.cut_off:
            raise UnavailableError("the storage does not answer", process=self.name)
        if method.__name__ in CHANGES:
            self.last_call = (method.__name__, str(arguments[0]) if arguments else "")
            self.scheduler.changed = True
        return super()._call(method, *arguments)


class _ProcessClock:
    """The clock of one process: `skew_ms` ahead of the scheduler's; a sleep yields to others."""

    def __init__(self, process: ScheduledProcess) -> None:
        self._process = process
        self.skew_ms = 0

    def now_ms(self) -> int:
        return self._process.scheduler.now.now_ms() + self.skew_ms

    def monotonic_ms(self) -> int:
        return self._process.scheduler.now.now_ms()

    def sleep(self, seconds: float) -> None:
        self._process.wakes_at = self.monotonic_ms() + max(1, round(seconds * 1000))
        self._process.pause()
        if self._process.is_dead:
            raise Crash(self._process.name)

    def new_id(self) -> str:
        return self._process.scheduler.now.new_id()


@dataclass
class _PeriodicCall:
    """What a process repeats, such as the renewal of its heartbeat."""

    process: ScheduledProcess
    method: weakref.WeakMethod[Callable[[], bool]]
    period_ms: int
    next_at: int

    def run(self, now_ms: int) -> bool:
        """Call it once; return whether it goes on."""
        method = self.method()
        if method is None or not self.process.is_alive:
            return False
        self.next_at = now_ms + self.period_ms
        try:
            return self.process.is_frozen or bool(method())
        except LakewrightError:
            return True


@dataclass
class ProcessScheduler:
    """Processes on one table; `changed` says whether the last step changed the storage."""

    storage: MemoryStorage
    now: ManualClock = field(default_factory=ManualClock)
    processes: list[ScheduledProcess] = field(default_factory=list)
    changed: bool = False
    last_stepped: ScheduledProcess | None = None
    log: list[str] = field(default_factory=list)
    _periodic: list[_PeriodicCall] = field(default_factory=list)

    def start(self, name: str, work: Work, *, skew_ms: int = 0) -> ScheduledProcess:
        """Start one more process, up to its first storage call."""
        process = ScheduledProcess(self, name)
        process.clock.skew_ms = skew_ms
        self.processes.append(process)
        process.start(work)
        return process

    def run(self, schedule: Schedule, check: Callable[[], None]) -> None:
        """Step one process after another until all have ended; `check` follows each change."""
        while alive := [process for process in self.processes if process.is_alive]:
            runnable = [process for process in alive if process.is_runnable]
            if not runnable:
                for process in alive:
                    process.is_frozen = False
                waking = [process.wakes_at for process in alive]
                self.pass_time(min(waking) - self.now.now_ms())
                continue
            process = self.last_stepped = schedule(self, runnable)
            self.changed = False
            process.step()
            self.log.append(f"{process.name} {' '.join(process.last_call)}")
            if self.changed:
                check()

    def pass_time(self, milliseconds: int) -> None:
        """Advance the clock; periodic tasks of processes that are not frozen run as it advances."""
        end = self.now.now_ms() + max(1, milliseconds)
        while True:
            due = [call for call in self._periodic if call.next_at <= end]
            if not due:
                break
            first = min(due, key=lambda call: call.next_at)
            self.now.advance(max(0, first.next_at - self.now.now_ms()))
            if not first.run(self.now.now_ms()):
                self._periodic.remove(first)
        self.now.advance(end - self.now.now_ms())

    def kill_all(self) -> None:
        """Kill the processes that have not ended."""
        for process in self.processes:
            if not process.is_over:
                process.kill()

    def repeat(self, method: Callable[[], bool], period_s: float) -> _PeriodicCall:
        """Register a periodic task of the process that calls this."""
        name = threading.current_thread().name
        process = next(candidate for candidate in self.processes if candidate.name == name)
        period = round(period_s * 1000)
        weak = weakref.WeakMethod(method)
        call = _PeriodicCall(process, weak, period, self.now.now_ms() + period)
        self._periodic.append(call)
        return call

    def stop_repeating(self, call: _PeriodicCall) -> None:
        """End a periodic task."""
        if call in self._periodic:
            self._periodic.remove(call)


@contextmanager
def scheduled_processes(
    files: Mapping[str, bytes], now_ms: int, age_ms: int = 0
) -> Iterator[ProcessScheduler]:
    """A scheduler over a table in memory with files of some age; it runs all periodic tasks."""
    now = ManualClock(now_ms, first_id=1000)
    storage = MemoryStorage.fresh(dict(files), now_ms=now.now_ms)
    scheduler = ProcessScheduler(storage, now)
    now.advance(age_ms)

    class ScheduledTask:
        """Stands for `PeriodicTask`."""

        def __init__(
            self, method: Callable[[], bool], period_s: float, clock: Clock, *, name: str
        ) -> None:
            self._call = scheduler.repeat(method, period_s)

        def stop(self, patience_s: float | None = None) -> None:
            scheduler.stop_repeating(self._call)

    patches = [mock.patch(name, ScheduledTask) for name in _PERIODIC_TASKS]
    for patch in patches:
        patch.start()
    try:
        yield scheduler
    finally:
        scheduler.kill_all()
        memory._AREAS.pop(storage.label, None)
        for patch in patches:
            patch.stop()


def _without_clock(work: Callable[[Storage], None], storage: Storage, clock: Clock) -> None:
    work(storage)


def run_interleaved(
    storage: Storage, works: Sequence[Callable[[Storage], None]], order: Iterable[int]
) -> None:
    """Run processes on one storage; `order` lists which of them makes the next call.

    One that has ended is skipped; after the order, each runs to its end, one after the other.
    """
    assert isinstance(storage, MemoryStorage)
    scheduler = ProcessScheduler(storage)
    for number, work in enumerate(works):
        scheduler.start(f"process {number}", partial(_without_clock, work))
    for number in order:
        if not scheduler.processes[number].is_over:
            scheduler.processes[number].step()
    for process in scheduler.processes:
        while not process.is_over:
            process.step()
    for process in scheduler.processes:
        if process.error is not None:
            raise process.error
