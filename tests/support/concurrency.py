"""Processes on a stage: who moves next is decided call by call, and time stands still meanwhile.

Each process is a thread that runs up to its next call to storage and waits there to be let on. One
that sleeps is passed over until its time has come; if all sleep, time goes on to the first of them.
Threads that repeat something, such as heartbeats, are replaced: they act when time goes on, as long
as their process is awake. So a play depends on nothing but its script.
"""

from __future__ import annotations

import io
import re
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, BinaryIO, TypeVar
from unittest import mock

from lakewright.clock import Clock
from lakewright.engine.local import LocalEngine
from lakewright.errors import LakewrightError, UnavailableError
from lakewright.storage import memory
from lakewright.storage.base import Storage
from lakewright.storage.memory import MemoryStorage
from lakewright.table.locks import base as locks
from lakewright.testing.clock import ManualClock
from lakewright.testing.storage import CountingStorage, Crash
from support.processes import HANG_TIMEOUT_S


class ActingEngine(LocalEngine):
    """Works, and lets others act before each item, or when all is done."""

    def __init__(
        self,
        after: Callable[[], object] | None = None,
        *,
        between: Callable[[int], object] | None = None,
    ) -> None:
        self._after = after
        self._between = between

    def map(self, do: Any, items: Any, size: Any) -> Any:
        count = 0

        def watched(item: Any, token: Any) -> Any:
            nonlocal count
            if self._between is not None:
                self._between(count)
            count += 1
            return do(item, token)

        done = super().map(watched, items, size)
        if self._after is not None:
            self._after()
        return done


Result = TypeVar("Result")
Work = Callable[[Storage, Clock], Any]
Schedule = Callable[["ProcessScheduler", Sequence["ScheduledProcess"]], "ScheduledProcess"]

CHANGES = frozenset({"create", "replace", "replace_if", "delete", "delete_many", "delete_folder"})
_PERIODIC_TASKS = (
    "lakewright.table.heartbeat.PeriodicTask",
    "lakewright.table.locks.storage_lock.PeriodicTask",
)


class ScheduledProcess(CountingStorage):
    """One process, and what it sees of the storage."""

    def __init__(self, stage: ProcessScheduler, name: str) -> None:
        super().__init__(stage.storage)
        self.stage = stage
        self.name = name
        self.clock = _ProcessClock(self)
        self.result: Any = None
        self.error: BaseException | None = None
        self.is_over = self.is_dead = self.is_frozen = False
        self.wakes_at = 0
        self.steps = 0
        self.held_still_at = -10
        self.dies_at: int | None = None
        self.cut_off = range(0)
        self.last_call: tuple[str, str] = ("", "")
        self._go = threading.Semaphore(0)
        self._arrived = threading.Semaphore(0)
        self._thread: threading.Thread | None = None

    @property
    def root(self) -> str:
        """One of its own, so that locks within this process tell the actors apart."""
        return f"{self.inner.root}-of-{self.name}"

    @property
    def is_alive(self) -> bool:
        return not (self.is_dead or self.is_over)

    @property
    def can_move(self) -> bool:
        asleep = self.wakes_at > self.stage.now.now_ms()
        return self.is_alive and not self.is_frozen and not asleep

    def start(self, work: Work) -> None:
        """Begin, up to the first call."""
        self._thread = threading.Thread(target=self._run, args=(work,), name=self.name, daemon=True)
        self._thread.start()
        self._wait()

    def step(self) -> None:
        """Let it make its call, and go on up to the next."""
        assert not self.is_over, f"{self.name} has nothing more to do"
        self.steps += 1
        self._go.release()
        self._wait()

    def bury(self) -> None:
        """End its thread; nothing that it still does reaches the storage."""
        self.is_dead = True
        while not self.is_over:
            self.step()

    def rest(self) -> None:
        """Give the others their turn."""
        if threading.current_thread() is not self._thread:
            return  # what repeats itself acts between steps
        self._arrived.release()
        assert self._go.acquire(timeout=HANG_TIMEOUT_S)

    @contextmanager
    def open_output(self, path: str) -> Iterator[BinaryIO]:
        """Collect the file and create it when the block ends: a call like others."""
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
        assert self._arrived.acquire(timeout=HANG_TIMEOUT_S), f"{self.name} does not come back"

    def _call(self, method: Callable[..., Result], *arguments: Any) -> Result:
        self.rest()
        if self.dies_at is not None and self.steps >= self.dies_at:
            self.is_dead = True
        if self.is_dead:
            raise Crash(self.name)
        if self.steps in self.cut_off:
            raise UnavailableError("the storage does not answer", process=self.name)
        if method.__name__ in CHANGES:
            self.last_call = (method.__name__, str(arguments[0]) if arguments else "")
            self.stage.changed = True
        return super()._call(method, *arguments)


