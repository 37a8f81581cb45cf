"""The options of clustering, with Hudi's own keys and defaults."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

from lakewright.errors import UnsupportedError
from lakewright.model.plans import CANDIDATE_LIMITS
from lakewright.model.table_config import csv
from lakewright.options import at_least, option, option_keys, parse_bool, parse_word, settings_from
from lakewright.services.clustering.layout import Layout, Ordering
from lakewright.services.planning import PlanningSettings, missing_seconds_option

SORT_COLUMNS = "hoodie.clustering.plan.strategy.sort.columns"
TARGET_BYTES = "hoodie.clustering.plan.strategy.target.file.max.bytes"
LAYOUT = "hoodie.layout.optimize.strategy"
INLINE_COMMITS = "hoodie.clustering.inline.max.commits"
ASYNC_COMMITS = "hoodie.clustering.async.max.commits"

EXECUTION_CLASS = "org.apache.hudi.client.clustering.run.strategy.SparkSortAndSizeExecutionStrategy"
_PLAN_PACKAGE = "org.apache.hudi.client.clustering.plan.strategy."
_RUN_PACKAGE = "org.apache.hudi.client.clustering.run.strategy."


class FilterMode(StrEnum):
    """Which of the checked partitions are clustered."""

    NONE = "NONE"
    RECENT_DAYS = "RECENT_DAYS"
    SELECTED_PARTITIONS = "SELECTED_PARTITIONS"
    DAY_ROLLING = "DAY_ROLLING"


class SliceOrder(StrEnum):
    """What file slices are sorted by before they are grouped."""

    SIZE = "SIZE"
    INSTANT_TIME = "INSTANT_TIME"


# Hudi's strategies, all of them by size; older ones imply a partition filter.
_PLAN_CLASSES = {
    "SparkSizeBasedClusteringPlanStrategy": None,
    "JavaSizeBasedClusteringPlanStrategy": None,
    "FlinkSizeBasedClusteringPlanStrategy": None,
    "SparkRecentDaysClusteringPlanStrategy": FilterMode.RECENT_DAYS,
    "JavaRecentDaysClusteringPlanStrategy": FilterMode.RECENT_DAYS,
    "FlinkRecentDaysClusteringPlanStrategy": FilterMode.RECENT_DAYS,
    "SparkSelectedPartitionsClusteringPlanStrategy": FilterMode.SELECTED_PARTITIONS,
}
# Hudi's strategies that write the same rows to the same files, each in its own way.
_EXECUTION_CLASSES = frozenset(
    {
        "SparkSortAndSizeExecutionStrategy",
        "JavaSortAndSizeExecutionStrategy",
        "SparkStreamCopyClusteringExecutionStrategy",
        "SparkBinaryCopyClusteringExecutionStrategy",
    }
)


def _plan_class(text: str) -> str:
    name = text.strip().removeprefix(_PLAN_PACKAGE)
    if name not in _PLAN_CLASSES:
        raise UnsupportedError(
            "clusterings are planned by size, not by this strategy",
            strategy=text,
            known=[_PLAN_PACKAGE + class_name for class_name in _PLAN_CLASSES],
        )
    return name


def execution_class(text: str) -> str:
    """Return the class name of an execution strategy; UnsupportedError if it is not supported."""
    if text.strip().removeprefix(_RUN_PACKAGE) not in _EXECUTION_CLASSES:
        raise UnsupportedError(
            "clusterings are not executed by this strategy",
            strategy=text,
            known=[_RUN_PACKAGE + class_name for class_name in sorted(_EXECUTION_CLASSES)],
        )
    return text.strip()


def _regex(text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        raise ValueError(f"no regular expression: {error}") from error
    return text


def _layout(text: str) -> Layout:
    name = text.strip().upper().replace("-", "").replace("_", "")
    if name not in list(Layout):
        raise ValueError("one of linear, z-order, hilbert expected")
    return Layout(name)


def _slice_orders(text: str) -> tuple[SliceOrder, ...]:
    orders = tuple(parse_word(SliceOrder)(part) for part in csv(text))
    if not orders:
        raise ValueError(f"one of {', '.join(SliceOrder)} expected")
    return tuple(SliceOrder(order) for order in orders)


def _partition(text: str) -> str | None:
    return text.strip().strip("/") or None


def _partitions(text: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(part.strip("/") for part in csv(text)))


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusteringSettings(PlanningSettings):
    """Which files are clustered, when, and how the new files are written."""

    plan_class: str = option(
        "hoodie.clustering.plan.strategy.class",
        "SparkSizeBasedClusteringPlanStrategy",
        parse=_plan_class,
        doc="How a clustering is planned: by size, which all of Hudi's supported classes do.",
    )
    execution_class: str = option(
        "hoodie.clustering.execution.strategy.class",
        EXECUTION_CLASS,
        parse=execution_class,
        doc="How a clustering is executed: by sorting and sizing, as Hudi's supported classes do.",
    )
    filter_mode: FilterMode = option(
        "hoodie.clustering.plan.partition.filter.mode",
        FilterMode.NONE,
        parse=parse_word(FilterMode),
        doc="Which partitions are clustered: NONE (all), RECENT_DAYS, SELECTED_PARTITIONS or "
        "DAY_ROLLING (every hour of the day another 24th).",
    )
    lookback_partitions: int = option(
        "hoodie.clustering.plan.strategy.daybased.lookback.partitions",
        2,
        parse=int,
        doc="With RECENT_DAYS: how many of the newest partitions are clustered; 0: all.",
    )
    skipped_partitions: int = option(
        "hoodie.clustering.plan.strategy.daybased.skipfromlatest.partitions",
        0,
        parse=at_least(0),
        doc="With RECENT_DAYS: how many of the newest partitions are skipped.",
    )
    begin_partition: str | None = option(
        "hoodie.clustering.plan.strategy.cluster.begin.partition",
        None,
        parse=_partition,
        doc="With SELECTED_PARTITIONS: the first partition.",
    )
    end_partition: str | None = option(
        "hoodie.clustering.plan.strategy.cluster.end.partition",
        None,
        parse=_partition,
        doc="With SELECTED_PARTITIONS: the last partition.",
    )
    partition_regex: str = option(
        "hoodie.clustering.plan.strategy.partition.regex.pattern",
        "",
        parse=_regex,
        doc="Only partitions whose whole path matches this regular expression are clustered.",
    )
    selected_partitions: tuple[str, ...] = option(
        "hoodie.clustering.plan.strategy.partition.selected",
        (),
        parse=_partitions,
        doc="Exactly these partitions are clustered, whether they were written recently or not.",
    )
    small_file_limit: int = option(
        "hoodie.clustering.plan.strategy.small.file.limit",
        314_572_800,
        parse=at_least(0),
        doc="Files below this size are clustered.",
    )
    target_bytes: int = option(
        TARGET_BYTES,
        1_073_741_824,
        parse=at_least(1),
        doc="The size at which a clustered file is full.",
    )
    group_bytes: int = option(
        "hoodie.clustering.plan.strategy.max.bytes.per.group",
        2_147_483_648,
        parse=at_least(1),
        doc="The maximum size of a group of files that are clustered together.",
    )
    max_groups: int = option(
        "hoodie.clustering.plan.strategy.max.num.groups",
        30,
        parse=at_least(1),
        doc="The maximum number of groups in a clustering; the next one clusters the rest.",
    )
    sort_columns: tuple[str, ...] = option(
        SORT_COLUMNS,
        (),
        parse=csv,
        doc="The columns that rows are sorted by; unset: rows stay in the order they have.",
    )
    layout: Layout = option(
        LAYOUT,
        Layout.LINEAR,
        parse=_layout,
        doc="How rows are sorted: linear (by the first column, then the second), or along a curve "
        "through all columns: z-order or hilbert.",
    )
    single_groups: bool = option(
        "hoodie.clustering.plan.strategy.single.group.clustering.enabled",
        True,
        parse=parse_bool,
        doc="Whether a group of a single file is clustered.",
    )
    slice_order: tuple[SliceOrder, ...] = option(
        "hoodie.clustering.plan.strategy.file.slices.sort.by",
        (SliceOrder.SIZE,),
        parse=_slice_orders,
        doc="Which files are grouped first: the largest (SIZE), or the oldest (INSTANT_TIME).",
    )
    inline: bool = option(
        "hoodie.clustering.inline",
        False,
        parse=parse_bool,
        aliases=("hoodie.datasource.clustering.inline.enable",),
        doc="Whether a write is followed by a clustering if one is due.",
    )
    schedule_inline: bool = option(
        "hoodie.clustering.schedule.inline",
        False,
        parse=parse_bool,
        doc="Whether a write schedules a clustering if one is due; another process executes it.",
    )
    asynchronous: bool = option(
        "hoodie.clustering.async.enabled",
        False,
        parse=parse_bool,
        aliases=("hoodie.datasource.clustering.async.enable",),
        doc="Whether a write schedules a clustering, if one is due, and executes it in a thread "
        "beside the next writes; such a plan is cancellable.",
    )
    inline_commits: int = option(
        INLINE_COMMITS,
        4,
        parse=at_least(0),
        doc="A clustering is due after this many writes since the last one.",
    )
    async_commits: int = option(
        ASYNC_COMMITS,
        4,
        parse=at_least(0),
        doc="The same, where clusterings are executed concurrently with writes.",
    )
    missing_seconds: int = missing_seconds_option()
    sort_bytes: int = option(
        "lakewright.clustering.sort.bytes",
        268_435_456,
        parse=at_least(1),
        doc="How many bytes of rows a task sorts in memory; it spills more rows to disk.",
    )

    @property
    def ordering(self) -> Ordering | None:
        """The order in which rows are written; None if they are not sorted."""
        return Ordering(self.sort_columns, self.layout) if self.sort_columns else None

    @property
    def params(self) -> dict[str, str]:
        """The options that a plan records for its execution."""
        params: dict[str, str] = {}
        if self.sort_columns:
            params = {SORT_COLUMNS: ",".join(self.sort_columns), LAYOUT: str(self.layout)}
        if self.target_bytes != ClusteringSettings().target_bytes:
            params[TARGET_BYTES] = str(self.target_bytes)
        return params

    @property
    def candidate_limits(self) -> dict[str, str]:
        """Which files are small enough, as extra metadata that `takes_more` compares."""
        limits = {"smallFileLimit": self.small_file_limit, "singleGroups": self.single_groups}
        return {CANDIDATE_LIMITS: json.dumps(limits, separators=(",", ":"))}

    def takes_more(self, extra: Mapping[str, str]) -> bool:
        """Whether files can be small enough now that were not for a plan with this metadata."""
        try:
            limits = json.loads(extra[CANDIDATE_LIMITS])
            larger = self.small_file_limit > int(limits["smallFileLimit"])
            return larger or (self.single_groups and not limits["singleGroups"])
        except (KeyError, TypeError, ValueError):
            return False

    def writes_like(self, params: Mapping[str, str]) -> bool:
        """Whether a clustering with these recorded options has written files as this one would.

        A clustering that does not sort leaves sorted files as they are.
        """
        expected = self.params
        if not self.sort_columns:
            expected = {**expected, **{k: params[k] for k in (SORT_COLUMNS, LAYOUT) if k in params}}
        return expected == dict(params)


CLUSTERING_KEYS = option_keys(ClusteringSettings)


def clustering_settings(options: Mapping[str, str]) -> ClusteringSettings:
    """The settings from options; a plan strategy class may imply the partition filter."""
    settings = settings_from(ClusteringSettings, options)
    implied = _PLAN_CLASSES[settings.plan_class]
    return settings if implied is None else replace(settings, filter_mode=implied)


def commits_to_wait_for(settings: ClusteringSettings, options: Mapping[str, str]) -> int:
    """How many writes must follow the last clustering; 0 unless options ask to wait.

    No default delays a clustering that a user runs by hand.
    """
    requested = [0]
    if settings.inline or INLINE_COMMITS in options:
        requested.append(settings.inline_commits)
    if settings.asynchronous or settings.schedule_inline or ASYNC_COMMITS in options:
        requested.append(settings.async_commits)
    return max(requested)
