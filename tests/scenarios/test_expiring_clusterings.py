"""Clusterings that expire: the process that schedules one keeps a heartbeat until it executes it.

Real Hudi expects that the client which schedules such a plan executes it, too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import pytest

from lakewright.errors import ConflictError, InvalidError
from lakewright.model.instant import Action, Instant
from lakewright.model.plans import CANCELLABLE
from lakewright.services.runner import ServiceRunner
from lakewright.storage.memory import MemoryStorage
from lakewright.table.plan_execution import PlanInProgressError
from lakewright.table.plan_scheduling import load_pending_plans
from lakewright.table.snapshot import load_snapshot
from lakewright.testing.storage import Crash, CrashingStorage
from lakewright.write.writer import Commit
from support.cancellable_plans import DAYS, MULTI_WRITER, PlanFixture
from support.concurrency import InterruptedEngine, once
from support.tables import row

pytestmark = pytest.mark.sampled(2)

EXPIRE = {"hoodie.clustering.enable.expirations": "true"}
MINUTE_MS = 60_000
HOUR_MS = 60 * MINUTE_MS


def scheduled_by(fixture: PlanFixture, options: Mapping[str, str]) -> tuple[ServiceRunner, str]:
    """The process that has just scheduled a plan, and the plan."""
    runner = fixture.runner(options)
    instant = runner.schedule(fixture.service)
    assert isinstance(instant, Instant)
    return runner, instant.requested_at


def has_heartbeat(storage: MemoryStorage, at: str) -> bool:
    return storage.status(f".hoodie/.heartbeat/{at}") is not None


def lives_on(fixture: PlanFixture, runner: ServiceRunner, at: str, minutes: int) -> None:
    """Time passes, and the process that keeps a heartbeat renews it."""
    for _ in range(minutes):
        fixture.clock.advance(MINUTE_MS)
        heartbeat = runner.heartbeats.take(at)
        assert heartbeat is not None
        assert heartbeat.beat()
        runner.heartbeats.keep(at, heartbeat)


SCHEDULED = {
    "an ordinary clustering, if clusterings expire": ("clustering", EXPIRE, True),
    "no ordinary clustering, if they do not": ("clustering", {}, False),
    "no cancellable clustering": ("clustering", {**EXPIRE, CANCELLABLE: "true"}, False),
    "no compaction": ("compaction", EXPIRE, False),
    "no log compaction": ("logcompaction", EXPIRE, False),
}


@pytest.mark.parametrize(("service", "options", "expected"), SCHEDULED.values(), ids=SCHEDULED)
def test_scheduling_begins_the_heartbeat_of(
    service: str, options: Mapping[str, str], expected: bool
) -> None:
    fixture = PlanFixture(service)
    _, at = scheduled_by(fixture, options)
    assert has_heartbeat(fixture.storage, at) == expected


def test_no_process_sees_the_plan_without_its_heartbeat() -> None:
    for survive in range(100):
        fixture = PlanFixture("clustering")
        runner = replace(fixture.runner(EXPIRE), storage=CrashingStorage(fixture.storage, survive))
        try:
            runner.schedule("clustering")
        except Crash:
            plans = load_snapshot(fixture.storage).timeline.pending(Action.CLUSTERING)
            assert all(has_heartbeat(fixture.storage, plan.requested_at) for plan in plans)
        else:
            assert survive > 1
            return
    raise AssertionError("scheduling never ended")


def executed_by(fixture: PlanFixture, at: str, options: Mapping[str, str] = EXPIRE) -> None:
    assert fixture.runner(options).execute(at).partitions == DAYS


@dataclass(frozen=True)
class Play:
    """What happens after a process has scheduled a plan, and who executes it then."""

    before: Callable[[PlanFixture, ServiceRunner, str], object]
    is_own: bool


def process_ends(fixture: PlanFixture, runner: ServiceRunner, at: str) -> None:
    runner.heartbeats.stop_all()
    assert not has_heartbeat(fixture.storage, at)


def execution_fails(fixture: PlanFixture, runner: ServiceRunner, at: str) -> None:
    engine = InterruptedEngine(lambda: _raise(ConflictError("no luck today")))
    with pytest.raises(ConflictError, match="no luck"):
        replace(runner, engine=lambda: engine).execute(at)
    assert fixture.state(at) == "REQUESTED"
    assert not has_heartbeat(fixture.storage, at)


def _raise(error: Exception) -> None:
    raise error


PLAYS = {
    "the process that scheduled it": Play(lambda *_: None, is_own=True),
    "the process that scheduled it, an hour and more later": Play(
        lambda fixture, runner, at: lives_on(fixture, runner, at, 61), is_own=True
    ),
    "the same process, which was paused until its heartbeat had expired": Play(
        lambda fixture, *_: fixture.expire_heartbeats(), is_own=True
    ),
    "another one, after the process that scheduled it has ended": Play(process_ends, is_own=False),
    "another one, after that was killed and its heartbeat has expired": Play(
        lambda fixture, *_: fixture.expire_heartbeats(), is_own=False
    ),
    "another one, after the execution of that has failed": Play(execution_fails, is_own=False),
}


@pytest.mark.parametrize("guard", [MULTI_WRITER, {}], ids=["several writers", "a single writer"])
@pytest.mark.parametrize("play", PLAYS.values(), ids=PLAYS)
def test_a_plan_is_executed_by(play: Play, guard: Mapping[str, str]) -> None:
    fixture = PlanFixture("clustering", guard)
    runner, at = scheduled_by(fixture, EXPIRE)
    play.before(fixture, runner, at)
    if play.is_own:
        assert runner.execute(at).partitions == DAYS
    else:
        executed_by(fixture, at)
    assert fixture.state(at) == "COMPLETED"
    assert not has_heartbeat(fixture.storage, at)
    assert fixture.table.rows() == fixture.rows_before


@pytest.mark.parametrize("guard", [MULTI_WRITER, {}], ids=["several writers", "a single writer"])
def test_no_other_process_executes_it_while_that_process_lives(guard: Mapping[str, str]) -> None:
    fixture = PlanFixture("clustering", guard)
    runner, at = scheduled_by(fixture, EXPIRE)
    with pytest.raises(PlanInProgressError, match="keeps it for itself"):
        fixture.runner(EXPIRE).execute(at)
    assert has_heartbeat(fixture.storage, at)
    assert runner.execute(at).partitions == DAYS


def test_of_two_executions_in_one_process_one_goes_on() -> None:
    fixture = PlanFixture("clustering")
    runner, at = scheduled_by(fixture, EXPIRE)
    refused: list[PlanInProgressError] = []

    def again() -> None:
        with pytest.raises(PlanInProgressError) as caught:
            runner.execute(at)
        refused.append(caught.value)
        assert has_heartbeat(fixture.storage, at)

    engine = InterruptedEngine(once(again))
    assert replace(runner, engine=lambda: engine).execute(at).partitions == DAYS
    assert refused


def test_a_run_executes_what_it_has_scheduled() -> None:
    fixture = PlanFixture("clustering")
    runner = fixture.runner(EXPIRE)
    commit = runner.run("clustering")
    assert isinstance(commit, Commit)
    assert not has_heartbeat(fixture.storage, commit.instant)


def test_an_old_plan_stays_while_the_process_that_scheduled_it_lives() -> None:
    fixture = PlanFixture("clustering")
    runner, at = scheduled_by(fixture, EXPIRE)
    lives_on(fixture, runner, at, 90)
    fixture.clean(EXPIRE)
    assert fixture.state(at) == "REQUESTED"
    assert runner.execute(at).partitions == DAYS


def test_it_expires_with_the_process_and_its_age() -> None:
    fixture = PlanFixture("clustering")
    runner, at = scheduled_by(fixture, EXPIRE)
    lives_on(fixture, runner, at, 55)
    fixture.expire_heartbeats()
    fixture.clean(EXPIRE)
    assert fixture.state(at) == "REQUESTED"
    fixture.clock.advance(5 * MINUTE_MS)
    fixture.clean(EXPIRE)
    fixture.assert_rolled_back(at)
    with pytest.raises(InvalidError, match="was rolled back"):
        runner.execute(at)
    assert fixture.table.rows() == fixture.rows_before


def test_a_process_that_wakes_up_leaves_the_heartbeat_of_the_one_that_goes_on() -> None:
    fixture = PlanFixture("clustering")
    runner, at = scheduled_by(fixture, EXPIRE)
    fixture.expire_heartbeats()

    def wakes_up() -> None:
        with pytest.raises(PlanInProgressError):
            runner.execute(at)
        runner.heartbeats.stop_all()
        assert has_heartbeat(fixture.storage, at)

    engine = InterruptedEngine(once(wakes_up))
    assert fixture.runner(EXPIRE, engine).execute(at).partitions == DAYS


def test_a_write_that_schedules_for_another_process_keeps_no_heartbeat() -> None:
    inline = {
        "hoodie.clustering.schedule.inline": "true",
        "hoodie.clustering.async.max.commits": "1",
        "hoodie.clustering.inline.max.commits": "1",
    }
    fixture = PlanFixture("clustering")
    fixture.table.upsert([row("new", day="2026-05-05")], {**EXPIRE, **inline})
    (plan,) = load_snapshot(fixture.storage).timeline.pending(Action.CLUSTERING)
    assert not has_heartbeat(fixture.storage, plan.requested_at)
    assert fixture.runner(EXPIRE).execute(plan.requested_at)


@pytest.mark.parametrize("expires", [True, False], ids=["they expire", "they stay"])
def test_pending_plans_show_when_a_clean_rolls_them_back(expires: bool) -> None:
    options = EXPIRE if expires else {}
    fixture = PlanFixture("clustering")
    runner, _ = scheduled_by(fixture, options)
    (info,) = load_pending_plans(runner.writer, load_snapshot(fixture.storage))
    assert (info.rolled_back_at is not None) == expires
    assert (info.heartbeat_age_ms is not None) == expires