class _ProcessClock:
    """Time as one process sees it: it is late or early by some time, and sleeps by itself."""

    def __init__(self, actor: ScheduledProcess) -> None:
        self._actor = actor
        self.off_ms = 0

    def now_ms(self) -> int:
        return self._actor.stage.now.now_ms() + self.off_ms

    def monotonic_ms(self) -> int:
        return self._actor.stage.now.now_ms()

    def sleep(self, seconds: float) -> None:
        self._actor.wakes_at = self.monotonic_ms() + max(1, round(seconds * 1000))
        self._actor.rest()
        if self._actor.is_dead:
            raise Crash(self._actor.name)

    def new_id(self) -> str:
        return self._actor.stage.now.new_id()


@dataclass
class _PeriodicCall:
    """What a process does time and again."""

    actor: ScheduledProcess
    method: weakref.WeakMethod[Callable[[], bool]]
    period_ms: int
    next_at: int

    def beat(self, now_ms: int) -> bool:
        method = self.method()
        if method is None or not self.actor.is_alive:
            return False
        self.next_at = now_ms + self.period_ms
        try:
            return self.actor.is_frozen or bool(method())
        except LakewrightError:
            return True


@dataclass
class ProcessScheduler:
    """Some processes on one table; `changed` tells whether the last step changed the storage."""

    files: dict[str, bytes] = field(default_factory=dict)
    now: ManualClock = field(default_factory=ManualClock)
    actors: list[ScheduledProcess] = field(default_factory=list)
    changed: bool = False
    mover: ScheduledProcess | None = None
    log: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.storage = MemoryStorage.fresh(self.files, now_ms=self.now.now_ms)
        self._beating: list[_PeriodicCall] = []

    def enter(self, name: str, work: Work, *, off_ms: int = 0) -> ScheduledProcess:
        """Have one more process begin."""
        actor = ScheduledProcess(self, name)
        actor.clock.off_ms = off_ms
        self.actors.append(actor)
        actor.start(work)
        return actor

    def play(self, script: Schedule, check: Callable[[], None]) -> None:
        """Move one actor after the other until all are done; `check` follows each change."""
        while alive := [actor for actor in self.actors if actor.is_alive]:
            able = [actor for actor in alive if actor.can_move]
            if not able:
                for actor in alive:
                    actor.is_frozen = False
                waking = [actor.wakes_at for actor in alive]
                self.pass_time(min(waking) - self.now.now_ms())
                continue
            actor = self.mover = script(self, able)
            self.changed = False
            actor.step()
            self.log.append(f"{actor.name} {' '.join(actor.last_call)}")
            if self.changed:
                check()

    def pass_time(self, milliseconds: int) -> None:
        """Let time go on; who is awake does meanwhile what it does time and again."""
        end = self.now.now_ms() + max(1, milliseconds)
        while True:
            due = [each for each in self._beating if each.next_at <= end]
            if not due:
                break
            first = min(due, key=lambda each: each.next_at)
            self.now.advance(max(0, first.next_at - self.now.now_ms()))
            if not first.beat(self.now.now_ms()):
                self._beating.remove(first)
        self.now.advance(end - self.now.now_ms())

    def end(self) -> None:
        """Bury who is left."""
        for actor in self.actors:
            if not actor.is_over:
                actor.bury()
        memory._AREAS.pop(self.storage.label, None)

    def repeat(self, method: Callable[[], bool], period_s: float) -> _PeriodicCall:
        """Note what the process of this thread wants to be done time and again."""
        name = threading.current_thread().name
        actor = next(each for each in self.actors if each.name == name)
        period = round(period_s * 1000)
        weak = weakref.WeakMethod(method)
        beating = _PeriodicCall(actor, weak, period, self.now.now_ms() + period)
        self._beating.append(beating)
        return beating

    def forget(self, beating: _PeriodicCall) -> None:
        """End that."""
        if beating in self._beating:
            self._beating.remove(beating)


