"""Which partitions are clustered."""

from __future__ import annotations

import pytest

from lakewright.services.clustering.options import FilterMode, clustering_settings
from lakewright.services.clustering.planner import choose_partitions, strategy_of
from lakewright.services.planning import IncrementalPartitionAwareStrategy
from support.services import clustering_options

MODE = "hoodie.clustering.plan.partition.filter.mode"
RECENT, RANGE, ROLLING = (
    {MODE: mode} for mode in ("RECENT_DAYS", "SELECTED_PARTITIONS", "DAY_ROLLING")
)
HOURS = [f"2026010{day}-{hour:02d}" for day in (1, 2) for hour in range(24)]

CASES: dict[str, tuple[dict[str, str], list[str], int, list[str]]] = {
    "without a filter all are taken": ({}, ["c", "a", "b"], 0, ["a", "b", "c"]),
    "recent days skip the newest and look back": (
        RECENT
        | clustering_options(daybased_skipfromlatest_partitions=1, daybased_lookback_partitions=1),
        ["20210718", "20210716", "20210719"],
        0,
        ["20210718"],
    ),
    "recent days are two by default": (RECENT, ["1", "3", "2", "4"], 0, ["3", "4"]),
    "a look-back of nothing is no bound": (
        RECENT
        | clustering_options(daybased_lookback_partitions=0, daybased_skipfromlatest_partitions=1),
        ["1", "2", "3"],
        0,
        ["1", "2"],
    ),
    "recent days skip more than there are": (
        RECENT | clustering_options(daybased_skipfromlatest_partitions=5),
        ["1", "2"],
        0,
        [],
    ),
    "a range has both its ends": (
        RANGE
        | clustering_options(cluster_begin_partition="20211222", cluster_end_partition="20211223"),
        ["20211220", "20211221", "20211222", "20211224"],
        0,
        ["20211222"],
    ),
    "a range is open without an end": (
        RANGE | clustering_options(cluster_begin_partition="b"),
        ["a", "b", "c"],
        0,
        ["b", "c"],
    ),
    "every hour has its turn": (ROLLING, HOURS, 5, ["20260101-05", "20260102-05"]),
    "fewer partitions than hours": (ROLLING, ["a", "b"], 5, []),
    "an expression fits the whole path": (
        clustering_options(partition_regex_pattern="2026.*"),
        ["2026-01", "2025-01", "x2026-01"],
        0,
        ["2026-01"],
    ),
    "an expression and a filter both count": (
        RECENT | clustering_options(partition_regex_pattern="a.", daybased_lookback_partitions=1),
        ["a1", "a2", "b1"],
        0,
        ["a2"],
    ),
    "named ones are taken, also outside of the window": (
        clustering_options(partition_selected="b,/z/", partition_regex_pattern="a"),
        ["a", "b"],
        0,
        ["b", "z"],
    ),
}


@pytest.mark.parametrize(
    ("options", "partitions", "hour", "expected"), CASES.values(), ids=list(CASES)
)
def test_chosen_partitions(
    options: dict[str, str], partitions: list[str], hour: int, expected: list[str]
) -> None:
    chosen, skipped = choose_partitions(clustering_settings(options), partitions, hour)
    assert chosen == expected
    assert sorted(skipped) == sorted(set(partitions) - set(expected))


REASONS: dict[str, tuple[dict[str, str], dict[str, str]]] = {
    "the expression": (
        clustering_options(partition_regex_pattern="b"),
        {"a": "filtered by partition.regex.pattern"},
    ),
    "the mode": (
        RANGE | clustering_options(cluster_begin_partition="b"),
        {"a": "filtered by SELECTED_PARTITIONS"},
    ),
    "the names": (
        clustering_options(partition_selected="b"),
        {"a": "not named in partition.selected"},
    ),
    "nothing": ({}, {}),
}


@pytest.mark.parametrize(("options", "reasons"), REASONS.values(), ids=list(REASONS))
def test_why_partitions_are_skipped(options: dict[str, str], reasons: dict[str, str]) -> None:
    assert choose_partitions(clustering_settings(options), ["a", "b"], 0)[1] == reasons


@pytest.mark.parametrize("mode", FilterMode)
def test_every_filter_works_on_some_of_the_partitions(mode: FilterMode) -> None:
    assert isinstance(strategy_of(mode, 0), IncrementalPartitionAwareStrategy)


@pytest.mark.parametrize("mode", FilterMode)
def test_a_filter_loses_no_partition(mode: FilterMode) -> None:
    settings = clustering_settings(
        {MODE: mode, **clustering_options(cluster_begin_partition="20260101-07")}
    )
    selected, skipped = strategy_of(mode, 3).filter_partition_paths(settings, HOURS)
    assert sorted([*selected, *skipped]) == HOURS
