"""Strategies by name, and several of them one after the other."""

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
    IncrementalPartitionAwareStrategy,
    IncrementalWindow,
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
    "day_based": lambda scene: DayBased(scene.today),
    "bounded_partition": lambda scene: BoundedPartition(scene.today),
    "unbounded_partition": lambda scene: UnboundedPartition(scene.today),
    "partition_regex": lambda _: PartitionRegex(),
    "event_time": lambda scene: EventTimeBasedCompactionStrategy(scene.zone),
}


def register_strategy(name: str, factory: Factory) -> None:
    """Make a strategy known under a name for `hoodie.compaction.strategy`, in this process.

    The last one of a name counts; it may be the name of a class, but has no comma in it.
    """
    if not name.strip() or "," in name:
        raise InvalidError("no name for a strategy", name=name)
    _FACTORIES[name.strip()] = factory


@dataclass(frozen=True, slots=True)
class StrategyChain:
    """One strategy or several by name: each chooses from what the one before has left in."""

    parts: tuple[tuple[str, Strategy], ...]

    @property
    def by_event_time(self) -> EventTimeBasedCompactionStrategy | None:
        """The strategy that goes by event times, if there is one."""
        found = (p for _, p in self.parts if isinstance(p, EventTimeBasedCompactionStrategy))
        return next(found, None)

    @property
    def is_aware(self) -> bool:
        """Whether it can do with some of the partitions."""
        return all(isinstance(part, IncrementalPartitionAwareStrategy) for _, part in self.parts)

    def filter_partitions(
        self, settings: CompactionSettings, partitions: Sequence[str], left: SkippedPartitions
    ) -> list[str]:
        """The partitions to look into; why not the others is noted in `left`."""
        kept = list(partitions)
        for name, part in self.parts:
            if not isinstance(part, IncrementalPartitionAwareStrategy):
                continue
            wanted = set(part.filter_partition_paths(settings, kept)[0])
            for path in kept:
                if path not in wanted:
                    told = (
                        part.why_left_out(settings, path)
                        if isinstance(part, ExplainsSkips)
                        else None
                    )
                    left.add(path, told or f"filtered by {name}")
            kept = [path for path in kept if path in wanted]
        return kept

    def choose(self, settings: CompactionSettings, candidates: Sequence[Candidate]) -> Selection:
        """What is left in by all of them, in the order of the last, and why not the others."""
        left: dict[GroupKey, str] = {}
        kept = candidates
        for name, part in self.parts:
            choice = part.choose(settings, kept)
            chosen = {c.key for c in choice.chosen}
            left |= {
                c.key: choice.left.get(c.key, f"not chosen by {name}")
                for c in kept
                if c.key not in chosen
            }
            kept = choice.chosen
        return Selection(kept, left)


def strategy_for(settings: CompactionSettings, scene: StrategyContext) -> StrategyChain:
    """The strategies that the settings name, made for one plan."""
    return StrategyChain(
        tuple((_short(name), _factory(name)(scene)) for name in settings.strategies)
    )


def _short(name: str) -> str:
    return _HUDI_CLASSES.get(name.removeprefix(_HUDI_PACKAGE), name)


def _factory(name: str) -> Factory:
    found = _FACTORIES.get(name) or _FACTORIES.get(_short(name))
    if found is None:
        raise InvalidError(
            "there is no such compaction strategy", strategy=name, known=sorted(_FACTORIES)
        )
    return found


# ------------------------------------------------------------------------------------------------
# Slices and what a strategy makes of them, turned into a plan; nothing here touches the table.


_MOST_REASONS = 5

Placing = Callable[[Sequence[FileSlice], SkippedPartitions], PlacedCandidates | Skip]


