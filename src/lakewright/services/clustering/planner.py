"""Plans a clustering: chooses the partitions, and groups their small file slices.

Does no I/O.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from itertools import groupby

from lakewright.model.file_group import FileSlice, GroupKey
from lakewright.model.instant import Action
from lakewright.model.plans import (
    ESCALATED,
    ClusteringGroup,
    ClusteringPlan,
    ClusteringSlice,
    ClusteringStrategy,
    Skip,
)
from lakewright.model.timeline import Timeline
from lakewright.services.clustering.options import ClusteringSettings, FilterMode, SliceOrder
from lakewright.services.planning import (
    HELD_BY,
    IncrementalPartitionAwareStrategy,
    IncrementalWindow,
    PartitionRanking,
    SkippedPartitions,
)

_HOURS = 24

Filtered = tuple[list[str], list[str]]


class AllPartitions:
    """Clusters all partitions."""

    def filter_partition_paths(
        self, settings: ClusteringSettings, partitions: Sequence[str]
    ) -> Filtered:
        """Return all partitions."""
        return sorted(partitions), []


class RecentPartitions:
    """Clusters the newest partitions, except the very newest, which are still being written."""

    def filter_partition_paths(
        self, settings: ClusteringSettings, partitions: Sequence[str]
    ) -> Filtered:
        """Return the partitions within the look-back, and the others."""
        newest = sorted(partitions, reverse=True)
        first = settings.skipped_partitions
        end = first + settings.lookback_partitions if settings.lookback_partitions > 0 else None
        return _split(partitions, newest[first:end])

    def latest_partitions(
        self, settings: ClusteringSettings, partitions: Sequence[str]
    ) -> list[str]:
        """Return the partitions up to the end of the look-back, the newest first."""
        count = settings.skipped_partitions + max(settings.lookback_partitions, 0)
        return sorted(partitions, reverse=True)[:count]


class PartitionRange:
    """Clusters the partitions between two bounds, both included."""

    def filter_partition_paths(
        self, settings: ClusteringSettings, partitions: Sequence[str]
    ) -> Filtered:
        """Return the partitions in the range, and the others; a missing bound leaves it open."""
        begin, end = settings.begin_partition, settings.end_partition
        chosen = [
            path
            for path in partitions
            if (begin is None or path >= begin) and (end is None or path <= end)
        ]
        return _split(partitions, chosen)


@dataclass(frozen=True, slots=True)
class RollingPartitions:
    """Clusters every 24th partition, by the hour of the day: all of them within a day."""

    hour: int

    def filter_partition_paths(
        self, settings: ClusteringSettings, partitions: Sequence[str]
    ) -> Filtered:
        """Return the partitions of this hour, and the others."""
        return _split(partitions, sorted(partitions)[self.hour % _HOURS :: _HOURS])


def strategy_of(mode: FilterMode, hour: int) -> IncrementalPartitionAwareStrategy:
    """The filter of a mode; `hour` is the hour of the day in the table's time zone."""
    strategies: dict[FilterMode, IncrementalPartitionAwareStrategy] = {
        FilterMode.NONE: AllPartitions(),
        FilterMode.RECENT_DAYS: RecentPartitions(),
        FilterMode.SELECTED_PARTITIONS: PartitionRange(),
        FilterMode.DAY_ROLLING: RollingPartitions(hour),
    }
    return strategies[mode]


def choose_partitions(
    settings: ClusteringSettings,
    partitions: Sequence[str],
    hour: int,
    *,
    ranked_with: Sequence[str] = (),
) -> tuple[list[str], dict[str, str]]:
    """The partitions to cluster, and for each of the others why it is not clustered.

    Partitions that the options select are chosen even if they are not in `partitions`.
    `ranked_with` are other partitions of the table, for filters that rank partitions.
    """
    own = {*partitions, *settings.selected_partitions}
    if settings.selected_partitions:
        ranked = list(settings.selected_partitions)
        skipped = dict.fromkeys(partitions, "not named in partition.selected")
    else:
        ranked = _matching(settings, [*partitions, *ranked_with])
        skipped = dict.fromkeys(partitions, "filtered by partition.regex.pattern")
    selected, _ = strategy_of(settings.filter_mode, hour).filter_partition_paths(settings, ranked)
    chosen = [path for path in selected if path in own]
    reason = f"filtered by {settings.filter_mode}"
    skipped |= {path: reason for path in ranked if path in own}
    return chosen, {path: skipped[path] for path in sorted(skipped.keys() - set(chosen))}


