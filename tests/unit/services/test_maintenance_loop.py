"""Services in rounds: what runs first, what failures mean, and when the loop ends."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import pytest

from lakewright.engine.local import LocalEngine
from lakewright.errors import (
    ConflictError,
    CorruptError,
    InvalidError,
    LakewrightError,
    UnavailableError,
    UnsupportedError,
)
from lakewright.model.instant import Action, Instant, State
from lakewright.model.plans import Skip
from lakewright.services.base import ExecutionContext, PlanningContext, TableService
from lakewright.services.maintenance_loop import (
    MaintenanceRound,
    ServiceOutcome,
    run_continuously,
    run_round,
)
from lakewright.services.registry import register, unregister
from lakewright.services.runner import ServiceRunner
from lakewright.table.snapshot import load_snapshot
from lakewright.testing.clock import ManualClock
from lakewright.write.writer import Commit
from support.tables import WrittenTable, row

BY_HAND = {"hoodie.compact.inline": "false"}
AT_ONCE = {"hoodie.compact.inline.max.delta.commits": "1"}
SEVERAL = {
    "hoodie.write.concurrency.mode": "OPTIMISTIC_CONCURRENCY_CONTROL",
    "hoodie.write.lock.provider": "in_process",
}


@dataclass
class Scripted(TableService[Any, Any]):
    """A service that keeps nothing on the timeline, and whose runs end as scripted."""

    outcomes: list[Commit | Skip | LakewrightError] = field(default_factory=list)
    runs: int = 0

    name: ClassVar[str] = "scripted"
    action: ClassVar[Action | None] = None

    def plan(self, context: PlanningContext) -> Any:
        return "whatever"

    def execute(self, context: ExecutionContext, plan: Any) -> Any:
        outcome = self.outcomes[min(self.runs, len(self.outcomes) - 1)]
        self.runs += 1
        if isinstance(outcome, LakewrightError):
            raise outcome
        return outcome


class Second(Scripted):
    """Another one."""

    name: ClassVar[str] = "second"


@contextmanager
def registered(*services: Scripted) -> Iterator[None]:
    for service in services:
        register(service)
    try:
        yield
    finally:
        for service in services:
            unregister(service.name)


def table_with_logs() -> WrittenTable:
    table = WrittenTable(options={**BY_HAND, **SEVERAL}).create("MERGE_ON_READ")
    table.upsert([row("k0"), row("k1")])
    table.upsert([row("k0", 2)])
    return table


COMMIT = Commit(instant="1", completed_at="2", action="scripted", operation="SCRIPTED")


@dataclass
class Loop:
    """A loop that ends after some rounds, and what it reported."""

    table: WrittenTable = field(default_factory=table_with_logs)
    rounds: list[MaintenanceRound] = field(default_factory=list)

    def run(
        self, names: Iterable[str], rounds: int, interval_s: float = 60
    ) -> list[MaintenanceRound]:
        clock = self.table.clock
        run_continuously(
            self.runner(),
            list(names),
            interval_s=interval_s,
            clock=clock,
            stop=lambda: len(self.rounds) >= rounds,
            report=self.rounds.append,
        )
        return self.rounds

    def runner(self) -> ServiceRunner:
        return self.table.services(AT_ONCE)


def results(maintenance_round: MaintenanceRound) -> list[tuple[str, str]]:
    return [(step.service, type(step.outcome).__name__) for step in maintenance_round.steps]


def scheduled(table: WrittenTable) -> str:
    instant = table.services(AT_ONCE).schedule("compaction")
    assert isinstance(instant, Instant)
    return instant.requested_at


def test_a_plan_that_waits_is_executed_before_anything_is_planned() -> None:
    loop = Loop()
    at = scheduled(loop.table)
    with registered(Scripted([COMMIT])):
        (maintenance_round,) = loop.run(["scripted", "compaction"], 1)
    executed, scripted, planned = maintenance_round.steps
    assert isinstance(executed.outcome, Commit)
    assert (executed.service, executed.outcome.instant) == ("compaction", at)
    assert scripted.outcome == COMMIT
    assert isinstance(planned.outcome, Skip)


def test_plans_of_services_that_are_not_in_the_loop_are_left_alone() -> None:
    loop = Loop()
    at = scheduled(loop.table)
    with registered(Scripted([COMMIT])):
        (maintenance_round,) = loop.run(["scripted"], 1)
    assert results(maintenance_round) == [("scripted", "Commit")]
    pending = load_snapshot(loop.table.storage).timeline.pending()
    assert [(i.requested_at, i.state) for i in pending] == [(at, State.REQUESTED)]


def test_a_plan_that_a_live_process_executes_is_left_alone() -> None:
    table = table_with_logs()
    at = scheduled(table)
    steps: list[ServiceOutcome] = []

    class EngineWithConcurrentRound(LocalEngine):
        def map(self, do: Any, items: Any, size: Any) -> Any:
            steps.extend(run_round(table.services(), ["compaction"]))
            return super().map(do, items, size)

    assert replace(table.services(), engine=EngineWithConcurrentRound).execute(at)
    assert str(steps[0].outcome) == f"compaction {at} is being executed"
    assert not any(step.error for step in steps)


def test_a_plan_that_another_process_rolled_back_is_no_error() -> None:
    table = table_with_logs()
    at = scheduled(table)

    class RunnerWhosePlanIsRolledBack(ServiceRunner):
        def execute(self, instant: str) -> Commit:
            table.storage.delete(f".hoodie/timeline/{at}.compaction.requested")
            return super().execute(instant)

    runner = table.services()
    rolled_back = RunnerWhosePlanIsRolledBack(
        runner.storage, runner.clock, runner.engine, runner.options
    )
    first = next(run_round(rolled_back, ["compaction"]))
    assert isinstance(first.outcome, Skip)
    assert "rolled back" in first.outcome.reason


def test_a_damaged_plan_is_the_trouble_of_its_service_alone() -> None:
    table = table_with_logs()
    at = scheduled(table)
    table.storage.replace(f".hoodie/timeline/{at}.compaction.requested", b"no plan")
    with registered(Scripted([COMMIT])):
        steps = list(run_round(table.services(AT_ONCE), ["compaction", "scripted"]))
    assert results(MaintenanceRound(1, tuple(steps))) == [
        ("compaction", "CorruptError"),
        ("scripted", "Commit"),
    ]


PASSING = {
    "a conflict": ConflictError("somebody else won"),
    "storage that does not answer": UnavailableError("no answer"),
}


@pytest.mark.parametrize("error", PASSING.values(), ids=list(PASSING))
def test_what_may_pass_is_tried_again_less_and_less_often(error: LakewrightError) -> None:
    loop = Loop()
    failing, well = Scripted([error]), Second([COMMIT])
    with registered(failing, well):
        rounds = loop.run(["scripted", "second"], 12)
    tried = [r.number for r in rounds if ("scripted", type(error).__name__) in results(r)]
    assert tried == [1, 2, 4, 8]
    assert well.runs == 12
    assert ("scripted", "Skip") in results(rounds[2])


def test_a_service_that_succeeds_again_runs_in_every_round() -> None:
    loop = Loop()
    error = UnavailableError("no answer")
    service = Scripted([error, error, COMMIT, error, COMMIT])
    with registered(service):
        rounds = loop.run(["scripted"], 6)
    tried = [[kind for _, kind in results(maintenance_round)] for maintenance_round in rounds]
    failed = ["UnavailableError"]
    assert tried == [failed, failed, ["Skip"], ["Commit"], failed, ["Commit"]]


FINAL = {
    "a wrong option": InvalidError("no such option"),
    "an unknown feature": UnsupportedError("not known"),
    "bytes that make no sense": CorruptError("no plan"),
}


@pytest.mark.parametrize("error", FINAL.values(), ids=list(FINAL))
def test_a_service_that_cannot_succeed_is_left_out(error: LakewrightError) -> None:
    loop = Loop()
    failing, well = Scripted([error]), Second([COMMIT])
    with registered(failing, well):
        rounds = loop.run(["scripted", "second"], 3)
    assert (failing.runs, well.runs) == (1, 3)
    assert rounds[0].errors == (error,)
    assert [results(maintenance_round) for maintenance_round in rounds[1:]] == [
        [("second", "Commit")]
    ] * 2


def test_the_loop_ends_with_the_error_when_no_service_is_left() -> None:
    loop = Loop()
    error = InvalidError("no such option")
    with registered(Scripted([error])), pytest.raises(InvalidError) as caught:
        loop.run(["scripted"], 5)
    assert caught.value is error
    assert [maintenance_round.errors for maintenance_round in loop.rounds] == [(error,)]


def test_a_table_that_is_not_there_ends_the_loop() -> None:
    loop = Loop(WrittenTable())
    with pytest.raises(InvalidError, match="no table"):
        loop.run(["compaction", "logcompaction"], 5)


def test_a_request_to_stop_is_heard_between_two_steps() -> None:
    table = table_with_logs()
    first, second = Scripted([COMMIT]), Second([COMMIT])
    reported: list[MaintenanceRound] = []
    with registered(first, second):
        run_continuously(
            table.services(),
            ["scripted", "second"],
            interval_s=1,
            clock=table.clock,
            stop=lambda: first.runs > 0,
            report=reported.append,
        )
    assert (first.runs, second.runs) == (1, 0)
    assert [results(maintenance_round) for maintenance_round in reported] == [
        [("scripted", "Commit")]
    ]


def test_a_request_to_stop_ends_a_long_pause() -> None:
    loop = Loop()
    clock = ManualClock()
    deadline = clock.monotonic_ms() + 2_000
    with registered(Scripted([COMMIT])):
        run_continuously(
            loop.runner(),
            ["scripted"],
            interval_s=3_600,
            clock=clock,
            stop=lambda: clock.monotonic_ms() >= deadline,
            report=loop.rounds.append,
        )
    assert len(loop.rounds) == 1
    assert clock.monotonic_ms() - deadline < 1_000


def test_rounds_are_an_interval_apart() -> None:
    loop = Loop()
    with registered(Scripted([COMMIT])):
        before = loop.table.clock.monotonic_ms()
        loop.run(["scripted"], 3, interval_s=60)
    passed = loop.table.clock.monotonic_ms() - before
    assert 120_000 <= passed < 125_000


BAD: dict[str, Callable[[Loop], object]] = {
    "no pause between rounds": lambda loop: loop.run(["compaction"], 1, interval_s=0),
    "no service at all": lambda loop: loop.run([], 1),
    "a service that there is not": lambda loop: loop.run(["compaction", "tidying"], 1),
}


@pytest.mark.parametrize("call", BAD.values(), ids=list(BAD))
def test_a_wrong_call_is_refused_before_the_first_round(call: Callable[[Loop], object]) -> None:
    loop = Loop()
    with pytest.raises(InvalidError):
        call(loop)
    assert loop.rounds == []
