"""Which steps a race takes, and in which order."""

from __future__ import annotations

import pytest
from bench.plan import (
    DELTA,
    HUDI,
    LAKEWRIGHT,
    LIMIT,
    SYSTEMS,
    WORKLOADS,
    Do,
    Size,
    Step,
    chosen_systems,
    chosen_workloads,
    plan_race,
    rotated,
    skipped_workloads,
)

CHOSEN = {
    "nothing named is everything": ("", [workload.name for workload in WORKLOADS]),
    "a whole name is that workload": ("load", ["load"]),
    "the beginning of a name is all that begin so": (
        "upsert_spread", ["upsert_spread_cow", "upsert_spread_mor", "upsert_spread_mor_bucket"]),
    "several beginnings join, in the usual order": ("delete,load", ["load", "delete"]),
}  # fmt: skip


@pytest.mark.parametrize(("only", "names"), CHOSEN.values(), ids=list(CHOSEN))
def test_chosen_workloads(only: str, names: list[str]) -> None:
    prefixes = [name for name in only.split(",") if name]
    assert [workload.name for workload in chosen_workloads(prefixes)] == names


def test_a_workload_that_is_not_there_is_an_error() -> None:
    with pytest.raises(ValueError, match="no workload has such a name"):
        chosen_workloads(["swim"])


def test_the_limit_comes_along_with_lakewright_and_not_without() -> None:
    assert chosen_systems(["hudi", "lakewright"]) == (LAKEWRIGHT, LIMIT, HUDI)
    assert chosen_systems(["delta"]) == (DELTA,)
    with pytest.raises(ValueError, match="name both"):
        chosen_systems(["limit"])
    with pytest.raises(ValueError, match="paimon"):
        chosen_systems(["paimon"])


def test_every_round_begins_with_another_system_and_the_limit_follows_lakewright() -> None:
    rounds = [rotated(SYSTEMS, number) for number in range(4)]
    assert len({order[0] for order in rounds}) == 4
    assert all(order[order.index(LAKEWRIGHT) + 1] == LIMIT for order in rounds)
    assert all(sorted(order) == sorted(SYSTEMS) for order in rounds)


def test_systems_take_turns_within_a_round() -> None:
    steps = plan_race(Size(rounds=2), chosen_workloads(["load"]), SYSTEMS)
    counted = [(step.round, step.system) for step in steps if step.counted]
    assert counted == [
        *((0, system) for system in rotated(SYSTEMS, 0)),
        *((1, system) for system in rotated(SYSTEMS, 1)),
    ]


def steps_of(only: str, system: str = HUDI, rounds: int = 2) -> list[Step]:
    workloads = [workload for workload in WORKLOADS if workload.name in only.split(",")]
    return list(plan_race(Size(rounds=rounds), workloads, (system,)))


STEPS = {
    "the first load is kept as the state that others begin with": (
        "load", "load* keep check load*"),
    "a change begins from the loaded table in every round": (
        "upsert_hot", "load keep upsert* check restore upsert*"),
    "a load is not made twice for the workloads after it": (
        "load,delete",
        "load* keep check delete* check load* delete*"),
    "a scan of logs begins from the table with the change in it": (
        "scan_mor", "load keep restore upsert scan* check scan*"),
    "a scan goes on where the upsert before it ended": (
        "upsert_spread_mor,scan_mor",
        "load keep upsert* check scan* check restore upsert* scan*"),
    "tiny commits go on through all rounds": (
        "tiny_commit", "load keep commits* check commits* check"),
    "the table of the load test is there anew in every round": (
        "ttl_500", "make_aged ttl* check make_aged ttl*"),
}  # fmt: skip


@pytest.mark.parametrize(("only", "expected"), STEPS.values(), ids=list(STEPS))
def test_the_steps_of_one_system(only: str, expected: str) -> None:
    shown = [f"{step.do}{'*' if step.counted else ''}" for step in steps_of(only)]
    assert " ".join(shown) == expected


def test_the_rounds_make_all_commits_once_and_in_order() -> None:
    size = Size(rounds=3, commits=31)
    numbers = [number for turn in range(3) for number in size.commits_of(turn)]
    assert numbers == list(range(31))
    ranges = [
        (step.first, step.count)
        for step in plan_race(size, chosen_workloads(["tiny"]), (HUDI,))
        if step.do is Do.COMMITS
    ]
    assert ranges == [(0, 10), (10, 10), (20, 11)]


def test_a_system_that_is_left_out_has_a_reason() -> None:
    reasons = skipped_workloads(WORKLOADS, SYSTEMS)
    assert set(reasons["upsert_spread_mor_bucket"]) == {"limit", "delta", "iceberg"}
    assert "scan" not in reasons
    planned = {(s.workload, s.system) for s in plan_race(Size(), WORKLOADS, SYSTEMS)}
    assert not planned & {(name, system) for name, out in reasons.items() for system in out}


@pytest.mark.parametrize(
    ("scale", "names"), [(0.01, []), (0.05, ["ttl_500"]), (1.0, ["ttl_500", "ttl_10000"])]
)
def test_there_are_as_many_partitions_as_the_scale_has_suppliers(
    scale: float, names: list[str]
) -> None:
    steps = plan_race(Size(scale=scale, rounds=1), chosen_workloads(["ttl"]), (LAKEWRIGHT, HUDI))
    assert list(dict.fromkeys(step.workload for step in steps)) == names
    assert {step.process for step in steps if step.do is Do.MAKE_AGED} <= {LAKEWRIGHT}
