"""Strategies by name, and several of them one after the other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from lakewright.core.slices import GroupKey
from lakewright.errors import InvalidError
from lakewright.services.compaction.candidates import Candidate, Choice, Scene
from lakewright.services.compaction.days import BoundedPartition, DayBased, UnboundedPartition
from lakewright.services.compaction.event_time import EventTimeBasedCompactionStrategy
from lakewright.services.compaction.settings import CompactionSettings
from lakewright.services.compaction.strategies import (
    BoundedIO,
    LogFileNum,
    LogFileSize,
    PartitionRegex,
    Strategy,
    TellsWhy,
    Unbounded,
)
from lakewright.services.reasons import Left
from lakewright.services.window import IncrementalPartitionAwareStrategy

Factory = Callable[[Scene], Strategy]

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
class Chain:
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
        self, settings: CompactionSettings, partitions: Sequence[str], left: Left
    ) -> list[str]:
        """The partitions to look into; why not the others is noted in `left`."""
        kept = list(partitions)
        for name, part in self.parts:
            if not isinstance(part, IncrementalPartitionAwareStrategy):
                continue
            wanted = set(part.filter_partition_paths(settings, kept)[0])
            for path in kept:
                if path not in wanted:
                    told = part.why_left_out(settings, path) if isinstance(part, TellsWhy) else None
                    left.because(path, told or f"filtered by {name}")
            kept = [path for path in kept if path in wanted]
        return kept

    def choose(self, settings: CompactionSettings, candidates: Sequence[Candidate]) -> Choice:
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
        return Choice(kept, left)


def strategy_for(settings: CompactionSettings, scene: Scene) -> Chain:
    """The strategies that the settings name, made for one plan."""
    return Chain(tuple((_short(name), _factory(name)(scene)) for name in settings.strategies))


def _short(name: str) -> str:
    return _HUDI_CLASSES.get(name.removeprefix(_HUDI_PACKAGE), name)


def _factory(name: str) -> Factory:
    found = _FACTORIES.get(name) or _FACTORIES.get(_short(name))
    if found is None:
        raise InvalidError(
            "there is no such compaction strategy", strategy=name, known=sorted(_FACTORIES)
        )
    return found
