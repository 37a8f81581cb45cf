"""The scenarios of guarded and cancellable plans, under many schedules of storage calls.

Two processes: orders with at most three switches, a few of each scenario in a check and thousands
in a soak run. Three and four processes: random orders. A failure prints its seed;
`LAKEWRIGHT_PLAY=<seed>` runs that one alone.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pytest

from lakewright.errors import ConflictError, InvalidError, UnavailableError
from lakewright.model.instant import Instant, State
from lakewright.table.snapshot import load_snapshot
from lakewright.write.writer import Commit
from support.concurrency import (
    ProcessScheduler,
    Schedule,
    ScheduledProcess,
    Work,
    scheduled_processes,
)
from support.plan_schedules import (
    ROLLBACK_DELAY,
    SERVICE_OPTIONS,
    TEMPORARY,
    Invariants,
    PlannedTable,
    Rows,
    after_upsert,
    at_random,
    cancelling,
    cleaning,
    executing,
    planned_table,
    read_rows,
    some_switches,
    table_at,
    upserting,
    with_switches,
)
from support.soak import sized

pytestmark = pytest.mark.sampled(3)

UPSERT_TS = 9
SCHEDULES = int(os.environ.get("LAKEWRIGHT_PLAYS", sized(3, 3_400)))
"""How many schedules run of each scenario and each of the three services."""


@dataclass(frozen=True)
class Scenario:
    """What processes do to a plan, and how it may end.

    With `begun`, the first process has the plan inflight when the others start.
    """

    cancellable: bool
    processes: tuple[str, ...]
    expect: Callable[[Ended], None]
    dead: bool = False
    begun: bool = False
    delay: str = "60"


@dataclass
class Ended:
    """A schedule whose processes have all ended."""

    planned: PlannedTable
    scheduler: ProcessScheduler
    schedule: str
    commits: list[Commit] = field(default_factory=list)
    failed: list[BaseException] = field(default_factory=list)

    @property
    def executors(self) -> list[ScheduledProcess]:
        """The executions that did not crash."""
        mine = [
            process for process in self.scheduler.processes if process.name.startswith("execute")
        ]
        return [process for process in mine if not process.is_dead]

    @property
    def completed(self) -> Instant | None:
        """The result of the plan, if there is one."""
        instants = load_snapshot(self.scheduler.storage).timeline.completed()
        return next((i for i in instants if i.requested_at == self.planned.at), None)

    @property
    def is_planned(self) -> bool:
        """Whether the plan is still pending."""
        pending = load_snapshot(self.scheduler.storage).timeline.pending()
        return any(i.requested_at == self.planned.at for i in pending)


def results_agree(ended: Ended) -> None:
    """All executions that report a commit report the same one."""
    results = [process.result for process in ended.executors if process.error is None]
    assert all(isinstance(result, Commit) for result in results)
    if results:
        assert ended.completed is not None
        assert {result.completed_at for result in results} == {ended.completed.completed_at}
    for process in ended.executors:
        # A process that freezes with the lock blocks others until they give up.
        expected = (ConflictError, InvalidError, UnavailableError)
        assert process.error is None or isinstance(process.error, expected)


def one_completes(ended: Ended) -> None:
    """If no process crashes, the plan completes."""
    results_agree(ended)
    assert ended.completed is not None


def completes_or_stays(ended: Ended) -> None:
    results_agree(ended)
    assert ended.completed is not None or ended.is_planned


def none_completes(ended: Ended) -> None:
    results_agree(ended)
    assert ended.completed is None
    assert all(process.error is not None for process in ended.executors)


def completes_or_is_rolled_back(ended: Ended) -> None:
    """The plan has completed, or was rolled back."""
    results_agree(ended)
    assert (ended.completed is not None) != (not _is_rolled_back(ended))


def _is_rolled_back(ended: Ended) -> bool:
    return ended.completed is None and not ended.is_planned


def clean_leaves_it(ended: Ended) -> None:
    """A clean does not touch a plan that is young or being executed."""
    one_completes(ended)


def clean_or_execution(ended: Ended) -> None:
    results_agree(ended)
    assert ended.completed is not None or _is_rolled_back(ended)


SCENARIOS: dict[str, Scenario] = {
    "immutable A: two execute a new plan": Scenario(False, ("execute", "execute"), one_completes),
    "immutable B: one has begun when the other comes": Scenario(
        False, ("execute", "execute"), one_completes, begun=True
    ),
    "immutable C: one had begun and died": Scenario(
        False, ("execute", "execute"), one_completes, dead=True
    ),
    "mutable A: two execute a new plan": Scenario(True, ("execute", "execute"), one_completes),
    "mutable B: one has begun when the other comes": Scenario(
        True, ("execute", "execute"), one_completes, begun=True
    ),
    "mutable C: one had begun and died": Scenario(
        True, ("execute", "execute"), none_completes, dead=True
    ),
    "mutable D: one executes, one cleans, the plan is young": Scenario(
        True, ("execute", "clean"), clean_leaves_it
    ),
    "mutable D: one executes, one cleans, the plan is old": Scenario(
        True, ("execute", "clean"), clean_or_execution, delay="0"
    ),
    "mutable D: one has begun, one cleans, the plan is old": Scenario(
        True, ("execute", "clean"), clean_leaves_it, begun=True, delay="0"
    ),
    "mutable E: one cleans, one executes, the plan is young": Scenario(
        True, ("clean", "execute"), clean_leaves_it
    ),
    "mutable E: one cleans, one executes, the plan is old": Scenario(
        True, ("clean", "execute"), clean_or_execution, delay="0"
    ),
}


def works(planned: PlannedTable, kinds: Sequence[str], delay: str) -> list[tuple[str, Work]]:
    made: dict[str, Callable[[], Work]] = {
        "execute": lambda: executing(planned),
        "clean": lambda: cleaning(**{ROLLBACK_DELAY: delay}),
        "upsert": lambda: upserting(UPSERT_TS),
        "cancel": lambda: cancelling(planned),
    }
    return [(f"{kind}-{number}", made[kind]()) for number, kind in enumerate(kinds)]


def run_schedule(
    scenario: Scenario, planned: PlannedTable, kinds: Sequence[str], schedule: Schedule, label: str
) -> Ended:
    with scheduled_processes(planned.files, planned.now_ms, planned.age_ms) as scheduler:
        check = Invariants(scheduler, planned, (planned.rows,))
        for name, work in works(planned, kinds, scenario.delay):
            process = scheduler.start(name, work)
            while (
                scenario.begun
                and len(scheduler.processes) == 1
                and not _is_inflight(scheduler, planned)
            ):
                scheduler.last_stepped = process
                process.step()
                check()
        try:
            scheduler.run(schedule, check)
            ended = Ended(planned, scheduler, label)
            scenario.expect(ended)
            _check_after_clean(ended)
        except AssertionError as error:
            error.add_note(f"scheduled by {label}; the last calls: {scheduler.log[-12:]}")
            raise
        return ended


def _is_inflight(scheduler: ProcessScheduler, planned: PlannedTable) -> bool:
    pending = load_snapshot(scheduler.storage).timeline.pending()
    return any(i.requested_at == planned.at and i.state is State.INFLIGHT for i in pending)


def _check_after_clean(
    ended: Ended, rows: Rows | None = None, or_one_of: tuple[Rows, ...] = ()
) -> None:
    """A clean an hour later leaves no file of a plan that was rolled back."""
    ended.scheduler.now.advance(3_600_000)
    table = table_at(ended.scheduler.storage, ended.scheduler.now, **{ROLLBACK_DELAY: "0"})
    table.services().run("clean")
    if ended.planned.cancellable and ended.completed is None:
        assert not ended.is_planned
        paths = [
            f.path for f in ended.scheduler.storage.list_tree("") if ended.planned.at in f.name
        ]
        assert not [p for p in paths if ".rollback" not in p and not p.startswith(TEMPORARY)], paths
    stored = read_rows(ended.scheduler.storage)
    died = any(process.is_dead or process.error for process in ended.scheduler.processes)
    # A process that crashed may have committed before.
    assert stored == (rows or ended.planned.rows) or (died and stored in or_one_of)


@pytest.mark.parametrize("service", list(SERVICE_OPTIONS))
@pytest.mark.parametrize("scenario", SCENARIOS.values(), ids=list(SCENARIOS))
def test_two_processes_in_any_order_of_calls(scenario: Scenario, service: str) -> None:
    planned = planned_table(service, cancellable=scenario.cancellable, dead=scenario.dead)
    calls = _calls_alone(scenario, planned)
    chance = random.Random(f"{service} {scenario.processes}")
    for turns in sorted(some_switches(calls, SCHEDULES, chance)):
        run_schedule(scenario, planned, scenario.processes, with_switches(turns), f"turns {turns}")


def _calls_alone(scenario: Scenario, planned: PlannedTable) -> tuple[int, int]:
    """How many calls each process makes if the other follows it."""
    calls = []
    for first in (0, 1):
        ended = run_schedule(
            scenario, planned, scenario.processes, with_switches([(first, 10**6)]), "alone"
        )
        calls.append(ended.scheduler.processes[first].steps)
    return calls[0], calls[1]


KINDS = {
    True: ("execute", "execute", "clean", "upsert", "cancel"),
    False: ("execute", "execute", "clean", "upsert"),
}


@pytest.mark.parametrize("cancellable", [True, False], ids=["mutable", "immutable"])
@pytest.mark.parametrize("service", list(SERVICE_OPTIONS))
def test_three_or_four_processes_in_any_order_of_calls(service: str, cancellable: bool) -> None:
    """Some crash, or freeze until their heartbeat has expired."""
    only = os.environ.get("LAKEWRIGHT_PLAY")
    seeds = [int(only)] if only else range(SCHEDULES)
    for seed in seeds:
        chance = random.Random(seed)
        kinds = [chance.choice(KINDS[cancellable]) for _ in range(chance.choice((3, 4)))]
        if kinds.count("upsert") > 1:
            continue
        planned = planned_table(service, cancellable=cancellable, dead=chance.random() < 0.2)
        run_at_random(planned, kinds, chance, f"LAKEWRIGHT_PLAY={seed}: {kinds}")


SKEWS_MS = (-120_000, 0, 0, 120_000)


# A process warns of files that it could not delete.
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("cancellable", [True, False], ids=["mutable", "immutable"])
@pytest.mark.parametrize("service", list(SERVICE_OPTIONS))
def test_processes_with_clock_skew_and_storage_faults(service: str, cancellable: bool) -> None:
    """Executions may be lost, rows never."""
    only = os.environ.get("LAKEWRIGHT_PLAY")
    for seed in [int(only)] if only else range(SCHEDULES):
        chance = random.Random(seed)
        kinds = ["execute", chance.choice(KINDS[cancellable]), "clean"]
        planned = planned_table(service, cancellable=cancellable, dead=chance.random() < 0.2)
        label = f"LAKEWRIGHT_PLAY={seed}: {kinds}"
        run_at_random(planned, kinds, chance, label, with_faults=True)


def _inject_faults(scheduler: ProcessScheduler, chance: random.Random) -> None:
    """Skew clocks, and cut processes off from the storage for a while."""
    for process in scheduler.processes:
        process.clock.skew_ms = chance.choice(SKEWS_MS)
        if chance.random() < 0.5:
            first = chance.randrange(60)
            process.cut_off = range(first, first + chance.randrange(1, 20))


def run_at_random(
    planned: PlannedTable,
    kinds: list[str],
    chance: random.Random,
    label: str,
    *,
    with_faults: bool = False,
) -> None:
    written = after_upsert(planned.rows, UPSERT_TS)
    scenario = Scenario(planned.cancellable, tuple(kinds), results_agree, delay=chance.choice("06"))
    with scheduled_processes(planned.files, planned.now_ms, planned.age_ms) as scheduler:
        check = Invariants(scheduler, planned, (planned.rows, written), not with_faults)
        for name, work in works(planned, kinds, scenario.delay):
            scheduler.start(name, work)
        if with_faults:
            _inject_faults(scheduler, chance)
        for process in scheduler.processes:
            process.dies_at = chance.randrange(1, 80) if chance.random() < 0.2 else None
        try:
            scheduler.run(at_random(chance, freezes=chance.choice((0, 0, 0.01))), check)
            ended = Ended(planned, scheduler, label)
            results_agree(ended)
            if not with_faults:
                _check_upserts_commit(ended)
            has_written = any(_has_written(process) for process in scheduler.processes)
            _check_after_clean(
                ended, written if has_written else planned.rows, (planned.rows, written)
            )
        except AssertionError as error:
            error.add_note(f"scheduled by {label}; the last calls: {scheduler.log[-12:]}")
            raise


def _has_written(process: ScheduledProcess) -> bool:
    return process.name.startswith("upsert") and isinstance(process.result, Commit)


def _check_upserts_commit(ended: Ended) -> None:
    """A pending cancellable plan is no reason for a write to fail."""
    for process in ended.scheduler.processes:
        if not process.name.startswith("upsert") or process.error is None or process.is_dead:
            continue
        assert isinstance(process.error, ConflictError | UnavailableError)
        froze = "heartbeat" in str(process.error) or "lock" in str(process.error)
        if ended.planned.cancellable and not froze:
            assert ended.completed is not None, (
                f"pre-empted by a plan that did not complete: {process.error}"
            )