def ranking_filters(settings: ClusteringSettings) -> str | None:
    """Identify the partition filters, if they rank partitions; else return None."""
    if settings.selected_partitions or settings.filter_mode is not FilterMode.RECENT_DAYS:
        return None
    bounds = f"{settings.skipped_partitions} {settings.lookback_partitions}"
    return f"{settings.filter_mode} {bounds} {settings.partition_regex}".rstrip()


def rank_partitions(
    settings: ClusteringSettings, partitions: Sequence[str]
) -> PartitionRanking | None:
    """Return the latest of these partitions; None if the filters do not rank partitions."""
    filters = ranking_filters(settings)
    if filters is None:
        return None
    ranked = _matching(settings, partitions)
    return PartitionRanking(
        filters, tuple(sorted(RecentPartitions().latest_partitions(settings, ranked)))
    )


def _matching(settings: ClusteringSettings, partitions: Sequence[str]) -> list[str]:
    matches = re.compile(settings.partition_regex or ".*", re.DOTALL).fullmatch
    return [path for path in dict.fromkeys(partitions) if matches(path)]


def _split(partitions: Sequence[str], chosen: Sequence[str]) -> Filtered:
    """The chosen partitions and the others, both sorted."""
    distinct = set(chosen)
    return sorted(distinct), sorted(set(partitions) - distinct)


# Partitions in which writers preempt cancellable plans.

_AFTER_OTHERS = "planned after the others"


class Turn(IntEnum):
    """In which order partitions are planned; a plan has partitions of one turn only."""

    FIRST = 0
    PREEMPTED = 1
    ESCALATED = 2


@dataclass(frozen=True, slots=True)
class Preemptions:
    """How often in a row writers have preempted plans, by partition.

    After `escalate_after` times a plan is one that writers wait for; 0: never.
    """

    counts: Mapping[str, int] = field(default_factory=dict, hash=False)
    escalate_after: int = 0

    def turn(self, partition: str) -> Turn:
        """Return when a partition is planned."""
        count = self.counts.get(partition, 0)
        if self.escalate_after and count >= self.escalate_after:
            return Turn.ESCALATED
        return Turn.PREEMPTED if count else Turn.FIRST

    def max_slices(self, partition: str, slices: int) -> int:
        """Return how many slices a group may have: half as many after each preemption.

        The smaller a group, the shorter it takes, and the fewer writes change one of its slices.
        """
        return max(2, slices >> min(self.counts.get(partition, 0), _MAX_HALVINGS))

    def reason(self, partition: str) -> str:
        """Return why a partition is left to a later plan."""
        return f"preempted {self.counts.get(partition, 0)} times, {_AFTER_OTHERS}"


def is_left_to_next_plan(reason: str) -> bool:
    """Whether a partition was skipped only to be planned after the others."""
    return reason.endswith(_AFTER_OTHERS)


_MAX_HALVINGS = 30
SMALLER_GROUPS = "clustered in smaller groups, as writers preempted larger ones"


# Grouping of small file slices.


_MB = 1 << 20
_ACTION = Action.CLUSTERING


def commits_since_clustering(timeline: Timeline) -> int:
    """The number of completed writes requested after the last clustering was scheduled.

    A pending clustering counts as the last one: otherwise every write would schedule another one
    until it is executed.
    """
    planned = [i.requested_at for i in timeline.pending(_ACTION)]
    planned += [i.requested_at for i in timeline.completed_services(_ACTION)]
    last = max(planned, default="")
    return sum(i.requested_at > last for i in timeline.completed_writes)


