"""Which partitions are clustered, of those that planning looks at."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from lakewright.model.file_group import FileSlice, GroupKey
from lakewright.model.instant import Action
from lakewright.model.plans import (
    ClusteringGroup,
    ClusteringPlan,
    ClusteringSlice,
    ClusteringStrategy,
    Skip,
)
from lakewright.model.timeline import Timeline
from lakewright.services.clustering.options import ClusteringSettings, FilterMode, SliceOrder
from lakewright.services.planning import (
    IncrementalPartitionAwareStrategy,
    IncrementalWindow,
    SkippedPartitions,
)

_HOURS = 24

Filtered = tuple[list[str], list[str]]


class AllPartitions:
    """No filter."""

    def filter_partition_paths(
        self, settings: ClusteringSettings, partitions: Sequence[str]
    ) -> Filtered:
        """All of them."""
        return sorted(partitions), []


class RecentPartitions:
    """The newest, but for the very newest, which are still being written."""

    def filter_partition_paths(
        self, settings: ClusteringSettings, partitions: Sequence[str]
    ) -> Filtered:
        """Those within the look-back."""
        newest = sorted(partitions, reverse=True)
        first = settings.skipped_partitions
        end = first + settings.lookback_partitions if settings.lookback_partitions > 0 else None
        return _apart(partitions, newest[first:end])


class PartitionRange:
    """From one partition to another, both included."""

    def filter_partition_paths(
        self, settings: ClusteringSettings, partitions: Sequence[str]
    ) -> Filtered:
        """Those in the range; without a bound it is open on that side."""
        begin, end = settings.begin_partition, settings.end_partition
        chosen = [
            path
            for path in partitions
            if (begin is None or path >= begin) and (end is None or path <= end)
        ]
        return _apart(partitions, chosen)


@dataclass(frozen=True, slots=True)
class RollingPartitions:
    """Every 24th, beginning with the one that the hour names: all of them in a day."""

    hour: int

    def filter_partition_paths(
        self, settings: ClusteringSettings, partitions: Sequence[str]
    ) -> Filtered:
        """Those whose turn it is in this hour."""
        return _apart(partitions, sorted(partitions)[self.hour % _HOURS :: _HOURS])


def strategy_of(mode: FilterMode, hour: int) -> IncrementalPartitionAwareStrategy:
    """The filter of a mode; `hour` is that of the table's zone."""
    strategies: dict[FilterMode, IncrementalPartitionAwareStrategy] = {
        FilterMode.NONE: AllPartitions(),
        FilterMode.RECENT_DAYS: RecentPartitions(),
        FilterMode.SELECTED_PARTITIONS: PartitionRange(),
        FilterMode.DAY_ROLLING: RollingPartitions(hour),
    }
    return strategies[mode]


def choose_partitions(
    settings: ClusteringSettings, partitions: Sequence[str], hour: int
) -> tuple[list[str], dict[str, str]]:
    """The partitions to cluster, and of the others why not.

    Named partitions are taken whether they are among those that planning looks at or not.
    """
    left: dict[str, str] = {}
    candidates = list(partitions)
    if settings.selected_partitions:
        candidates = list(settings.selected_partitions)
        left = dict.fromkeys(partitions, "not named in partition.selected")
    elif settings.partition_regex:
        fits = re.compile(settings.partition_regex).fullmatch
        candidates = [path for path in partitions if fits(path)]
        left = dict.fromkeys(partitions, "filtered by partition.regex.pattern")
    strategy = strategy_of(settings.filter_mode, hour)
    chosen, _ = strategy.filter_partition_paths(settings, candidates)
    mode = f"filtered by {settings.filter_mode}"
    left |= dict.fromkeys(candidates, mode)
    return chosen, {path: left[path] for path in sorted(left.keys() - set(chosen))}


def _apart(partitions: Sequence[str], chosen: Sequence[str]) -> Filtered:
    kept = set(chosen)
    return sorted(kept), sorted(set(partitions) - kept)


# ------------------------------------------------------------------------------------------------
# What a clustering rewrites: small file slices of a partition, put together to groups.


_MB = 1 << 20
_ACTION = Action.CLUSTERING


def commits_since_clustering(timeline: Timeline) -> int:
    """How many writes that completed were begun after the last clustering was planned.

    A clustering that is still pending counts as the last one: else every write would be followed
    by another plan until it is executed.
    """
    planned = [i.requested_at for i in timeline.pending(_ACTION)]
    planned += [i.requested_at for i in timeline.completed_services(_ACTION)]
    last = max(planned, default="")
    return sum(i.requested_at > last for i in timeline.completed_writes)


def check_clustering_trigger(timeline: Timeline, wanted: int) -> Skip | None:
    """Why it is not time for a clustering yet; None if it is."""
    found = commits_since_clustering(timeline)
    if found >= wanted:
        return None
    return Skip(f"{found} of {wanted} commits since the last clustering")


