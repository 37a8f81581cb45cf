"""An ingestion that crashes at any storage call: run again, it brings every row once."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from itertools import count
from typing import Any, TypeVar

import pytest

from lakewright.errors import ConflictError, UnavailableError
from lakewright.storage.base import Storage
from lakewright.storage.memory import MemoryStorage
from lakewright.testing.clock import ManualClock
from lakewright.testing.storage import CountingStorage, Crash, CrashingStorage
from support.faults import each_crash
from support.ingestion import CountingSource, first_keys, ingester, stored_keys
from support.soak import sized

pytestmark = pytest.mark.sampled(3)

STEP = sized(5, soak=1)
Result = TypeVar("Result")

TABLES: dict[str, Mapping[str, str]] = {
    "copy on write": {},
    "merge on read": {"hoodie.datasource.write.table.type": "MERGE_ON_READ"},
    "several writers": {
        "hoodie.write.concurrency.mode": "OPTIMISTIC_CONCURRENCY_CONTROL",
        "hoodie.write.lock.provider": "in_process",
        "hoodie.clean.failed.writes.policy": "LAZY",
    },
    "services after each commit": {
        "hoodie.datasource.write.table.type": "MERGE_ON_READ",
        "hoodie.compact.inline": "true",
        "hoodie.compact.inline.max.delta.commits": "1",
        "hoodie.clean.commits.retained": "1",
        "hoodie.keep.min.commits": "2",
        "hoodie.keep.max.commits": "3",
    },
}
FIRST = "copy on write"
# The first round, which makes the table as well, differs little from kind to kind.
MOMENTS = {
    f"{name}, round {rounds + 1}": (options, rounds)
    for name, options in TABLES.items()
    for rounds in ((0, 1) if name == FIRST else (1,))
}


def copied(storage: Storage) -> MemoryStorage:
    return MemoryStorage.fresh({f.path: storage.read(f.path) for f in storage.list_tree("")})


def later_clock(start: int = 0) -> ManualClock:
    """A clock of a process that starts long after the last one has died."""
    return ManualClock(1_767_225_600_000 + 3_600_000 * (start + 1), first_id=1000 * (start + 1))


def finished(storage: Storage, options: Mapping[str, str], clock: ManualClock) -> None:
    made = ingester(storage, CountingSource(), clock, options)
    for _ in range(8):
        # A warning names the leftovers that could not be deleted.
        with suppress(ConflictError, UnavailableError), warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)
            if made.run().commit is None:
                return
    raise AssertionError("the ingestion does not come to its end")


@pytest.fixture(scope="module")
def starts() -> Callable[[Mapping[str, str], int], MemoryStorage]:
    """Tables that some rounds have filled."""

    def start(options: Mapping[str, str], rounds: int) -> MemoryStorage:
        storage, clock = MemoryStorage.fresh(), ManualClock()
        for _ in range(rounds):
            ingester(storage, CountingSource(), clock, options).run()
        return storage

    return start


def deaths(
    start: MemoryStorage, options: Mapping[str, str], *, after_effect: bool
) -> Iterator[MemoryStorage]:
    """The table after a death at each of the changes that a round makes."""
    for survive in count():
        storage = copied(start)
        dying = CrashingStorage(storage, survive, after_effect=after_effect)
        with suppress(Crash):
            ingester(dying, CountingSource(), later_clock(), options).run()
        yield storage
        if not dying.crashed:
            return


@each_crash
@pytest.mark.parametrize(("options", "rounds"), MOMENTS.values(), ids=list(MOMENTS))
def test_every_row_is_there_once_after_a_death(
    starts: Callable[[Mapping[str, str], int], MemoryStorage],
    options: Mapping[str, str],
    rounds: int,
    after_effect: bool,
) -> None:
    death_count = 0
    for storage in deaths(starts(options, rounds), options, after_effect=after_effect):
        finished(storage, options, later_clock(1))
        assert stored_keys(storage) == first_keys(10)
        death_count += 1
    assert death_count > 5


class Failing(CountingStorage):
    """One call is not answered, whether it has an effect or not; all others are."""

    __slots__ = ("after_effect", "at", "number")

    def __init__(self, inner: Storage, at: int, *, after_effect: bool) -> None:
        super().__init__(inner)
        self.at, self.number, self.after_effect = at, 0, after_effect

    def _call(self, method: Callable[..., Result], *arguments: Any) -> Result:
        self.number += 1
        if self.number != self.at:
            return super()._call(method, *arguments)
        if self.after_effect:
            super()._call(method, *arguments)
        raise UnavailableError("no answer", call=method.__name__)


@pytest.mark.parametrize("after_effect", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("kind", [FIRST, "services after each commit"])
def test_every_row_is_there_once_after_a_call_that_is_not_answered(
    starts: Callable[[Mapping[str, str], int], MemoryStorage],
    kind: str,
    after_effect: bool,
) -> None:
    options = TABLES[kind]
    start = starts(options, 1)
    # The calls that one of these tests leaves out, another takes.
    for at in count(1 + int(after_effect) % STEP, STEP):
        storage = copied(start)
        failing = Failing(storage, at, after_effect=after_effect)
        # The same process goes on: what it remembers must not mislead it.
        finished(failing, options, later_clock())
        assert stored_keys(storage) == first_keys(10)
        if failing.number < at:
            break
