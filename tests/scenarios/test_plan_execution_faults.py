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


def skewed(fixture: PlanFixture, by_ms: int) -> ServiceRunner:
    """A process whose clock is off."""
    table = WrittenTable(fixture.storage, Skewed(fixture.clock, by_ms), fixture.table.options)
    return table.services()


@each_service
def test_a_clock_far_ahead_expires_a_live_execution_which_notices(service: str) -> None:
    fixture = PlanFixture(service)
    at = fixture.schedule()
    with pytest.raises(ConflictError):
        fixture.execute(
            at, InterruptedEngine(lambda: skewed(fixture, HEARTBEAT_EXPIRES_MS + 1).run("clean"))
        )
    fixture.assert_rolled_back(at)
    assert fixture.table.rows() == fixture.rows_before


@each_service
def test_or_asks_an_ordinary_one_for_its_plan_and_cannot_complete_it(service: str) -> None:
    """Its own heartbeat seems expired to it, so that it completes nothing either."""
    fixture = PlanFixture(service)
    at = fixture.schedule(IMMUTABLE)

    def take_over() -> None:
        with pytest.raises(ConflictError, match="check the clocks"):
            skewed(fixture, HEARTBEAT_EXPIRES_MS + 1).execute(at)

    with pytest.raises(ConflictError, match="rolled back by another process"):
        fixture.execute(at, InterruptedEngine(take_over))
    assert fixture.state(at) == "REQUESTED"
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
