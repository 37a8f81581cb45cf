"""Processes that crash at any call while they execute, cancel, clean or replace cancellable plans.

No reader notices, no file group is in two plans, and the next process repairs the table.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import count

import pytest

from lakewright.errors import ConflictError, InvalidError
from lakewright.model.file_group import parse_data_file
from lakewright.model.instant import REWRITES
from lakewright.services.runner import ServiceRunner
from lakewright.storage.base import Storage
from lakewright.table.snapshot import load_snapshot
from lakewright.testing.storage import Crash, CrashingStorage
from support.cancellable_plans import (
    CANCELLABLE_PLAN,
    DAYS,
    SERVICE_TABLES,
    PlanFixture,
    each_service,
)
from support.concurrency import InterruptedEngine, InterruptedStorage, another_process, once
from support.faults import each_crash
from support.soak import SOAK, sized
from support.tables import row

pytestmark = pytest.mark.sampled(3)

ORDINARY: Mapping[str, str] = dict.fromkeys(CANCELLABLE_PLAN, "false")
NEW = row("new", day="2026-03-01")


def nothing(fixture: PlanFixture) -> None:
    """The table as it is."""


def planned(fixture: PlanFixture) -> None:
    fixture.schedule()


def dead(fixture: PlanFixture) -> None:
    fixture.crash_executing(fixture.schedule())


def plan_at(runner: ServiceRunner) -> str:
    timeline = load_snapshot(runner.storage).timeline
    return next(i.requested_at for i in timeline.pending(*REWRITES))


def run(fixture: PlanFixture, runner: ServiceRunner) -> None:
    replace(runner, options={**runner.options, **CANCELLABLE_PLAN}).run(fixture.service)


def fail(fixture: PlanFixture, runner: ServiceRunner) -> None:
    """Execute a plan whose file groups another process replaces first."""
    engine = InterruptedEngine(once(lambda: fixture.table.delete_partitions(*DAYS)))
    with pytest.raises(ConflictError):
        replace(runner, engine=lambda: engine).execute(plan_at(runner))


def lose_a_part(fixture: PlanFixture, runner: ServiceRunner) -> None:
    """Execute a plan of which another process replaces some file groups first."""
    engine = InterruptedEngine(once(lambda: fixture.table.delete_partitions(DAYS[1])))
    commit = replace(runner, engine=lambda: engine).execute(plan_at(runner))
    assert commit.partitions == (DAYS[0],)


def cancel(fixture: PlanFixture, runner: ServiceRunner) -> None:
    runner.cancel(plan_at(runner), reason="enough")


def stop(fixture: PlanFixture, runner: ServiceRunner) -> None:
    """Execute a plan that another process cancels on the way."""
    at = plan_at(runner)

    def ask(item: int) -> None:
        if item == 1:
            fixture.runner().cancel(at)

    with pytest.raises(ConflictError):
        replace(runner, engine=lambda: InterruptedEngine(before_item=ask)).execute(at)


def clean(fixture: PlanFixture, runner: ServiceRunner) -> None:
    runner.run("clean")


def plan_over(fixture: PlanFixture, runner: ServiceRunner) -> None:
    runner.schedule(fixture.service)


@dataclass(frozen=True)
class Case:
    """What a process does that dies, and how it finds the table; `aged` after two minutes."""

    act: Callable[[PlanFixture, ServiceRunner], None]
    start: Callable[[PlanFixture], None] = planned
    aged: bool = False


CASES = {
    "running a cancellable service": Case(run, nothing),
    "an execution that is pre-empted": Case(fail),
    "an execution that is pre-empted in part": Case(lose_a_part),
    "an execution that is cancelled": Case(stop),
    "cancelling a plan that waits": Case(cancel),
    "cancelling what has died": Case(cancel, dead, aged=True),
    "asking what may be alive to stop": Case(cancel, dead),
    "a clean that finds a plan without an execution": Case(clean),
    "a clean that finds what has died": Case(clean, dead, aged=True),
    "planning over a plan that waits": Case(plan_over),
    "planning over what has died": Case(plan_over, dead, aged=True),
}

# How a plan is rolled back does not depend on its service.
SERVED = {
    f"{name}: {service}": (service, case)
    for name, case in CASES.items()
    for service in (SERVICE_TABLES if case.act is run or SOAK else ["clustering"])
}


def deaths(
    fixture: PlanFixture, case: Case, *, after_effect: bool
) -> Iterator[tuple[int, PlanFixture]]:
    for survive in count(step=sized(3, soak=1)):
        table = fixture.copy()
        if case.aged:
            table.expire_heartbeats()
        dying = CrashingStorage(table.storage, survive, after_effect=after_effect)
        with suppress(Crash):
            case.act(table, replace(table.runner(), storage=dying))
        yield survive, table
        if not dying.crashed:
            return


@each_crash
@pytest.mark.parametrize(("service", "case"), SERVED.values(), ids=list(SERVED))
def test_readers_see_no_change_and_other_processes_recover(
    service: str, case: Case, after_effect: bool
) -> None:
    fixture = PlanFixture(service)
    case.start(fixture)
    dropped = [record for record in fixture.rows_before if record["day"] != DAYS[1]]
    for survive, table in deaths(fixture, case, after_effect=after_effect):
        # Another process may have committed first, which a cancellable plan allows.
        before = table.table.rows()
        assert before in (fixture.rows_before, dropped, []), survive
        assert_one_plan_for_a_group(table)
        assert_no_cancelled_file_is_visible(table)
        table.table.upsert([NEW])
        table.expire_heartbeats()
        table.clean()
        table.table.upsert([NEW])
        for at in waiting(table):
            table.runner(ORDINARY).execute(at)
        table.runner(ORDINARY).run(service)
        assert table.table.rows() == sorted([*before, NEW], key=str), survive
        assert_whole(table)
    assert survive > 0


def waiting(fixture: PlanFixture) -> list[str]:
    return [i.requested_at for i in load_snapshot(fixture.storage).timeline.pending()]


def assert_one_plan_for_a_group(fixture: PlanFixture) -> None:
    plans = load_snapshot(fixture.storage).pending_plans()
    counts = Counter(group for _, plan in plans for group in plan.file_groups)
    assert all(number == 1 for number in counts.values())


def assert_no_cancelled_file_is_visible(fixture: PlanFixture) -> None:
    """No file of an instant that a completed rollback removed is left."""
    rolled_back = {r.target.requested_at for r in fixture.rollbacks() if r.instant.is_completed}
    assert [path for at in rolled_back for path in fixture.files_of(at)] == []


def assert_whole(fixture: PlanFixture) -> None:
    """Every data file belongs to a completed write, and nothing is pending."""
    snapshot = load_snapshot(fixture.storage)
    assert not snapshot.timeline.pending()
    for file in fixture.storage.list_tree(""):
        data = None if file.path.startswith(".hoodie/") else parse_data_file(file.name)
        assert data is None or snapshot.timeline.is_committed(data.instant), file.path


@each_service
def test_a_cancel_that_died_is_ended_by_the_next_call(service: str) -> None:
    fixture = PlanFixture(service)
    at = fixture.schedule()
    for survive in count(step=sized(3, soak=1)):
        table = fixture.copy()
        dying = CrashingStorage(table.storage, survive)
        with suppress(Crash):
            replace(table.runner(), storage=dying).cancel(at)
        assert table.runner().cancel(at).is_completed
        table.assert_rolled_back(at)
        with pytest.raises(InvalidError, match="was rolled back"):
            table.execute(at)
        if not dying.crashed:
            break


@each_service
def test_a_commit_that_lands_after_the_rollback_of_its_plan_and_the_crash_of_its_process(
    service: str,
) -> None:
    """Nothing could keep it back between its last look and its last step; the next writer does."""
    fixture = PlanFixture(service)
    at = fixture.schedule()
    late: list[tuple[str, bytes]] = []

    def stall(storage: Storage, path: str, data: bytes) -> None:
        late.append((path, data))
        raise Crash

    dying = InterruptedStorage(fixture.storage, rf"/{at}_\d+\.\w*commit$", stall)
    with pytest.raises(Crash), another_process():
        replace(fixture.runner(), storage=dying).execute(at)
    fixture.expire_heartbeats()
    fixture.clean()
    fixture.assert_rolled_back(at)
    fixture.storage.create(*late[0])
    fixture.table.upsert([NEW])
    assert fixture.table.rows() == sorted([*fixture.rows_before, NEW], key=str)
    fixture.assert_rolled_back(at)
    assert_whole(fixture)
