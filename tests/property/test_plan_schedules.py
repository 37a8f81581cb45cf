"""The scenarios of guarded and cancellable plans, in every order of calls that was played.

Two processes: orders with at most three switches, of which a check plays three dozen and a soak run
ten thousand of each scenario. Three and four processes: orders by chance. A failure prints what
it was played with; `LAKEWRIGHT_PLAY=<seed>` plays that alone.
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

UPSERT_TS = 9
EACH = int(os.environ.get("LAKEWRIGHT_PLAYS", sized(5, 3_400)))
"""How many orders are played of each scenario and each of the three services."""


@dataclass(frozen=True)
class Scenario:
    """Who does what to the plan, and what may become of it.

    `first` brings the plan to where the scenario begins: the first actor alone.
    """

    cancellable: bool
    actors: tuple[str, ...]
    expect: Callable[[Ended], None]
    dead: bool = False
    begun: bool = False
    delay: str = "60"


@dataclass
class Ended:
    """A play that is over."""

    setting: PlannedTable
    stage: ProcessScheduler
    script: str
    done: list[Commit] = field(default_factory=list)
    failed: list[BaseException] = field(default_factory=list)

    @property
    def executors(self) -> list[ScheduledProcess]:
        """Those who came to an end, of whatever kind."""
        mine = [actor for actor in self.stage.actors if actor.name.startswith("execute")]
        return [actor for actor in mine if not actor.is_dead]

    @property
    def completed(self) -> Instant | None:
        """The result of the plan, if there is one."""
        found = load_snapshot(self.stage.storage).timeline.completed()
        return next((i for i in found if i.requested_at == self.setting.at), None)

    @property
    def is_planned(self) -> bool:
        """Whether the plan is still there."""
        found = load_snapshot(self.stage.storage).timeline.pending()
        return any(i.requested_at == self.setting.at for i in found)


def results_agree(ended: Ended) -> None:
    """Whoever says that the plan was executed tells of the one result there is."""
    done = [actor.result for actor in ended.executors if actor.error is None]
    assert all(isinstance(each, Commit) for each in done)
    if done:
        assert ended.completed is not None
        assert {each.completed_at for each in done} == {ended.completed.completed_at}
    for actor in ended.executors:
        # Who stood still with the lock in hand keeps others waiting, until they give up.
        told = (ConflictError, InvalidError, UnavailableError)
        assert actor.error is None or isinstance(actor.error, told)


def one_completes(ended: Ended) -> None:
    """With everybody alive the first one completes it."""
    results_agree(ended)
    assert ended.completed is not None


def completes_or_stays(ended: Ended) -> None:
    results_agree(ended)
    assert ended.completed is not None or ended.is_planned


def nobody_completes(ended: Ended) -> None:
    results_agree(ended)
    assert ended.completed is None
    assert all(actor.error is not None for actor in ended.executors)


def completes_or_goes(ended: Ended) -> None:
    """Nobody is left in the middle: it has completed, or was rolled back with its plan."""
    results_agree(ended)
    assert (ended.completed is not None) != (not _is_gone(ended))


def _is_gone(ended: Ended) -> bool:
    return ended.completed is None and not ended.is_planned


def clean_leaves_it(ended: Ended) -> None:
    """A clean does not touch a plan that is young, or at work."""
    one_completes(ended)


def clean_or_execution(ended: Ended) -> None:
    results_agree(ended)
    assert ended.completed is not None or _is_gone(ended)


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
        True, ("execute", "execute"), nobody_completes, dead=True
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


def works(setting: PlannedTable, kinds: Sequence[str], delay: str) -> list[tuple[str, Work]]:
    made: dict[str, Callable[[], Work]] = {
        "execute": lambda: executing(setting),
        "clean": lambda: cleaning(**{ROLLBACK_DELAY: delay}),
        "upsert": lambda: upserting(UPSERT_TS),
        "cancel": lambda: cancelling(setting),
    }
    return [(f"{kind}-{number}", made[kind]()) for number, kind in enumerate(kinds)]


def play(
    scenario: Scenario, setting: PlannedTable, kinds: Sequence[str], script: Schedule, told: str
) -> Ended:
    with scheduled_processes(setting.files, setting.now_ms, setting.age_ms) as stage:
        check = Invariants(stage, setting, (setting.rows,))
        for name, work in works(setting, kinds, scenario.delay):
            actor = stage.enter(name, work)
            while scenario.begun and len(stage.actors) == 1 and not _is_inflight(stage, setting):
                stage.mover = actor
                actor.step()
                check()
        try:
            stage.play(script, check)
            ended = Ended(setting, stage, told)
            scenario.expect(ended)
            _afterwards(ended)
        except AssertionError as error:
            error.add_note(f"played with {told}; the last calls: {stage.log[-12:]}")
            raise
        return ended


def _is_inflight(stage: ProcessScheduler, setting: PlannedTable) -> bool:
    pending = load_snapshot(stage.storage).timeline.pending()
    return any(i.requested_at == setting.at and i.state is State.INFLIGHT for i in pending)


def _afterwards(ended: Ended, rows: Rows | None = None, or_one_of: tuple[Rows, ...] = ()) -> None:
    """A clean an hour later puts everything right: no file of a plan that is gone is left."""
    ended.stage.now.advance(3_600_000)
    table = table_at(ended.stage.storage, ended.stage.now, **{ROLLBACK_DELAY: "0"})
    table.services().run("clean")
    if ended.setting.cancellable and ended.completed is None:
        assert not ended.is_planned
        left = [f.path for f in ended.stage.storage.list_tree("") if ended.setting.at in f.name]
        assert not [p for p in left if ".rollback" not in p and not p.startswith(TEMPORARY)], left
    found = read_rows(ended.stage.storage)
    died = any(actor.is_dead or actor.error for actor in ended.stage.actors)
    # Who died may have written before that, and told nobody.
    assert found == (rows or ended.setting.rows) or (died and found in or_one_of)


@pytest.mark.parametrize("service", list(SERVICE_OPTIONS))
@pytest.mark.parametrize("scenario", SCENARIOS.values(), ids=list(SCENARIOS))
def test_two_take_turns(scenario: Scenario, service: str) -> None:
    setting = planned_table(service, cancellable=scenario.cancellable, dead=scenario.dead)
    calls = _calls_alone(scenario, setting)
    chance = random.Random(f"{service} {scenario.actors}")
    for turns in sorted(some_switches(calls, EACH, chance)):
        play(scenario, setting, scenario.actors, with_switches(turns), f"turns {turns}")


def _calls_alone(scenario: Scenario, setting: PlannedTable) -> tuple[int, int]:
    """How many calls each makes if the other comes after it."""
    found = []
    for first in (0, 1):
        ended = play(scenario, setting, scenario.actors, with_switches([(first, 10**6)]), "alone")
        found.append(ended.stage.actors[first].steps)
    return found[0], found[1]


KINDS = {
    True: ("execute", "execute", "clean", "upsert", "cancel"),
    False: ("execute", "execute", "clean", "upsert"),
}


@pytest.mark.parametrize("cancellable", [True, False], ids=["mutable", "immutable"])
@pytest.mark.parametrize("service", list(SERVICE_OPTIONS))
def test_three_or_four_in_any_order(service: str, cancellable: bool) -> None:
    """Some of whom die, or stand still until others take them for dead."""
    only = os.environ.get("LAKEWRIGHT_PLAY")
    seeds = [int(only)] if only else range(EACH)
    for seed in seeds:
        chance = random.Random(seed)
        kinds = [chance.choice(KINDS[cancellable]) for _ in range(chance.choice((3, 4)))]
        if kinds.count("upsert") > 1:
            continue
        setting = planned_table(service, cancellable=cancellable, dead=chance.random() < 0.2)
        play_by_chance(setting, kinds, chance, f"LAKEWRIGHT_PLAY={seed}: {kinds}")


SKEWS_MS = (-120_000, 0, 0, 120_000)


# What could not be tidied up is told so.
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("cancellable", [True, False], ids=["mutable", "immutable"])
@pytest.mark.parametrize("service", list(SERVICE_OPTIONS))
def test_with_clocks_that_are_off_and_storage_that_fails(service: str, cancellable: bool) -> None:
    """Work may be lost then, and rows never are."""
    only = os.environ.get("LAKEWRIGHT_PLAY")
    for seed in [int(only)] if only else range(EACH):
        chance = random.Random(seed)
        kinds = ["execute", chance.choice(KINDS[cancellable]), "clean"]
        setting = planned_table(service, cancellable=cancellable, dead=chance.random() < 0.2)
        told = f"LAKEWRIGHT_PLAY={seed}: {kinds}"
        play_by_chance(setting, kinds, chance, told, in_bad_weather=True)


def _spoil(stage: ProcessScheduler, chance: random.Random) -> None:
    """Set clocks wrong, or cut processes off from the storage for a while."""
    for actor in stage.actors:
        actor.clock.off_ms = chance.choice(SKEWS_MS)
        if chance.random() < 0.5:
            first = chance.randrange(60)
            actor.cut_off = range(first, first + chance.randrange(1, 20))


def play_by_chance(
    setting: PlannedTable,
    kinds: list[str],
    chance: random.Random,
    told: str,
    *,
    in_bad_weather: bool = False,
) -> None:
    written = after_upsert(setting.rows, UPSERT_TS)
    scenario = Scenario(setting.cancellable, tuple(kinds), results_agree, delay=chance.choice("06"))
    with scheduled_processes(setting.files, setting.now_ms, setting.age_ms) as stage:
        check = Invariants(stage, setting, (setting.rows, written), not in_bad_weather)
        for name, work in works(setting, kinds, scenario.delay):
            stage.enter(name, work)
        if in_bad_weather:
            _spoil(stage, chance)
        for actor in stage.actors:
            actor.dies_at = chance.randrange(1, 80) if chance.random() < 0.2 else None
        try:
            stage.play(at_random(chance, freezes=chance.choice((0, 0, 0.01))), check)
            ended = Ended(setting, stage, told)
            results_agree(ended)
            if not in_bad_weather:
                _ingested_unless_there_was_a_reason(ended)
            has_written = any(_has_written(actor) for actor in stage.actors)
            _afterwards(ended, written if has_written else setting.rows, (setting.rows, written))
        except AssertionError as error:
            error.add_note(f"played with {told}; the last calls: {stage.log[-12:]}")
            raise


def _has_written(actor: ScheduledProcess) -> bool:
    return actor.name.startswith("upsert") and isinstance(actor.result, Commit)


def _ingested_unless_there_was_a_reason(ended: Ended) -> None:
    """A pending cancellable plan is no reason for a write to fail."""
    for actor in ended.stage.actors:
        if not actor.name.startswith("upsert") or actor.error is None or actor.is_dead:
            continue
        assert isinstance(actor.error, ConflictError | UnavailableError)
        froze = "heartbeat" in str(actor.error) or "lock" in str(actor.error)
        if ended.setting.cancellable and not froze:
            assert ended.completed is not None, (
                f"pre-empted by a plan that did not complete: {actor.error}"
            )