def plan_compaction(
    slices: Iterable[FileSlice],
    *,
    strategy: StrategyChain,
    settings: CompactionSettings,
    window: IncrementalWindow,
    held: Mapping[GroupKey, str],
    filtered: Mapping[str, str] | None = None,
    placing: Placing | None = None,
) -> CompactionPlan | Skip:
    """The plan for these slices, the newest of their file groups; or why there is none.

    `held` names the pending plan that a file group waits for. `filtered` are the partitions of the
    window that were not even looked into, with the reason. `placing` is asked first where a plan
    goes up to some event time.
    """
    left = SkippedPartitions(dict(filtered or {}))
    slices = free_slices(slices, held, left, bare=settings.exact_split)
    placed = placing(slices, left) if placing is not None else None
    if isinstance(placed, Skip):
        return placed if slices else Skip(why_nothing("compact", left))
    free = placed.candidates if placed else candidates(slices, settings.max_file_size)
    choice = _limited(strategy.choose(settings, free), settings.most_operations)
    _check(choice, free)
    chosen = {c.key for c in choice.chosen}
    for item in free:
        if item.key not in chosen:
            left.add(item.slice.partition, choice.left.get(item.key, "not chosen"))
        elif settings.exact_split:
            left.add(item.slice.partition, "what is after the threshold stays in log files")
    operations = tuple(c.operation for c in choice.chosen)
    plan = finish_plan(operations, left, window)
    if plan is None:
        return Skip(why_nothing("compact", left))
    return replace(plan, extra={**plan.extra, **placed.extra}) if placed else plan


def _limited(choice: Selection, most: int) -> Selection:
    """The first of what was chosen, where a plan may hold only so many operations."""
    over = choice.chosen[most:] if most else ()
    if not over:
        return choice
    reason = f"over the limit of {most} file groups"
    return Selection(choice.chosen[:most], {**choice.left, **{c.key: reason for c in over}})


def free_slices(
    slices: Iterable[FileSlice],
    held: Mapping[GroupKey, str],
    left: SkippedPartitions,
    *,
    bare: bool = False,
) -> list[FileSlice]:
    """The slices with log files that no pending plan holds; the held ones are noted in `left`.

    With `bare` those without log files are among them.
    """
    free = []
    for slice_ in slices:
        holder = held.get((slice_.partition, slice_.file_id))
        if not slice_.logs and not bare:
            continue
        if holder is None:
            free.append(slice_)
        else:
            left.add(slice_.partition, f"held by {holder}")
    return free


def finish_plan(
    operations: Sequence[CompactionOperation], left: SkippedPartitions, window: IncrementalWindow
) -> CompactionPlan | None:
    """The plan of these operations; None without any: such a plan may not be written."""
    if not operations:
        return None
    if not window.is_recorded:
        return CompactionPlan(operations=tuple(operations))
    return CompactionPlan(
        operations=tuple(operations),
        extra=left.to_extra_metadata(),
        missing_partitions=left.partitions,
    )


def why_nothing(verb: str, left: SkippedPartitions) -> str:
    """The reason for a plan without operations, by what held the partitions back."""
    if not left.reasons:
        return f"nothing to {verb}: no log files"
    counts = sorted(Counter(left.reasons.values()).items(), key=lambda item: (-item[1], item[0]))
    told = [f"{reason} ({_partitions(count)})" for reason, count in counts[:_MOST_REASONS]]
    more = [f"{len(counts) - _MOST_REASONS} more reasons"] * (len(counts) > _MOST_REASONS)
    return f"nothing to {verb}: {'; '.join([*told, *more])}"


def _partitions(count: int) -> str:
    return f"{count} partition{'s' * (count > 1)}"


def _files(operation: CompactionOperation) -> tuple[str, str | None, list[str]]:
    return operation.base_instant, operation.base_file, sorted(operation.logs)


def _check(choice: Selection, free: Sequence[Candidate]) -> None:
    """Strategies may come from anywhere; a plan that they bend would lose rows.

    A log file that a plan leaves out would lie below the new base file, where nobody reads it.
    """
    known = {item.key: _files(item.operation) for item in free}
    seen: set[GroupKey] = set()
    for item in choice.chosen:
        operation = item.operation
        key = (operation.partition, operation.file_id)
        if key in seen or item.key != key or known.get(key) != _files(operation):
            raise InvalidError(
                "the strategy chose what it was not given, or not all of it",
                partition=operation.partition,
                file_id=operation.file_id,
                logs=operation.logs,
            )
        seen.add(key)
