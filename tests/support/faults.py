"""Faults: storage that does not answer, answers late or incompletely; processes that crash."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import count
from typing import Any, TypeVar

import pytest

from lakewright.errors import UnavailableError
from lakewright.storage.base import FileStatus, Storage
from lakewright.storage.memory import MemoryStorage
from lakewright.table.snapshot import Snapshot, load_snapshot
from lakewright.table.time_generator import TimeGenerator
from lakewright.testing.clock import ManualClock
from lakewright.testing.storage import CountingStorage, Crash, CrashingStorage, _Wrapped
from support.concurrency import CHANGES
from support.soak import sized
from support.tables import TIMELINE, WrittenTable, list_files, time_generator

Result = TypeVar("Result")


# ---------------------------------------------------------------------------------------- storages


class UnreliableStorage(_Wrapped):
    """Fails calls as set by `fail`; with `after_effect` they happen, and their answer is lost."""

    __slots__ = ("_planned",)

    def __init__(self, inner: Storage) -> None:
        super().__init__(inner)
        self._planned: dict[str, list[bool]] = {}

    def fail(self, *methods: str, times: int = 1, after_effect: bool = False) -> None:
        """Fail the next calls of these methods, after those that already were to fail."""
        for method in methods:
            self._planned.setdefault(method, []).extend([after_effect] * times)

    def recover(self) -> None:
        """Answer again."""
        self._planned.clear()

    def _call(self, method: Callable[..., Result], *arguments: Any) -> Result:
        planned = self._planned.get(method.__name__)
        if not planned:
            return method(*arguments)
        if planned.pop(0):
            method(*arguments)
        raise UnavailableError("no answer", call=method.__name__)


class RemoteInMemory(_Wrapped):
    """A storage for which tasks use threads, as for one behind a network."""

    __slots__ = ()

    @property
    def is_remote(self) -> bool:
        return True


class CommitAnswerLost(CountingStorage):
    """Once `armed`, the answer to the next commit is lost, and `down` more calls fail."""

    __slots__ = ("_failing", "armed", "down")

    def __init__(self, inner: Storage, down: int) -> None:
        super().__init__(inner)
        self.armed = False
        self.down = down
        self._failing = 0

    def _call(self, method: Callable[..., Result], *arguments: Any) -> Result:
        if self._failing:
            self._failing -= 1
            raise UnavailableError("the storage is down")
        result = super()._call(method, *arguments)
        if self.armed and method.__name__ == "create" and str(arguments[0]).endswith(".commit"):
            self.armed, self._failing = False, self.down
            raise UnavailableError("the answer was lost")
        return result


class SlowStorage(UnreliableStorage):
    """Advances a clock after each of the next calls of one method."""

    __slots__ = ("_clock", "_method", "_takes_ms")

    def __init__(self, inner: Storage, clock: ManualClock, method: str, *takes_ms: int) -> None:
        super().__init__(inner)
        self._clock = clock
        self._method = method
        self._takes_ms = list(takes_ms)

    def _call(self, method: Callable[..., Result], *arguments: Any) -> Result:
        result = super()._call(method, *arguments)
        if method.__name__ == self._method and self._takes_ms:
            self._clock.advance(self._takes_ms.pop(0))
        return result


class WatchedStorage(UnreliableStorage):
    """Sets `happened` once a method was called a few times with success."""

    __slots__ = ("_method", "_remaining", "happened")

    def __init__(self, inner: Storage, method: str, times: int) -> None:
        super().__init__(inner)
        self._method = method
        self._remaining = times
        self.happened = threading.Event()

    def _call(self, method: Callable[..., Result], *arguments: Any) -> Result:
        result = super()._call(method, *arguments)
        if method.__name__ == self._method:
            self._remaining -= 1
            if self._remaining == 0:
                self.happened.set()
        return result


class IncompleteListing(CountingStorage):
    """The next listing of the timeline misses `hidden`, a file that appears while it is made."""

    def __init__(self, inner: Storage, hidden: str | None = None) -> None:
        super().__init__(inner)
        self.hidden = hidden

    def list_files(self, folder: str) -> list[FileStatus]:
        files = list(super().list_files(folder))
        if folder != TIMELINE or self.hidden is None:
            return files
        hidden, self.hidden = self.hidden, None
        return [file for file in files if not file.name.startswith(hidden)]


# ----------------------------------------------------------------------------------------- crashes


class MortalStorage(CountingStorage):
    """The storage as one process sees it: no call succeeds once the process is `dead`.

    With `changes_left` it dies at the change after so many; once it is `unreachable`, its calls
    fail as those of a storage that does not answer.
    """

    def __init__(self, inner: Storage) -> None:
        super().__init__(inner)
        self.dead = self.unreachable = False
        self.changes_left: int | None = None

    def _call(self, method: Callable[..., Result], *arguments: Any) -> Result:
        if self.dead:
            kind = UnavailableError if self.unreachable else Crash
            raise kind("this process is dead")
        if self.changes_left is not None and method.__name__ in CHANGES:
            if self.changes_left == 0:
                self.dead = True
                raise Crash(method.__name__)
            self.changes_left -= 1
        return super()._call(method, *arguments)


# Crashing after a change leaves the files that crashing before the next one leaves: see
# test_testing_storage.py.
each_crash = pytest.mark.parametrize(
    "after_effect", sized([False], soak=[False, True]), ids=sized(["before"], ["before", "after"])
)


def crash_points(
    fresh: Callable[[], WrittenTable], run: Callable[[WrittenTable], object]
) -> Iterator[tuple[int, WrittenTable]]:
    """The table after a crash right after each storage call of `run`, be it a read or a change.

    Consecutive crashes that leave the same files are yielded once. A check looks at every other
    one, a soak run at all.
    """
    last: dict[str, bytes] = {}
    for survive in count(step=sized(3, soak=1)):
        table = fresh()
        inner = table.storage
        crashing = CrashingStorage(inner, survive, after_effect=True, reads=True)
        table.storage = crashing
        with suppress(Crash):
            run(table)
        table.storage = inner
        files = {file.path: inner.read(file.path) for file in inner.list_tree("")}
        if files != last:
            yield survive, table
        if not crashing.crashed:
            return
        last = files


TableAction = Callable[[Snapshot, TimeGenerator, ManualClock], object]


def act_with_lock(storage: Storage, act: TableAction) -> object:
    """Act on a table as a new process that holds the lock."""
    snapshot = load_snapshot(storage)
    return act(snapshot, time_generator(snapshot), ManualClock())


def crashed_copies(table: Storage, act: TableAction) -> Iterator[Storage]:
    """Copies of a table after each point at which a process that acts on it may crash."""
    content = {path: table.read(path) for path in list_files(table)}
    for after_effect in (False, True):
        for survived in count():
            storage = MemoryStorage.fresh(content)
            crashing = CrashingStorage(storage, survived, after_effect=after_effect)
            try:
                act_with_lock(crashing, act)
            except Crash:
                yield storage
            else:
                break