def plan_clustering(
    slices: Iterable[FileSlice],
    settings: ClusteringSettings,
    *,
    window: IncrementalWindow,
    held: Mapping[GroupKey, str],
    path_of: Callable[[str], str],
    filtered: Mapping[str, str] | None = None,
    default_size: int = 125_829_120,
) -> ClusteringPlan | Skip:
    """Decide what is clustered of the newest slices of some partitions. Pure.

    `held` are the file groups of pending plans and by whom, `filtered` the partitions that are
    left out and why, `path_of` makes a path absolute, and `default_size` is what a slice without
    base file is taken for.

    A partition is missing if something in it is due and not in the plan. Large files are not due,
    nor is a single file where such are not clustered: only a write makes them so.
    """
    left = SkippedPartitions(dict(filtered or {}))
    ordered = sorted(slices, key=lambda item: (item.partition, item.file_id))
    groups: list[ClusteringGroup] = []
    for partition, found in groupby(ordered, key=lambda item: item.partition):
        due = []
        for item in found:
            holder = held.get((partition, item.file_id))
            if not _is_small(item, settings):
                continue
            if holder is not None:
                left.add(partition, f"held by {holder}")
                continue
            due.append(item)
        for bundle in _bundles(due, settings, default_size):
            if len(groups) < settings.max_groups:
                groups.append(_group(bundle, settings, path_of, default_size))
            else:
                left.add(partition, f"beyond the limit of {settings.max_groups} groups")
    if not groups:
        return _nothing(left)
    return ClusteringPlan(
        groups=tuple(groups),
        strategy=ClusteringStrategy(class_name=settings.execution_class, params=settings.params),
        extra=left.to_extra_metadata() if window.is_recorded else {},
        missing_partitions=left.partitions if window.is_recorded else None,
    )


def _nothing(left: SkippedPartitions) -> Skip:
    if not left.reasons:
        return Skip("no file is small enough to be clustered")
    why = sorted(set(left.reasons.values()))
    return Skip(f"nothing can be clustered in {len(left.reasons)} partitions: {'; '.join(why[:3])}")


def _is_small(item: FileSlice, settings: ClusteringSettings) -> bool:
    """Whether a slice is due; as in Hudi its log files do not count."""
    return (item.base.size if item.base else 0) < settings.small_file_limit


def _bundles(
    slices: Sequence[FileSlice], settings: ClusteringSettings, default_size: int
) -> Iterator[list[FileSlice]]:
    """Slices of one partition in groups of the wanted size, one after the other."""
    bundle: list[FileSlice] = []
    total = 0
    for item in sorted(slices, key=lambda item: _order(item, settings.slice_order, default_size)):
        size = _base_size(item, default_size)
        if bundle and total + size > settings.group_bytes:
            yield from _worthwhile(bundle, total, settings)
            bundle, total = [], 0
        bundle.append(item)
        total += size
    yield from _worthwhile(bundle, total, settings)


def _worthwhile(
    bundle: list[FileSlice], total: int, settings: ClusteringSettings
) -> Iterator[list[FileSlice]]:
    if len(bundle) > 1 or total > settings.target_bytes or (bundle and settings.single_groups):
        yield bundle


def _order(
    item: FileSlice, orders: Sequence[SliceOrder], default_size: int
) -> tuple[int | str, ...]:
    keys: dict[SliceOrder, int | str] = {
        SliceOrder.SIZE: -_base_size(item, default_size),
        SliceOrder.INSTANT_TIME: item.base.instant if item.base else "",
    }
    return (*(keys[order] for order in orders), item.file_id)


def _base_size(item: FileSlice, default_size: int) -> int:
    return item.base.size if item.base else default_size


def _group(
    bundle: Sequence[FileSlice],
    settings: ClusteringSettings,
    path_of: Callable[[str], str],
    default_size: int,
) -> ClusteringGroup:
    total = sum(_base_size(item, default_size) for item in bundle)
    return ClusteringGroup(
        slices=tuple(_slice(item, path_of) for item in bundle),
        metrics=_metrics(bundle, default_size),
        output_groups=max(1, -(-total // settings.target_bytes)),
    )


def _slice(item: FileSlice, path_of: Callable[[str], str]) -> ClusteringSlice:
    return ClusteringSlice(
        partition=item.partition,
        file_id=item.file_id,
        # Real writers leave these empty, not out.
        base_path=path_of(item.path(item.base)) if item.base else "",
        log_paths=tuple(path_of(item.path(log)) for log in item.logs),
        bootstrap_path="",
    )


def _metrics(bundle: Sequence[FileSlice], default_size: int) -> dict[str, float]:
    """What the group costs, in whole megabytes as real writers count them."""
    read = sum(item.size for item in bundle) // _MB
    write = sum(_base_size(item, default_size) for item in bundle) // _MB
    return {
        "TOTAL_IO_READ_MB": float(read),
        "TOTAL_IO_WRITE_MB": float(write),
        "TOTAL_IO_MB": float(read + write),
        "TOTAL_LOG_FILES_SIZE": float(sum(item.log_size for item in bundle)),
        "TOTAL_LOG_FILES": float(sum(len(item.logs) for item in bundle)),
    }
