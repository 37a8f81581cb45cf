"""Plans compactions: applies strategies to file slices and makes a plan of their selection.

Strategies are registered by name; `StrategyChain` applies several in order. Nothing here reads or
writes the table.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from lakewright.errors import InvalidError
from lakewright.model.file_group import FileSlice, GroupKey
from lakewright.model.plans import CompactionOperation, CompactionPlan, Skip
from lakewright.services.compaction.event_time import (
    EventTimeBasedCompactionStrategy,
    PlacedCandidates,
)
from lakewright.services.compaction.options import CompactionSettings
from lakewright.services.compaction.strategies import (
    BoundedIO,
    BoundedPartition,
    Candidate,
    DayBased,
    ExplainsSkips,
    LogFileNum,
    LogFileSize,
    PartitionRegex,
    Selection,
    Strategy,
    StrategyContext,
    Unbounded,
    UnboundedPartition,
    candidates,
)
from lakewright.services.planning import (
    HELD_BY,
    IncrementalPartitionAwareStrategy,
    IncrementalWindow,
    PartitionRanking,
    RanksPartitions,
    SkippedPartitions,
)

Factory = Callable[[StrategyContext], Strategy]

_HUDI_PACKAGE = "org.apache.hudi.table.action.compact.strategy."
_HUDI_CLASSES = {
    "LogFileSizeBasedCompactionStrategy": "log_file_size",
    "LogFileNumBasedCompactionStrategy": "log_file_num",
    "BoundedIOCompactionStrategy": "bounded_io",
    "UnBoundedCompactionStrategy": "unbounded",
    "DayBasedCompactionStrategy": "day_based",
    "BoundedPartitionAwareCompactionStrategy": "bounded_partition",
    "UnBoundedPartitionAwareCompactionStrategy": "unbounded_partition",
    "PartitionRegexBasedCompactionStrategy": "partition_regex",
    "EventTimeBasedCompactionStrategy": "event_time",
}
_FACTORIES: dict[str, Factory] = {
    "log_file_size": lambda _: LogFileSize(),
    "log_file_num": lambda _: LogFileNum(),
    "bounded_io": lambda _: BoundedIO(),
    "unbounded": lambda _: Unbounded(),
    "day_based": lambda context: DayBased(context.today),
    "bounded_partition": lambda context: BoundedPartition(context.today),
    "unbounded_partition": lambda context: UnboundedPartition(context.today),
    "partition_regex": lambda _: PartitionRegex(),
    "event_time": lambda context: EventTimeBasedCompactionStrategy(context.zone),
}


def register_strategy(name: str, factory: Factory) -> None:
    """Register a strategy for `hoodie.compaction.strategy`, in this process.

    A strategy that is registered later replaces one of the same name. The name may be that of a
    class; it has no comma.

    Raises:
        InvalidError: the name is empty or has a comma.
    """
    if not name.strip() or "," in name:
        raise InvalidError("no name for a strategy", name=name)
    _FACTORIES[name.strip()] = factory


@dataclass(frozen=True, slots=True)
class StrategyChain:
    """One strategy or several, with names: each selects from what the one before has selected."""

    parts: tuple[tuple[str, Strategy], ...]

    @property
    def by_event_time(self) -> EventTimeBasedCompactionStrategy | None:
        """The strategy that selects by event time; None if there is none."""
        strategies = (p for _, p in self.parts if isinstance(p, EventTimeBasedCompactionStrategy))
        return next(strategies, None)

    @property
    def is_aware(self) -> bool:
        """Whether all strategies can select from some of the partitions."""
        return all(isinstance(part, IncrementalPartitionAwareStrategy) for _, part in self.parts)

    def ranking_filters(self, settings: CompactionSettings) -> str | None:
        """Identify the filters, if some of them rank partitions; else return None."""
        if not any(isinstance(part, RanksPartitions) for _, part in self.parts):
            return None
        pattern = settings.partition_pattern
        filters = [name for name, _ in self.parts]
        filters += [str(settings.target_partitions), pattern.pattern if pattern else ""]
        return " ".join(filters)

    def rank(
        self, settings: CompactionSettings, partitions: Sequence[str]
    ) -> PartitionRanking | None:
        """Return the latest of these partitions; None if no strategy ranks partitions."""
        filters = self.ranking_filters(settings)
        if filters is None:
            return None
        latest: list[str] = []
        remaining = list(dict.fromkeys(partitions))
        for _, part in self.parts:
            if isinstance(part, RanksPartitions):
                latest += part.latest_partitions(settings, remaining)
            if isinstance(part, IncrementalPartitionAwareStrategy):
                remaining = part.filter_partition_paths(settings, remaining)[0]
        return PartitionRanking(filters, tuple(sorted(set(latest))))

    def filter_partitions(
        self,
        settings: CompactionSettings,
        partitions: Sequence[str],
        skipped: SkippedPartitions,
        *,
        ranked_with: Sequence[str] = (),
    ) -> list[str]:
        """Return the partitions to list; adds the others to `skipped`.

        `ranked_with` are other partitions of the table, for strategies that rank partitions.
        """
        own = set(partitions)
        remaining = list(dict.fromkeys([*partitions, *ranked_with]))
        for name, part in self.parts:
            if not isinstance(part, IncrementalPartitionAwareStrategy):
                continue
            selected = set(part.filter_partition_paths(settings, remaining)[0])
            for path in remaining:
                if path not in selected and path in own:
                    reason = (
                        part.skip_reason(settings, path)
                        if isinstance(part, ExplainsSkips)
                        else None
                    )
                    skipped.add(path, reason or f"filtered by {name}")
            remaining = [path for path in remaining if path in selected]
        return [path for path in remaining if path in own]

    def choose(self, settings: CompactionSettings, candidates: Sequence[Candidate]) -> Selection:
        """Return what all strategies select, in the order of the last, and why not the others."""
        skipped: dict[GroupKey, str] = {}
        remaining = candidates
        for name, part in self.parts:
            selection = part.choose(settings, remaining)
            chosen = {c.key for c in selection.chosen}
            skipped |= {
                c.key: selection.skipped.get(c.key, f"not chosen by {name}")
                for c in remaining
                if c.key not in chosen
            }
            remaining = selection.chosen
        return Selection(remaining, skipped)


def strategy_for(settings: CompactionSettings, context: StrategyContext) -> StrategyChain:
    """Return the strategies that the settings name, created for one plan."""
    return StrategyChain(
        tuple((_short_name(name), _factory(name)(context)) for name in settings.strategies)
    )


def _short_name(name: str) -> str:
    return _HUDI_CLASSES.get(name.removeprefix(_HUDI_PACKAGE), name)


def _factory(name: str) -> Factory:
    factory = _FACTORIES.get(name) or _FACTORIES.get(_short_name(name))
    if factory is None:
        raise InvalidError(
            "there is no such compaction strategy", strategy=name, known=sorted(_FACTORIES)
        )
    return factory


# Making plans

_MAX_REASONS = 5

FindCandidates = Callable[[Sequence[FileSlice], SkippedPartitions], PlacedCandidates | Skip]


def plan_compaction(
    slices: Iterable[FileSlice],
    *,
    strategy: StrategyChain,
    settings: CompactionSettings,
    window: IncrementalWindow,
    locked: Mapping[GroupKey, str],
    filtered: Mapping[str, str] | None = None,
    find_candidates: FindCandidates | None = None,
    ranking: PartitionRanking | None = None,
) -> CompactionPlan | Skip:
    """Return the plan for these slices, the newest of their file groups; or why there is none.

    `locked` are the file groups of pending plans, with the plan. `filtered` are the partitions of
    the window that were not listed, with the reason. `find_candidates` replaces the slices with
    candidates first, for a plan by event time. `ranking` is recorded for the next plan.
    """
    skipped = SkippedPartitions(dict(filtered or {}))
    slices = free_slices(slices, locked, skipped, without_logs=settings.exact_split)
    placed = find_candidates(slices, skipped) if find_candidates is not None else None
    if isinstance(placed, Skip):
        return placed if slices else Skip(empty_plan_reason("compact", skipped))
    free = placed.candidates if placed else candidates(slices, settings.max_file_size)
    selection = _limit(strategy.choose(settings, free), settings.max_operations)
    _check_selection(selection, free)
    chosen = {c.key for c in selection.chosen}
    for item in free:
        if item.key not in chosen:
            skipped.add(item.slice.partition, selection.skipped.get(item.key, "not chosen"))
        elif settings.exact_split:
            skipped.add(item.slice.partition, "what is after the threshold stays in log files")
    operations = tuple(c.operation for c in selection.chosen)
    plan = finish_plan(operations, skipped, window)
    if plan is None:
        return Skip(empty_plan_reason("compact", skipped))
    added = dict(placed.extra) if placed else {}
    if ranking is not None and window.records_missing:
        added |= ranking.to_extra_metadata()
    return replace(plan, extra={**plan.extra, **added}) if added else plan


def _limit(selection: Selection, max_operations: int) -> Selection:
    """Return the first candidates of a selection, up to the limit; 0 is no limit."""
    excess = selection.chosen[max_operations:] if max_operations else ()
    if not excess:
        return selection
    reason = f"over the limit of {max_operations} file groups"
    return Selection(
        selection.chosen[:max_operations],
        {**selection.skipped, **{c.key: reason for c in excess}},
    )


def free_slices(
    slices: Iterable[FileSlice],
    locked: Mapping[GroupKey, str],
    skipped: SkippedPartitions,
    *,
    without_logs: bool = False,
) -> list[FileSlice]:
    """Return the slices with log files that no pending plan locks; adds the others to `skipped`.

    With `without_logs` slices without log files are returned as well.
    """
    free = []
    for slice_ in slices:
        pending_plan = locked.get((slice_.partition, slice_.file_id))
        if not slice_.logs and not without_logs:
            continue
        if pending_plan is None:
            free.append(slice_)
        else:
            skipped.add(slice_.partition, f"{HELD_BY}{pending_plan}")
    return free


def finish_plan(
    operations: Sequence[CompactionOperation], skipped: SkippedPartitions, window: IncrementalWindow
) -> CompactionPlan | None:
    """Return the plan of these operations; None without any, as no plan may be empty."""
    if not operations:
        return None
    if not window.records_missing:
        return CompactionPlan(operations=tuple(operations))
    return CompactionPlan(
        operations=tuple(operations),
        extra=skipped.to_extra_metadata(),
        missing_partitions=skipped.partitions,
    )


def empty_plan_reason(verb: str, skipped: SkippedPartitions) -> str:
    """Return why a plan has no operations, by the most frequent reasons of skipped partitions."""
    if not skipped.reasons:
        return f"nothing to {verb}: no log files"
    counts = sorted(Counter(skipped.reasons.values()).items(), key=lambda item: (-item[1], item[0]))
    reasons = [f"{reason} ({_count_text(count)})" for reason, count in counts[:_MAX_REASONS]]
    more = [f"{len(counts) - _MAX_REASONS} more reasons"] * (len(counts) > _MAX_REASONS)
    return f"nothing to {verb}: {'; '.join([*reasons, *more])}"


def _count_text(count: int) -> str:
    return f"{count} partition{'s' * (count > 1)}"


def _files(operation: CompactionOperation) -> tuple[str, str | None, list[str]]:
    return operation.base_instant, operation.base_file, sorted(operation.logs)


def _check_selection(selection: Selection, free: Sequence[Candidate]) -> None:
    """Raise InvalidError if a strategy, which may be a user's, has changed the candidates.

    A log file that is missing in a plan would lie below the new base file, where no reader reads
    it: its rows would be lost.
    """
    expected = {item.key: _files(item.operation) for item in free}
    checked: set[GroupKey] = set()
    for item in selection.chosen:
        operation = item.operation
        key = (operation.partition, operation.file_id)
        if key in checked or item.key != key or expected.get(key) != _files(operation):
            raise InvalidError(
                "the strategy chose what is no candidate, or not all files of one",
                partition=operation.partition,
                file_id=operation.file_id,
                logs=operation.logs,
            )
        checked.add(key)
