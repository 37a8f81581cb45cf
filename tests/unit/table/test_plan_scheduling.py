"""Pending plans: how old they are, their executor, and when a clean rolls them back."""

from __future__ import annotations

from lakewright.model.instant import epoch_ms
from lakewright.table.plan_scheduling import PendingPlanInfo, load_pending_plans
from lakewright.table.snapshot import load_snapshot
from support.cancellable_plans import HEARTBEAT_EXPIRES_MS, PlanFixture

LAZY = {"hoodie.clean.failed.writes.policy": "LAZY"}
DELAY = {**LAZY, "hoodie.table.service.rollback.delay.minutes": "10"}


def states(
    fixture: PlanFixture, options: dict[str, str] | None = None
) -> tuple[PendingPlanInfo, ...]:
    return load_pending_plans(fixture.runner(options).writer, load_snapshot(fixture.storage))


def test_a_plan_that_waits() -> None:
    fixture = PlanFixture("clustering")
    at = fixture.schedule()
    fixture.clock.advance(5_000)
    (state,) = states(fixture, DELAY)
    assert (state.instant.requested_at, state.cancellable) == (at, True)
    assert state.heartbeat_age_ms is None
    assert state.age_ms >= 5_000
    assert epoch_ms(state.rolled_back_at or "") == epoch_ms(at) + 10 * 60_000
    assert state.operations == 4
    (without_rollback,) = states(fixture, {"hoodie.clean.failed.writes.policy": "NEVER"})
    assert without_rollback.rolled_back_at is None


def test_a_clean_without_a_lock_leaves_plans_alone_that_no_process_has_begun() -> None:
    fixture = PlanFixture("clustering", {})
    fixture.schedule()
    (state,) = states(fixture)
    assert (state.cancellable, state.rolled_back_at) == (True, None)


def test_an_execution_that_died_is_rolled_back_when_its_heartbeat_expires() -> None:
    fixture = PlanFixture("clustering")
    at = fixture.schedule()
    fixture.crash_executing(at)
    (state,) = states(fixture)
    assert state.instant.state == "INFLIGHT"
    assert state.heartbeat_age_ms is not None
    rolled_back_in_ms = epoch_ms(state.rolled_back_at or "") - fixture.clock.now_ms()
    assert rolled_back_in_ms == HEARTBEAT_EXPIRES_MS - state.heartbeat_age_ms
    fixture.expire_heartbeats()
    fixture.clean(LAZY)
    assert states(fixture) == ()


def test_a_plan_that_is_not_cancellable_stays() -> None:
    fixture = PlanFixture("compaction")
    fixture.schedule({})
    (state,) = states(fixture, LAZY)
    assert (state.cancellable, state.rolled_back_at) == (False, None)