@contextmanager
def scheduled_processes(
    files: Mapping[str, bytes], now_ms: int, age_ms: int = 0
) -> Iterator[ProcessScheduler]:
    """A stage with these files, of some age; what repeats itself does so on it."""
    stage = ProcessScheduler(dict(files), ManualClock(now_ms, first_id=1000))
    stage.now.advance(age_ms)

    class Repeated:
        def __init__(
            self, method: Callable[[], bool], period_s: float, clock: Clock, *, name: str
        ) -> None:
            self._beating = stage.repeat(method, period_s)

        def stop(self, patience_s: float | None = None) -> None:
            stage.forget(self._beating)

    patches = [mock.patch(name, Repeated) for name in _PERIODIC_TASKS]
    for patch in patches:
        patch.start()
    try:
        yield stage
    finally:
        stage.end()
        for patch in patches:
            patch.stop()


class Player(CountingStorage):
    """What one process sees of a storage; before each call it waits until it is its turn.

    It has a root of its own, so that locks within this process tell the players apart.
    """

    def __init__(self, inner: Storage, name: str) -> None:
        super().__init__(inner)
        self.name = name
        self.is_over = False
        self._go = threading.Semaphore(0)
        self._arrived = threading.Semaphore(0)

    @property
    def root(self) -> str:
        return f"{self.inner.root}-of-{self.name}"

    def start(self, work: Callable[[Storage], None]) -> None:
        """Begin to work, up to the first call."""
        threading.Thread(target=self._run, args=(work,), name=self.name, daemon=True).start()
        self._wait()

    def step(self) -> None:
        """Do one call and go on up to the next; nothing if the work is done."""
        if not self.is_over:
            self._go.release()
            self._wait()

    def _run(self, work: Callable[[Storage], None]) -> None:
        try:
            work(self)
        finally:
            self.is_over = True
            self._arrived.release()

    def _wait(self) -> None:
        assert self._arrived.acquire(timeout=HANG_TIMEOUT_S)

    def _call(self, method: Callable[..., Result], *arguments: Any) -> Result:
        self._arrived.release()
        assert self._go.acquire(timeout=HANG_TIMEOUT_S)
        return super()._call(method, *arguments)


def take_turns(
    storage: Storage, works: Sequence[Callable[[Storage], None]], order: Iterable[int]
) -> None:
    """Let processes work on one storage; `order` names who makes the next call.

    Who is done is passed over; when the order ends, each works on to its end, one after the other.
    """
    players = [Player(storage, f"process {n}") for n in range(len(works))]
    for player, work in zip(players, works, strict=True):
        player.start(work)
    for who in order:
        players[who].step()
    for player in players:
        while not player.is_over:
            player.step()


Act = Callable[[Storage, str, bytes], None]


class InterruptedStorage(CountingStorage):
    """Others act in place of the first creation of a file whose path fits."""

    def __init__(self, inner: Storage, pattern: str, act: Act) -> None:
        super().__init__(inner)
        self.pattern = re.compile(pattern)
        self.act: Act | None = act

    def create(self, path: str, data: bytes) -> None:
        if self.act is not None and self.pattern.search(path):
            act, self.act = self.act, None
            act(self.inner, path, data)
        else:
            super().create(path, data)


class InterruptedEngine(LocalEngine):
    """Works, and then lets others act."""

    def __init__(self, act: Callable[[], None]) -> None:
        self.act = act

    def map(self, do: Any, items: Sequence[Any], size: Any) -> list[Any]:
        done = super().map(do, items, size)
        self.act()
        return done


@contextmanager
def another_process() -> Iterator[None]:
    """Locks of this process are not seen in the block."""
    before = dict(locks._SLOTS)
    locks._SLOTS.clear()
    try:
        yield
    finally:
        locks._SLOTS.clear()
        locks._SLOTS.update(before)
