"""Clocks that differ and storage that fails, while plans are executed: what the page promises."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, TypeVar

import pytest

from lakewright.errors import ConflictError, UnavailableError
from lakewright.model.instant import Action
from lakewright.services.runner import ServiceRunner
from lakewright.storage.base import FileStatus
from lakewright.storage.memory import MemoryStorage
from lakewright.table.failed_writes import find_leftovers
from lakewright.table.plan_execution import PlanInProgressError
from lakewright.table.snapshot import load_snapshot
from lakewright.table.transaction import TransactionManager
from lakewright.testing.clock import ManualClock
from lakewright.testing.storage import CountingStorage
from lakewright.testing.timeline_drawing import at
from support.cancellable_plans import (
    CANCELLABLE_PLAN,
    DAYS,
    HEARTBEAT_EXPIRES_MS,
    PlanFixture,
    each_service,
)
from support.concurrency import InterruptedEngine
from support.tables import WrittenTable, row

pytestmark = pytest.mark.sampled(2)

Result = TypeVar("Result")
IMMUTABLE: Mapping[str, str] = {}
each_plan = pytest.mark.parametrize(
    "plan", [IMMUTABLE, CANCELLABLE_PLAN], ids=["ordinary", "cancellable"]
)


class Skewed(ManualClock):
    """A clock that is ahead of another one by so much, or behind it."""

    def __init__(self, other: ManualClock, by_ms: int) -> None:
        super().__init__(first_id=5000)
        self._other = other
        self._by_ms = by_ms

    def now_ms(self) -> int:
        return self._other.now_ms() + self._by_ms

    def advance(self, milliseconds: int) -> None:
        self._other.advance(milliseconds)


def skewed(fixture: PlanFixture, by_ms: int) -> ServiceRunner:
    """A process whose clock is off."""
    table = WrittenTable(fixture.storage, Skewed(fixture.clock, by_ms), fixture.table.options)
    return table.services()


FAR_AHEAD_MS = HEARTBEAT_EXPIRES_MS + 1


@each_service
def test_a_clean_whose_clock_is_far_ahead_leaves_a_live_execution(service: str) -> None:
    fixture = PlanFixture(service)
    at = fixture.schedule()
    fixture.execute(at, InterruptedEngine(lambda: skewed(fixture, FAR_AHEAD_MS).run("clean")))
    assert fixture.state(at) == "COMPLETED"
    assert fixture.rollbacks() == []
    assert fixture.table.rows() == fixture.rows_before


@each_service
@each_plan
def test_nor_is_a_live_execution_taken_over(service: str, plan: Mapping[str, str]) -> None:
    fixture = PlanFixture(service)
    at = fixture.schedule(plan)

    def take_over() -> None:
        with pytest.raises(PlanInProgressError, match="is being executed"):
            skewed(fixture, FAR_AHEAD_MS).execute(at)

    fixture.execute(at, InterruptedEngine(take_over))
    assert fixture.state(at) == "COMPLETED"
    assert fixture.table.rows() == fixture.rows_before


def test_nor_superseded_by_another_plan() -> None:
    fixture = PlanFixture("clustering")
    at = fixture.schedule()
    skips = []

    def plan_over() -> None:
        skips.append(skewed(fixture, FAR_AHEAD_MS).schedule("clustering"))

    fixture.execute(at, InterruptedEngine(plan_over))
    assert "is being executed" in str(skips[0])
    assert fixture.state(at) == "COMPLETED"


def test_nor_does_a_writer_roll_back_a_live_one() -> None:
    fixture = PlanFixture("clustering")
    ahead = Skewed(fixture.clock, FAR_AHEAD_MS)
    other = WrittenTable(fixture.storage, ahead, fixture.table.options)

    def write() -> None:
        with pytest.raises(ConflictError, match="check the clocks"):
            other.upsert([row("other", day=DAYS[1])])

    fixture.table.upsert([row("first")], before_commit=write)
    assert not load_snapshot(fixture.storage).timeline.completed(Action.ROLLBACK)


def test_the_time_of_the_storage_is_asked_for_only_if_a_heartbeat_seems_expired() -> None:
    clock = ManualClock()
    memory = MemoryStorage.fresh(now_ms=clock.now_ms)
    memory.replace(".hoodie/.heartbeat/1", b"")
    for age_ms, calls in (
        (HEARTBEAT_EXPIRES_MS, {"list_files": 1}),
        (FAR_AHEAD_MS, {"list_files": 1, "replace": 1, "status": 1, "delete": 1}),
    ):
        counting = CountingStorage(memory)
        writer = TransactionManager(counting, Skewed(clock, age_ms))
        assert writer.live_instants(["1", "2"]) == {"1"}
        assert counting.calls == calls
    clock.advance(FAR_AHEAD_MS)
    assert TransactionManager(memory, clock).live_instants(["1"]) == frozenset()
    assert list(memory.files()) == [".hoodie/.heartbeat/1"]


def test_leftover_files_are_as_old_as_the_storage_says() -> None:
    fixture = PlanFixture("clustering")
    beginning = f".hoodie/.heartbeat/{at(999)}"
    fixture.storage.replace(beginning, b"")
    ahead = Skewed(fixture.clock, FAR_AHEAD_MS)
    settings = TransactionManager(fixture.storage, ahead).heartbeat
    assert find_leftovers(fixture.storage, settings, ahead).files == (beginning,)
    assert find_leftovers(fixture.storage, settings, ahead, check_clock=True).files == ()
    fixture.expire_heartbeats()
    found = find_leftovers(fixture.storage, settings, fixture.clock, check_clock=True)
    assert found.files == (beginning,)


class ProbeDeleted(CountingStorage):
    """Another process that asks for the time deletes the file of this one, each time."""

    def status(self, path: str) -> FileStatus | None:
        if path.endswith("lakewright_clock"):
            self.inner.delete(path)
        return super().status(path)


def test_without_the_time_of_the_storage_no_heartbeat_counts_as_expired() -> None:
    clock = ManualClock()
    memory = MemoryStorage.fresh(now_ms=clock.now_ms)
    memory.replace(".hoodie/.heartbeat/1", b"")
    clock.advance(FAR_AHEAD_MS)
    assert TransactionManager(ProbeDeleted(memory), clock).live_instants(["1"]) == {"1"}


def data_files_written(counting: CountingStorage) -> list[str]:
    return [
        path
        for call, path in counting.touched
        if call in ("create", "open_output") and not path.startswith(".hoodie")
    ]


@each_service
@each_plan
def test_an_execution_whose_heartbeat_has_expired_stops_before_its_next_file_group(
    service: str, plan: Mapping[str, str]
) -> None:
    fixture = PlanFixture(service)
    at = fixture.schedule(plan)
    counting = CountingStorage(fixture.storage)

    def stall(item: int) -> None:
        if item == 1:
            fixture.expire_heartbeats()

    runner = fixture.runner(engine=InterruptedEngine(before_item=stall))
    with pytest.raises(ConflictError, match="heartbeat has expired"):
        replace(runner, storage=counting).execute(at)
    assert len(data_files_written(counting)) == 1
    assert fixture.files_of(at) == []
    assert fixture.table.rows() == fixture.rows_before


@each_service
def test_and_so_does_one_that_another_process_has_taken_over(service: str) -> None:
    fixture = PlanFixture(service)
    at = fixture.schedule(IMMUTABLE)
    counting = CountingStorage(fixture.storage)

    def stall(item: int) -> None:
        if item == 1:
            fixture.expire_heartbeats()
            fixture.crash_executing(at)

    runner = fixture.runner(engine=InterruptedEngine(before_item=stall))
    with pytest.raises(ConflictError, match="rolled back by another process"):
        replace(runner, storage=counting).execute(at)
    assert len(data_files_written(counting)) == 1
    fixture.expire_heartbeats()
    assert fixture.execute(at)
    assert fixture.table.rows() == fixture.rows_before


@each_service
def test_a_clock_behind_keeps_a_crashed_execution_alive_for_longer(service: str) -> None:
    fixture = PlanFixture(service)
    at = fixture.schedule()
    fixture.crash_executing(at)
    fixture.expire_heartbeats()
    skewed(fixture, -HEARTBEAT_EXPIRES_MS).run("clean")
    fixture.assert_still_pending(at, "INFLIGHT")
    with pytest.raises(PlanInProgressError, match="is being executed"):
        skewed(fixture, -HEARTBEAT_EXPIRES_MS).execute(at)
    fixture.expire_heartbeats()
    skewed(fixture, -HEARTBEAT_EXPIRES_MS).run("clean")
    fixture.assert_rolled_back(at)


@each_service
@each_plan
@pytest.mark.parametrize("by_ms", [-100_000, 100_000], ids=["behind", "ahead"])
def test_less_than_the_heartbeat_has_to_spare_is_no_harm(
    service: str, plan: Mapping[str, str], by_ms: int
) -> None:
    fixture = PlanFixture(service)
    at = fixture.schedule(plan)

    def others() -> None:
        with pytest.raises(PlanInProgressError, match="is being executed"):
            skewed(fixture, by_ms).execute(at)
        skewed(fixture, by_ms).run("clean")

    assert fixture.execute(at, InterruptedEngine(others))
    assert fixture.table.rows() == fixture.rows_before


def test_a_plan_is_as_old_as_the_clock_of_the_clean_says() -> None:
    delay = {"hoodie.table.service.rollback.delay.minutes": "2"}
    for by_ms, state in ((0, "REQUESTED"), (-120_000, "REQUESTED"), (120_000, "GONE")):
        fixture = PlanFixture("clustering")
        at = fixture.schedule()
        runner = skewed(fixture, by_ms)
        replace(runner, options={**runner.options, **delay}).run("clean")
        assert fixture.state(at) == state


class Failing(CountingStorage):
    """Does not answer while it is down."""

    __slots__ = ("down",)

    def __init__(self, inner: Any) -> None:
        super().__init__(inner)
        self.down = False

    def _call(self, method: Callable[..., Result], *arguments: Any) -> Result:
        if self.down:
            raise UnavailableError("no answer", call=method.__name__)
        return super()._call(method, *arguments)


@each_service
@each_plan
def test_storage_that_fails_when_an_execution_wants_to_complete(
    service: str, plan: Mapping[str, str]
) -> None:
    fixture = PlanFixture(service)
    at = fixture.schedule(plan)
    storage = Failing(fixture.storage)

    def fail() -> None:
        storage.down = True

    runner = replace(fixture.runner(engine=InterruptedEngine(fail)), storage=storage)
    with pytest.raises(UnavailableError) as failure:
        runner.execute(at)
    assert "could not be aborted" in failure.value.__notes__[0]
    storage.down = False
    assert fixture.state(at) == "INFLIGHT"
    assert fixture.table.rows() == fixture.rows_before
    with pytest.raises(PlanInProgressError, match="is being executed"):
        fixture.execute(at)
    fixture.expire_heartbeats()
    if plan is IMMUTABLE:
        assert fixture.execute(at)
    else:
        fixture.clean()
        fixture.assert_rolled_back(at)
    assert fixture.table.rows() == fixture.rows_before


@each_service
@each_plan
def test_storage_that_fails_for_a_minute_while_it_works(
    service: str, plan: Mapping[str, str]
) -> None:
    """The heartbeat has a minute to spare: the execution does not expire."""
    fixture = PlanFixture(service)
    at = fixture.schedule(plan)

    def fail_for_a_minute() -> None:
        fixture.clock.advance(60_000)
        with pytest.raises(PlanInProgressError, match="is being executed"):
            fixture.execute(at)
        fixture.clean()

    assert fixture.execute(at, InterruptedEngine(fail_for_a_minute))
    assert fixture.table.rows() == fixture.rows_before
