"""Faults: storage that does not answer, and processes that crash at any call."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import count
from typing import Any, TypeVar

import pytest

from lakewright.errors import UnavailableError
from lakewright.storage.base import Storage
from lakewright.storage.memory import MemoryStorage
from lakewright.table.snapshot import Snapshot, load_snapshot
from lakewright.table.time_generator import TimeGenerator
from lakewright.testing.clock import ManualClock
from lakewright.testing.storage import CountingStorage, Crash, CrashingStorage, _Wrapped
from support.soak import sized
from support.tables import WrittenTable, list_files, time_generator

TableAction = Callable[[Snapshot, TimeGenerator, ManualClock], object]


def act_with_lock(storage: Storage, act: TableAction) -> object:
    """Do something to a table as a fresh process would that holds its lock."""
    snapshot = load_snapshot(storage)
    return act(snapshot, time_generator(snapshot), ManualClock())


def crashed_copies(table: Storage, act: TableAction) -> Iterator[Storage]:
    """Copies of a table after every point at which a process may die that acts on it."""
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


class MortalStorage(CountingStorage):
    """What one process sees of a storage, until it is dead."""

    __slots__ = ("dead",)

    def __init__(self, inner: Storage) -> None:
        super().__init__(inner)
        self.dead = False

    def _call(self, method: Callable[..., Result], *arguments: Any) -> Result:
        if self.dead:
            raise Crash("this process is dead")
        return super()._call(method, *arguments)


Result = TypeVar("Result")


class UnreliableStorage(_Wrapped):
    """Fails as told by `fail`; with `after_effect` the call happens, and its answer is lost."""

    __slots__ = ("_planned",)

    def __init__(self, inner: Storage) -> None:
        super().__init__(inner)
        self._planned: dict[str, list[bool]] = {}

    def fail(self, *methods: str, times: int = 1, after_effect: bool = False) -> None:
        """The next calls of these methods fail, in addition to what was planned before."""
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


# The second leaves the files that the first leaves one change later: see test_testing_storage.py.
each_crash = pytest.mark.parametrize(
    "after_effect", sized([False], soak=[False, True]), ids=sized(["before"], ["before", "after"])
)


def crash_points(
    fresh: Callable[[], WrittenTable], run: Callable[[WrittenTable], object]
) -> Iterator[tuple[int, WrittenTable]]:
    """The table after a death right after each call that `run` makes, be that a read or a change.

    Where a death leaves the very files that the one before it has left, they are given once. A
    check looks at every other one, a soak run at all.
    """
    last: dict[str, bytes] = {}
    for survive in count(step=sized(2, soak=1)):
        table = fresh()
        inner = table.storage
        dying = CrashingStorage(inner, survive, after_effect=True, reads=True)
        table.storage = dying
        with suppress(Crash):
            run(table)
        table.storage = inner
        left = {file.path: inner.read(file.path) for file in inner.list_tree("")}
        if left != last:
            yield survive, table
        if not dying.crashed:
            return
        last = left
