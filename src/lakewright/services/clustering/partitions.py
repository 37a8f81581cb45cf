"""Which partitions are clustered, of those that planning looks at."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from lakewright.services.clustering.settings import ClusteringSettings, FilterMode
from lakewright.services.window import IncrementalPartitionAwareStrategy

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