def check_clustering_trigger(timeline: Timeline, min_commits: int) -> Skip | None:
    """Why a clustering is not due yet; None if it is."""
    count = commits_since_clustering(timeline)
    if count >= min_commits:
        return None
    return Skip(f"{count} of {min_commits} commits since the last clustering")


def plan_clustering(
    slices: Iterable[FileSlice],
    settings: ClusteringSettings,
    *,
    window: IncrementalWindow,
    locked: Mapping[GroupKey, str],
    path_of: Callable[[str], str],
    filtered: Mapping[str, str] | None = None,
    default_size: int = 125_829_120,
    clustered: Collection[str] = (),
    recorded: Mapping[str, str] | None = None,
    preemptions: Preemptions | None = None,
) -> ClusteringPlan | Skip:
    """Group the newest file slices of some partitions into a plan.

    `locked` maps the file groups of pending plans to these plans, `filtered` maps partitions to why
    they are skipped, `path_of` makes a path absolute, and `default_size` is the assumed size of a
    slice without a base file. `clustered` are the instants of clusterings that wrote files as this
    plan would, and `recorded` is extra metadata for the next plan. `preemptions` say in which
    partitions writers were faster before: these are planned once there is nothing else to plan, in
    smaller groups.

    A partition is missing if the plan leaves out a file slice of it that is to be clustered. That
    does not apply to large files, to files that a clustering has written and that would not become
    fewer, nor to single files if `single_groups` is off: the next plan need not check them again
    before another write.

    Of more groups than a plan may have, those with the oldest files are taken: what a plan has
    rewritten comes last in the next one.
    """
    skipped = SkippedPartitions(dict(filtered or {}))
    preempted = preemptions or Preemptions()
    candidates: dict[str, list[list[FileSlice]]] = {}
    for partition, small in _small_slices(slices, settings, locked, skipped):
        max_slices = preempted.max_slices(partition, len(small))
        worthwhile = [
            group
            for group in _slice_groups(small, settings, default_size, max_slices)
            if not _is_clustered(group, clustered, settings, default_size)
        ]
        if worthwhile:
            candidates[partition] = worthwhile
    turn = min(map(preempted.turn, candidates), default=Turn.FIRST)
    in_turn: list[list[FileSlice]] = []
    for partition, partition_groups in candidates.items():
        if preempted.turn(partition) is not turn:
            skipped.add(partition, preempted.reason(partition))
            continue
        if partition in preempted.counts:
            # The files that these groups leave may be clustered further.
            skipped.add(partition, SMALLER_GROUPS)
        in_turn += partition_groups
    # Groups of partitions that were preempted most often come last, then those with newer files.
    in_turn.sort(
        key=lambda group: (preempted.counts.get(group[0].partition, 0), _oldest_instant(group))
    )
    for group in in_turn[settings.max_groups :]:
        skipped.add(group[0].partition, f"beyond the limit of {settings.max_groups} groups")
    groups = [
        _group(group, settings, path_of, default_size)
        for group in sorted(
            in_turn[: settings.max_groups],
            key=lambda group: (preempted.counts.get(group[0].partition, 0), group[0].partition),
        )
    ]
    if not groups:
        return _no_plan(skipped)
    extra = {**skipped.to_extra_metadata(), **(recorded or {})}
    return ClusteringPlan(
        groups=tuple(groups),
        strategy=ClusteringStrategy(class_name=settings.execution_class, params=settings.params),
        extra={
            **(extra if window.records_missing else {}),
            **({ESCALATED: "true"} if turn is Turn.ESCALATED else {}),
        },
        missing_partitions=skipped.partitions if window.records_missing else None,
    )


def _small_slices(
    slices: Iterable[FileSlice],
    settings: ClusteringSettings,
    locked: Mapping[GroupKey, str],
    skipped: SkippedPartitions,
) -> Iterator[tuple[str, list[FileSlice]]]:
    """Yield the slices of each partition that are to be clustered and that no plan locks."""
    ordered = sorted(slices, key=lambda item: (item.partition, item.file_id))
    for partition, partition_slices in groupby(ordered, key=lambda item: item.partition):
        small = [item for item in partition_slices if _is_small(item, settings)]
        for item in small:
            if (partition, item.file_id) in locked:
                skipped.add(partition, f"{HELD_BY}{locked[partition, item.file_id]}")
        yield partition, [item for item in small if (partition, item.file_id) not in locked]


