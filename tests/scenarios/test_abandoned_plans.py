"""Which pending plans without an executor a clean rolls back, and which it leaves."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import pytest

from lakewright.errors import ConflictError
from lakewright.model.instant import Action, Instant
from lakewright.model.plans import Skip
from lakewright.storage.memory import MemoryStorage
from lakewright.table.heartbeat import FOLDER as HEARTBEATS
from lakewright.table.snapshot import load_snapshot
from lakewright.testing.clock import ManualClock
from lakewright.testing.storage import CountingStorage
from support import event_times
from support.cancellable_plans import (
    ALWAYS_DUE,
    CANCELLABLE_PLAN,
    MULTI_WRITER,
    PlanFixture,
    each_service,
)
from support.concurrency import InterruptedEngine
from support.tables import NO_SERVICES, WrittenTable, row

pytestmark = pytest.mark.sampled(2)

POLICY = "hoodie.clean.failed.writes.policy"
DELAY = "hoodie.table.service.rollback.delay.minutes"
LAZY = {POLICY: "LAZY"}
MINUTE_MS = 60_000


@dataclass(frozen=True)
class Case:
    """A plan when a clean runs: its kind and age, whether it was begun, and whether it is alive."""

    rolled_back: bool
    plan: Mapping[str, str] = field(default_factory=lambda: CANCELLABLE_PLAN)
    minutes: int = 0
    delay: int = 0
    begun: bool = False
    alive: bool = False
    options: Mapping[str, str] = field(default_factory=lambda: MULTI_WRITER)


CASES = {
    "without a delay a plan that waits goes at once": Case(rolled_back=True),
    "within its delay it stays": Case(rolled_back=False, minutes=59, delay=60),
    "from then on it goes": Case(rolled_back=True, minutes=60, delay=60),
    "a live execution stays however old it is": Case(
        rolled_back=False, minutes=600, begun=True, alive=True
    ),
    "so does one that has only shown that it lives": Case(
        rolled_back=False, minutes=600, alive=True
    ),
    "a dead execution goes however young it is": Case(
        rolled_back=True, minutes=3, delay=60, begun=True
    ),
    "an ordinary plan stays": Case(rolled_back=False, plan={}, minutes=600),
    "so does an ordinary dead execution": Case(rolled_back=False, plan={}, minutes=600, begun=True),
    "a lone writer leaves plans that wait": Case(rolled_back=False, minutes=600, options={}),
    "but rolls back a crashed execution": Case(rolled_back=True, minutes=3, begun=True, options={}),
    "but not a live execution": Case(
        rolled_back=False, minutes=3, begun=True, alive=True, options={}
    ),
    "a lone writer with the lazy policy rolls back both": Case(rolled_back=True, options=LAZY),
    "no plan is rolled back where failed writes stay": Case(
        rolled_back=False, minutes=600, begun=True, options={**MULTI_WRITER, POLICY: "NEVER"}
    ),
}


@each_service
@pytest.mark.parametrize("case", CASES.values(), ids=list(CASES))
def test_what_a_clean_rolls_back(service: str, case: Case) -> None:
    fixture = PlanFixture(service, options=case.options)
    at = fixture.schedule(case.plan)
    if case.begun:
        fixture.crash_executing(at)
    fixture.clock.advance(case.minutes * MINUTE_MS)
    if case.alive:
        fixture.storage.replace(f"{HEARTBEATS}/{at}", b"")
    skip = fixture.clean({DELAY: str(case.delay)})
    assert (fixture.state(at) == "GONE") is case.rolled_back
    if case.rolled_back:
        fixture.assert_rolled_back(at)
        assert isinstance(skip, Skip)
        assert skip.reason.startswith(f"rolled back {service} {at}, ")
        assert fixture.rollbacks()[0].caused_by == "clean"
    else:
        assert fixture.rollbacks() == []
    assert fixture.table.rows() == fixture.rows_before


def test_the_delay_may_be_stored_with_the_table() -> None:
    fixture = PlanFixture("clustering")
    path = ".hoodie/hoodie.properties"
    fixture.storage.replace(path, fixture.storage.read(path) + f"{DELAY}=60\n".encode())
    at = fixture.schedule()
    fixture.clean()
    fixture.assert_still_pending(at)
    fixture.clean({DELAY: "0"})
    fixture.assert_rolled_back(at)


def test_scheduling_a_clean_rolls_back_plans_as_well() -> None:
    fixture = PlanFixture("clustering")
    at = fixture.schedule()
    assert isinstance(fixture.runner().schedule("clean"), Skip)
    fixture.assert_rolled_back(at)


def test_a_table_without_plans_costs_one_look() -> None:
    fixture = PlanFixture("clustering")
    counting = CountingStorage(fixture.storage)
    assert isinstance(replace(fixture.runner(), storage=counting).run("clean"), Skip)
    assert {method for method, _ in counting.touched} <= {"read", "list_files"}
    # The table twice, before and under the lock, and its heartbeats.
    assert len(counting.touched) <= 5


def test_each_plan_has_a_transaction_of_its_own() -> None:
    """Two plans go; of two others one is alive and one is ordinary."""
    fixture = PlanFixture("clustering")
    days = [f"2026-03-0{n}" for n in range(1, 5)]
    for day in days:
        for key in "xy":
            fixture.table.write("BULK_INSERT", [row(f"{key}{day}", day=day)])
    at = {day: plan_of(fixture, day, CANCELLABLE_PLAN if day != days[1] else {}) for day in days}
    fixture.storage.replace(f"{HEARTBEATS}/{at[days[0]]}", b"")
    fixture.clean()
    states = [fixture.state(at[day]) for day in days]
    assert states == ["REQUESTED", "REQUESTED", "GONE", "GONE"]
    assert len(fixture.rollbacks()) == 2


def plan_of(fixture: PlanFixture, day: str, options: Mapping[str, str]) -> str:
    selected = {"hoodie.clustering.plan.strategy.partition.selected": day}
    instant = fixture.runner({**options, **selected}).schedule("clustering")
    assert isinstance(instant, Instant)
    return instant.requested_at


def test_an_execution_that_begins_in_between_is_asked_to_stop() -> None:
    """Real Hudi does not look for rollbacks before it begins, only before it completes."""
    fixture = PlanFixture("compaction")
    at = fixture.schedule()

    class Late(CountingStorage):
        """Another process begins to execute a plan as soon as its rollback is requested."""

        def create(self, path: str, data: bytes) -> None:
            super().create(path, data)
            if path.endswith(".rollback.requested"):
                self.inner.replace(f"{HEARTBEATS}/{at}", b"")

    replace(fixture.runner(), storage=Late(fixture.storage)).run("clean")
    assert fixture.state(at) == "REQUESTED"
    (rollback,) = fixture.rollbacks()
    assert not rollback.instant.is_completed
    fixture.expire_heartbeats()
    fixture.table.upsert(fixture.rows_before)
    fixture.assert_rolled_back(at)


def test_age_is_counted_from_when_a_plan_was_made() -> None:
    """A plan by event time stands in the past."""
    clock = ManualClock()
    storage = MemoryStorage.fresh(now_ms=clock.now_ms)
    table = WrittenTable(storage, clock, {**NO_SERVICES, **MULTI_WRITER})
    table.create("MERGE_ON_READ", event_time="ts")
    for ts in (1, 2):
        table.upsert([event_times.event_row("a", ts)])
    clock.advance(100 * MINUTE_MS)
    table.upsert([event_times.event_row("a", 7)])
    runner = table.services({**ALWAYS_DUE, **event_times.compact_before(4), **CANCELLABLE_PLAN})
    planned = runner.schedule("compaction")
    assert isinstance(planned, Instant)
    late = table.services({DELAY: "60"})
    late.run("clean")
    assert load_snapshot(storage).timeline.pending(Action.COMPACTION)
    clock.advance(60 * MINUTE_MS)
    late.run("clean")
    assert not load_snapshot(storage).timeline.pending()


def test_an_execution_that_a_clean_rolled_back_does_not_complete() -> None:
    """An execution that a clean took for dead, and that goes on, completes nothing."""
    fixture = PlanFixture("clustering")
    at = fixture.schedule()

    def clean() -> None:
        fixture.expire_heartbeats()
        fixture.clean()
        fixture.assert_rolled_back(at)

    with pytest.raises(ConflictError):
        fixture.execute(at, InterruptedEngine(clean))
    assert fixture.files_naming(at) == []
    assert fixture.table.rows() == fixture.rows_before
