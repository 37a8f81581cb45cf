"""Clustering plans: which slices are clustered together or skipped, and when a plan is due."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from lakewright.model.file_group import FileSlice, GroupKey
from lakewright.model.plans import ClusteringPlan, Skip
from lakewright.model.timeline import Timeline
from lakewright.services.clustering.options import ClusteringSettings
from lakewright.services.clustering.planner import (
    check_clustering_trigger,
    commits_since_clustering,
    plan_clustering,
)
from lakewright.services.compaction.strategies import MB
from lakewright.services.planning import IncrementalWindow
from lakewright.testing.timeline_drawing import draw
from support.services import clustering_settings_of, clustering_slice

EVERYTHING = IncrementalWindow(None)
OFF = IncrementalWindow(None, records_missing=False)


def plan(
    slices: list[FileSlice],
    chosen: ClusteringSettings | None = None,
    *,
    window: IncrementalWindow = EVERYTHING,
    locked: Mapping[GroupKey, str] | None = None,
    filtered: Mapping[str, str] | None = None,
) -> ClusteringPlan | Skip:
    return plan_clustering(
        slices,
        chosen or ClusteringSettings(),
        window=window,
        locked=locked or {},
        filtered=filtered,
        path_of=lambda path: f"file:/table/{path}",
        default_size=120 * MB,
    )


def made(*arguments: object, **named: object) -> ClusteringPlan:
    result = plan(*arguments, **named)  # type: ignore[arg-type]
    assert isinstance(result, ClusteringPlan), result
    return result


def drawn(planned: ClusteringPlan) -> list[str]:
    """The file ids of each group."""
    return ["".join(item.file_id for item in group.slices) for group in planned.groups]


DAYS = [clustering_slice(day, f"{day}{n}", 5) for day in ("today", "yesterday") for n in "12"]

GROUPS: dict[str, tuple[list[FileSlice], ClusteringSettings, list[str]]] = {
    "the slices of a partition are put together, large ones first": (
        [
            clustering_slice("p", "a", 1),
            clustering_slice("p", "b", 3),
            clustering_slice("p", "c", 2),
        ],
        clustering_settings_of(),
        ["bca"],
    ),
    "partitions stay apart": (
        [clustering_slice("q", "b"), clustering_slice("p", "a"), clustering_slice("q", "c")],
        clustering_settings_of(),
        ["a", "bc"],
    ),
    "a group ends before it grows too large": (
        [clustering_slice("p", name, 4) for name in "abcde"],
        clustering_settings_of(max_bytes_per_group=8 * MB),
        ["ab", "cd", "e"],
    ),
    "a slice larger than a group is one": (
        [clustering_slice("p", "a", 9), clustering_slice("p", "b", 1)],
        clustering_settings_of(max_bytes_per_group=8 * MB),
        ["a", "b"],
    ),
    "large files stay as they are": (
        [clustering_slice("p", "a", 300), clustering_slice("p", "b", 299)],
        clustering_settings_of(),
        ["b"],
    ),
    "log files make a large file no smaller": (
        [clustering_slice("p", "a", 300, logs=3), clustering_slice("p", "b", 1)],
        clustering_settings_of(),
        ["b"],
    ),
    "a slice of log files alone counts as a full file": (
        [
            clustering_slice("p", "a", None, logs=1),
            clustering_slice("p", "b", 130),
            clustering_slice("p", "c", 1),
        ],
        clustering_settings_of(),
        ["bac"],
    ),
    "a single slice only where that is configured": (
        [clustering_slice("p", "a"), clustering_slice("q", "b"), clustering_slice("q", "c")],
        clustering_settings_of(single_group_clustering_enabled="false"),
        ["bc"],
    ),
    "a single slice that becomes several files is clustered": (
        [clustering_slice("p", "a", 9)],
        clustering_settings_of(
            single_group_clustering_enabled="false", target_file_max_bytes=4 * MB
        ),
        ["a"],
    ),
    "a plan has no more groups than it may": (
        [clustering_slice(name, name) for name in "abc"],
        clustering_settings_of(max_num_groups=2),
        ["a", "b"],
    ),
}


@pytest.mark.parametrize(("slices", "chosen", "expected"), GROUPS.values(), ids=list(GROUPS))
def test_groups(slices: list[FileSlice], chosen: ClusteringSettings, expected: list[str]) -> None:
    assert drawn(made(slices, chosen)) == expected
    assert drawn(made(slices[::-1], chosen)) == expected


def test_the_oldest_first_if_configured() -> None:
    old, young = clustering_slice("p", "b", 1), clustering_slice("p", "a", 5)
    assert old.base is not None
    assert young.base is not None
    younger = FileSlice("p", "a", young.base_instant, type(old.base)("a", "0", "3", size=5 * MB))
    older = FileSlice("p", "b", old.base_instant, type(old.base)("b", "0", "2", size=MB))
    assert drawn(made([younger, older])) == ["ab"]
    assert drawn(
        made([younger, older], clustering_settings_of(file_slices_sort_by="INSTANT_TIME,SIZE"))
    ) == ["ba"]


# `missing` is what is due and not planned: a filter that real Hudi forgets counts as well.
MISSING: dict[str, tuple[dict[str, object], tuple[str, ...] | None]] = {
    "every partition is planned": ({}, ()),
    "nothing is recorded where incremental planning is off": ({"window": OFF}, None),
    "groups beyond the limit, also of a partition that is planned in part": (
        {"chosen": clustering_settings_of(max_num_groups=1, max_bytes_per_group=5 * MB)},
        ("today", "yesterday"),
    ),
    "a partition that is planned to its last group is not missing": (
        {"chosen": clustering_settings_of(max_num_groups=1)},
        ("yesterday",),
    ),
    "what a regular expression leaves out is missing, other than in real Hudi": (
        {"slices": DAYS[:2], "filtered": {"yesterday": "filtered by partition.regex.pattern"}},
        ("yesterday",),
    ),
    "what lies outside the selected range is missing, other than in real Hudi": (
        {"slices": DAYS[2:], "filtered": {"today": "filtered by SELECTED_PARTITIONS"}},
        ("today",),
    ),
    "what another plan holds is missing": (
        {"locked": {("today", "today1"): "compaction 20260101000000000"}},
        ("today",),
    ),
    "a large file is missing nowhere": ({"slices": [*DAYS, clustering_slice("big", "x", 999)]}, ()),
    "nor is one that another plan holds": (
        {
            "slices": [*DAYS, clustering_slice("big", "x", 999)],
            "locked": {("big", "x"): "compaction 20260101000000000"},
        },
        (),
    ),
    "nor is a single file where such are not clustered": (
        {
            "slices": [*DAYS, clustering_slice("one", "x", 9)],
            "chosen": clustering_settings_of(single_group_clustering_enabled="false"),
        },
        (),
    ),
}


@pytest.mark.parametrize(("arguments", "expected"), MISSING.values(), ids=list(MISSING))
def test_missing_partitions(arguments: dict[str, object], expected: tuple[str, ...] | None) -> None:
    named = dict(arguments)
    result = made(named.pop("slices", DAYS), named.pop("chosen", None), **named)
    assert result.missing_partitions == expected
    assert tuple(sorted(result.missing_reasons)) == (expected or ())


def test_reasons_are_recorded_in_the_plan() -> None:
    result = made(
        [*DAYS, clustering_slice("last", "x")],
        clustering_settings_of(max_num_groups=2),
        locked={("today", "today1"): "compaction 20260101000000000"},
        filtered={"old": "filtered by RECENT_DAYS"},
    )
    assert result.missing_reasons == {
        "today": "held by compaction 20260101000000000",
        "old": "filtered by RECENT_DAYS",
        "yesterday": "beyond the limit of 2 groups",
    }


NOTHING: dict[str, tuple[list[FileSlice], dict[GroupKey, str], str]] = {
    "no slices": ([], {}, "no file is small enough"),
    "only large files": ([clustering_slice("p", "a", 999)], {}, "no file is small enough"),
    "all locked": (
        [clustering_slice("p", "a")],
        {("p", "a"): "clustering 7"},
        "held by clustering 7",
    ),
}


@pytest.mark.parametrize(("slices", "locked", "reason"), NOTHING.values(), ids=list(NOTHING))
def test_nothing_to_cluster(
    slices: list[FileSlice], locked: dict[GroupKey, str], reason: str
) -> None:
    skip = plan(slices, locked=locked)
    assert isinstance(skip, Skip)
    assert reason in skip.reason


def test_a_plan_is_written_as_real_hudi_writes_it() -> None:
    result = made(
        [clustering_slice("p", "a", 3, logs=2), clustering_slice("p", "b", None, logs=1)],
        clustering_settings_of(sort_columns="x,y", target_file_max_bytes=50 * MB),
    )
    (group,) = result.groups
    assert group.output_groups == 3
    assert group.metrics == {
        "TOTAL_IO_READ_MB": 6.0,
        "TOTAL_IO_WRITE_MB": 123.0,
        "TOTAL_IO_MB": 129.0,
        "TOTAL_LOG_FILES_SIZE": 3.0 * MB,
        "TOTAL_LOG_FILES": 3.0,
    }
    only_logs, with_base = group.slices
    assert (only_logs.base_path, only_logs.base_file, only_logs.bootstrap_path) == ("", None, "")
    assert with_base.base_path == f"file:/table/p/{with_base.base_file}"
    assert all(path.startswith("file:/table/p/.a_") for path in with_base.log_paths)
    assert result.strategy is not None
    assert (result.strategy.class_name or "").endswith(".SparkSortAndSizeExecutionStrategy")
    assert result.strategy.params["hoodie.clustering.plan.strategy.sort.columns"] == "x,y"
    assert result.preserve_metadata


TIMELINES: dict[str, tuple[str, int]] = {
    "all commits of a table that was never clustered": (
        """
        commit |-|
        commit    |-|
        """,
        2,
    ),
    "commits after the last clustering": (
        """
        commit     |-|
        clustering    |-|
        commit           |-|
        """,
        1,
    ),
    "a clustering that is pending is the last one": (
        """
        commit     |-|
        clustering    |
        commit           |-|
        """,
        1,
    ),
    "a write that began before the clustering does not count": (
        """
        deltacommit |-------|
        clustering    |-|
        """,
        0,
    ),
    "pending writes do not count": (
        """
        commit |-|
        commit    |-
        """,
        1,
    ),
    "an overwrite counts as a write": (
        """
        commit        |-|
        replacecommit    |-|
        """,
        2,
    ),
    "a rollback is no write": (
        """
        commit   |-|
        rollback    |-|
        """,
        1,
    ),
}


@pytest.mark.parametrize(("picture", "expected"), TIMELINES.values(), ids=list(TIMELINES))
def test_commits_since_the_last_clustering(picture: str, expected: int) -> None:
    timeline = draw(picture)
    assert commits_since_clustering(timeline) == expected
    assert check_clustering_trigger(timeline, expected) is None
    early = check_clustering_trigger(timeline, expected + 1)
    assert isinstance(early, Skip)
    assert f"{expected} of {expected + 1} commits" in early.reason


def test_an_empty_timeline_needs_no_wait() -> None:
    assert check_clustering_trigger(Timeline(), 0) is None
