"""The options of clustering: Hudi's keys, its defaults, and what is refused."""

from __future__ import annotations

import pytest

from lakewright.errors import InvalidError, LakewrightError, UnsupportedError
from lakewright.options import HUDI_OPTIONS
from lakewright.services.clustering.layout import Layout, Ordering
from lakewright.services.clustering.options import (
    CLUSTERING_KEYS,
    ClusteringSettings,
    FilterMode,
    SliceOrder,
    clustering_settings,
    commits_to_wait_for,
)
from support.services import clustering_options

PLANS = "org.apache.hudi.client.clustering.plan.strategy."
RUNS = "org.apache.hudi.client.clustering.run.strategy."


def test_the_keys_are_hudis_own() -> None:
    assert [key for key in CLUSTERING_KEYS - HUDI_OPTIONS if key.startswith("hoodie.")] == []


def test_the_defaults_are_hudis_own() -> None:
    default = clustering_settings({})
    assert default == ClusteringSettings()
    assert (default.small_file_limit, default.target_bytes) == (314572800, 1073741824)
    assert (default.group_bytes, default.max_groups) == (2147483648, 30)
    assert (default.inline_commits, default.async_commits) == (4, 4)
    assert (default.lookback_partitions, default.skipped_partitions) == (2, 0)
    assert default.single_groups
    assert default.incremental
    assert default.slice_order == (SliceOrder.SIZE,)
    assert default.ordering is None
    assert default.params == {}


REFUSED: dict[str, tuple[dict[str, str], type[LakewrightError]]] = {
    "a regular expression must compile": (
        clustering_options(partition_regex_pattern="day=["),
        InvalidError,
    ),
    "a file needs a size": (clustering_options(target_file_max_bytes=0), InvalidError),
    "a group needs a size": (clustering_options(max_bytes_per_group=0), InvalidError),
    "a plan has groups": (clustering_options(max_num_groups=0), InvalidError),
    "a limit is a number": (clustering_options(small_file_limit="300 MB"), InvalidError),
    "a filter mode must be known": (
        {"hoodie.clustering.plan.partition.filter.mode": "SOMETIMES"},
        InvalidError,
    ),
    "a layout must be known": ({"hoodie.layout.optimize.strategy": "spiral"}, InvalidError),
    "slices are sorted by a property of slices": (
        clustering_options(file_slices_sort_by="NAME"),
        InvalidError,
    ),
    "slices are sorted by something": (clustering_options(file_slices_sort_by=" , "), InvalidError),
    "a strategy of one's own is not there": (
        {"hoodie.clustering.plan.strategy.class": "com.example.Mine"},
        UnsupportedError,
    ),
    "a strategy that keeps file ids is another thing": (
        {"hoodie.clustering.plan.strategy.class": PLANS + "SparkSingleFileSortPlanStrategy"},
        UnsupportedError,
    ),
    "an execution of one's own is not there": (
        {"hoodie.clustering.execution.strategy.class": "com.example.Mine"},
        UnsupportedError,
    ),
}


@pytest.mark.parametrize(("options", "kind"), REFUSED.values(), ids=list(REFUSED))
def test_bad_input_is_refused(options: dict[str, str], kind: type[LakewrightError]) -> None:
    with pytest.raises(kind):
        clustering_settings(options)


LAYOUTS = {"linear": "LINEAR", "z-order": "ZORDER", "ZORDER": "ZORDER", "Hilbert": "HILBERT"}


@pytest.mark.parametrize(("text", "layout"), LAYOUTS.items(), ids=list(LAYOUTS))
def test_layouts_have_several_spellings(text: str, layout: str) -> None:
    options = {"hoodie.layout.optimize.strategy": text, **clustering_options(sort_columns="a, b")}
    assert clustering_settings(options).ordering == Ordering(("a", "b"), Layout(layout))


def test_the_parameters_of_a_plan_yield_the_same_order_and_size_again() -> None:
    options = {
        "hoodie.layout.optimize.strategy": "hilbert",
        **clustering_options(sort_columns="a,b", target_file_max_bytes=1000),
    }
    settings = clustering_settings(options)
    again = clustering_settings(settings.params)
    assert (again.ordering, again.target_bytes) == (settings.ordering, settings.target_bytes)


CLASSES = {
    "SparkRecentDaysClusteringPlanStrategy": FilterMode.RECENT_DAYS,
    "SparkSelectedPartitionsClusteringPlanStrategy": FilterMode.SELECTED_PARTITIONS,
    "SparkSizeBasedClusteringPlanStrategy": FilterMode.NONE,
}


@pytest.mark.parametrize(("name", "mode"), CLASSES.items(), ids=list(CLASSES))
def test_old_strategies_stand_for_filters(name: str, mode: FilterMode) -> None:
    options = {"hoodie.clustering.plan.strategy.class": PLANS + name}
    assert clustering_settings(options).filter_mode is mode


def test_executions_that_differ_in_speed_alone_are_taken() -> None:
    name = RUNS + "SparkBinaryCopyClusteringExecutionStrategy"
    options = {"hoodie.clustering.execution.strategy.class": name}
    assert clustering_settings(options).execution_class == name


INLINE, ASYNC = "hoodie.clustering.inline", "hoodie.clustering.async"
WAITING: dict[str, tuple[dict[str, str], int]] = {
    "by hand at once": ({}, 0),
    "inline after four commits": ({INLINE: "true"}, 4),
    "inline after the configured number": ({INLINE: "true", f"{INLINE}.max.commits": "2"}, 2),
    "by hand after the configured number": ({f"{INLINE}.max.commits": "3"}, 3),
    "asynchronously after four commits": ({f"{ASYNC}.enabled": "true"}, 4),
    "planned inline as if executed asynchronously": (
        {"hoodie.clustering.schedule.inline": "true", f"{ASYNC}.max.commits": "7"},
        7,
    ),
    "of two numbers the greater one": (
        {f"{INLINE}.max.commits": "3", f"{ASYNC}.max.commits": "5"},
        5,
    ),
}


@pytest.mark.parametrize(("options", "expected"), WAITING.values(), ids=list(WAITING))
def test_how_many_commits_a_clustering_waits_for(options: dict[str, str], expected: int) -> None:
    assert commits_to_wait_for(clustering_settings(options), options) == expected
