"""Clocks that differ and storage that fails, while plans are executed: what the page promises."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, TypeVar

import pytest

from lakewright.errors import ConflictError, UnavailableError
from lakewright.services.runner import ServiceRunner
from lakewright.table.plan_execution import PlanInProgressError
from lakewright.testing.clock import ManualClock
from lakewright.testing.storage import CountingStorage
from support.cancellable_plans import (
    CANCELLABLE_PLAN,
    HEARTBEAT_EXPIRES_MS,
    PlanFixture,
    each_service,
)
from support.concurrency import InterruptedEngine
from support.tables import WrittenTable

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


def skewed(world: PlanFixture, by_ms: int) -> ServiceRunner:
    """A process whose clock is off."""
    table = WrittenTable(world.storage, Skewed(world.clock, by_ms), world.table.options)
    return table.services()


@each_service
def test_who_is_far_ahead_takes_a_living_execution_for_dead_and_it_finds_out(service: str) -> None:
    world = PlanFixture(service)
    at = world.schedule()
    with pytest.raises(ConflictError):
        world.execute(
            at, InterruptedEngine(lambda: skewed(world, HEARTBEAT_EXPIRES_MS + 1).run("clean"))
        )
    world.assert_gone(at)
    assert world.table.rows() == world.before


@each_service
def test_or_asks_an_ordinary_one_for_its_plan_and_cannot_complete_it(service: str) -> None:
    """Its own heartbeat seems expired to it, so that it completes nothing either."""
    world = PlanFixture(service)
    at = world.schedule(IMMUTABLE)

    def take_over() -> None:
        with pytest.raises(ConflictError, match="check the clocks"):
            skewed(world, HEARTBEAT_EXPIRES_MS + 1).execute(at)

    with pytest.raises(ConflictError, match="rolled back by another process"):
        world.execute(at, InterruptedEngine(take_over))
    assert world.state(at) == "REQUESTED"
    assert world.execute(at)
    assert world.table.rows() == world.before


@each_service
def test_who_is_behind_takes_the_dead_for_living_so_much_longer(service: str) -> None:
    world = PlanFixture(service)
    at = world.schedule()
    world.die_executing(at)
    world.expire()
    skewed(world, -HEARTBEAT_EXPIRES_MS).run("clean")
    world.assert_kept(at, "INFLIGHT")
    with pytest.raises(PlanInProgressError, match="is being executed"):
        skewed(world, -HEARTBEAT_EXPIRES_MS).execute(at)
    world.expire()
    skewed(world, -HEARTBEAT_EXPIRES_MS).run("clean")
    world.assert_gone(at)


@each_service
@each_plan
@pytest.mark.parametrize("by_ms", [-100_000, 100_000], ids=["behind", "ahead"])
def test_less_than_the_heartbeat_has_to_spare_is_no_harm(
    service: str, plan: Mapping[str, str], by_ms: int
) -> None:
    world = PlanFixture(service)
    at = world.schedule(plan)

    def others() -> None:
        with pytest.raises(PlanInProgressError, match="is being executed"):
            skewed(world, by_ms).execute(at)
        skewed(world, by_ms).run("clean")

    assert world.execute(at, InterruptedEngine(others))
    assert world.table.rows() == world.before


def test_a_plan_is_as_old_as_the_clock_of_the_clean_says() -> None:
    delay = {"hoodie.table.service.rollback.delay.minutes": "2"}
    for by_ms, state in ((0, "REQUESTED"), (-120_000, "REQUESTED"), (120_000, "GONE")):
        world = PlanFixture("clustering")
        at = world.schedule()
        runner = skewed(world, by_ms)
        replace(runner, options={**runner.options, **delay}).run("clean")
        assert world.state(at) == state


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
    world = PlanFixture(service)
    at = world.schedule(plan)
    storage = Failing(world.storage)

    def fail() -> None:
        storage.down = True

    runner = replace(world.runner(hands=InterruptedEngine(fail)), storage=storage)
    with pytest.raises(UnavailableError) as failure:
        runner.execute(at)
    assert "could not be aborted" in failure.value.__notes__[0]
    storage.down = False
    assert world.state(at) == "INFLIGHT"
    assert world.table.rows() == world.before
    with pytest.raises(PlanInProgressError, match="is being executed"):
        world.execute(at)
    world.expire()
    if plan is IMMUTABLE:
        assert world.execute(at)
    else:
        world.clean()
        world.assert_gone(at)
    assert world.table.rows() == world.before


@each_service
@each_plan
def test_storage_that_fails_for_a_minute_while_it_works(
    service: str, plan: Mapping[str, str]
) -> None:
    """The heartbeat has a minute to spare: nobody takes the execution for dead."""
    world = PlanFixture(service)
    at = world.schedule(plan)

    def fail_for_a_minute() -> None:
        world.clock.advance(60_000)
        with pytest.raises(PlanInProgressError, match="is being executed"):
            world.execute(at)
        world.clean()

    assert world.execute(at, InterruptedEngine(fail_for_a_minute))
    assert world.table.rows() == world.before