def _no_plan(skipped: SkippedPartitions) -> Skip:
    if not skipped.reasons:
        return Skip("no file is small enough to be clustered")
    reasons = sorted(set(skipped.reasons.values()))
    return Skip(
        f"nothing can be clustered in {len(skipped.reasons)} partitions: {'; '.join(reasons[:3])}"
    )


def _is_small(item: FileSlice, settings: ClusteringSettings) -> bool:
    """Whether a slice is to be clustered; as in Hudi, the size of its log files does not count."""
    return (item.base.size if item.base else 0) < settings.small_file_limit


def _slice_groups(
    slices: Sequence[FileSlice],
    settings: ClusteringSettings,
    default_size: int,
    max_slices: int,
) -> Iterator[list[FileSlice]]:
    """Split the slices of one partition into groups of at most `group_bytes`."""
    group: list[FileSlice] = []
    total = 0
    for item in sorted(slices, key=lambda item: _order(item, settings.slice_order, default_size)):
        size = _base_size(item, default_size)
        if group and (total + size > settings.group_bytes or len(group) >= max_slices):
            yield from _if_worthwhile(group, total, settings)
            group, total = [], 0
        group.append(item)
        total += size
    yield from _if_worthwhile(group, total, settings)


def _if_worthwhile(
    group: list[FileSlice], total: int, settings: ClusteringSettings
) -> Iterator[list[FileSlice]]:
    if len(group) > 1 or total > settings.target_bytes or (group and settings.single_groups):
        yield group


def _is_clustered(
    group: Sequence[FileSlice],
    clustered: Collection[str],
    settings: ClusteringSettings,
    default_size: int,
) -> bool:
    """Whether another clustering of a group would make no fewer files of it.

    The expected number of files is an estimate, so files of one clustering are never clustered
    again on their own: that might go on for ever.
    """
    instants = {item.base.instant if item.base and not item.logs else "" for item in group}
    if not instants <= set(clustered):
        return False
    return len(instants) == 1 or _output_groups(group, settings, default_size) >= len(group)


def _oldest_instant(group: Sequence[FileSlice]) -> str:
    return min(item.base_instant for item in group)


def _output_groups(
    slices: Sequence[FileSlice], settings: ClusteringSettings, default_size: int
) -> int:
    total = sum(_base_size(item, default_size) for item in slices)
    return max(1, -(-total // settings.target_bytes))


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
    slices: Sequence[FileSlice],
    settings: ClusteringSettings,
    path_of: Callable[[str], str],
    default_size: int,
) -> ClusteringGroup:
    return ClusteringGroup(
        slices=tuple(_slice(item, path_of) for item in slices),
        metrics=_metrics(slices, default_size),
        output_groups=_output_groups(slices, settings, default_size),
    )


def _slice(item: FileSlice, path_of: Callable[[str], str]) -> ClusteringSlice:
    return ClusteringSlice(
        partition=item.partition,
        file_id=item.file_id,
        # Hudi writes an empty string here, not null.
        base_path=path_of(item.path(item.base)) if item.base else "",
        log_paths=tuple(path_of(item.path(log)) for log in item.logs),
        bootstrap_path="",
    )


def _metrics(slices: Sequence[FileSlice], default_size: int) -> dict[str, float]:
    """The cost of a group as Hudi computes it, in whole megabytes."""
    read = sum(item.size for item in slices) // _MB
    write = sum(_base_size(item, default_size) for item in slices) // _MB
    return {
        "TOTAL_IO_READ_MB": float(read),
        "TOTAL_IO_WRITE_MB": float(write),
        "TOTAL_IO_MB": float(read + write),
        "TOTAL_LOG_FILES_SIZE": float(sum(item.log_size for item in slices)),
        "TOTAL_LOG_FILES": float(sum(len(item.logs) for item in slices)),
    }
