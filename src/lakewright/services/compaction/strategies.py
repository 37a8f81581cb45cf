"""Which file groups a compaction takes on: the strategies that look at sizes, counts and paths.

Those that look at days are in `days.py`; `registry.py` finds them all by name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from lakewright.core.slices import GroupKey
from lakewright.errors import InvalidError
from lakewright.services.compaction.candidates import MB, Candidate, Choice
from lakewright.services.compaction.settings import OLDEST_DEBT_FIRST, CompactionSettings


class Strategy(Protocol):
    """How a compaction chooses.

    A strategy that is an `IncrementalPartitionAwareStrategy` as well is asked about partitions
    before their files are listed; another one sees the candidates of the whole table.
    """

    def choose(self, settings: CompactionSettings, candidates: Sequence[Candidate]) -> Choice:
        """Of file groups with log files those to compact, in order, and why not the others."""
        ...


@runtime_checkable
class TellsWhy(Protocol):
    """A strategy that has more to say about a partition than that it was filtered out."""

    def why_left_out(self, settings: Any, partition: str) -> str | None:
        """The reason, or None for the usual one."""
        ...


@dataclass(frozen=True, slots=True)
class Unbounded:
    """Takes everything."""

    def filter_partition_paths(
        self, settings: CompactionSettings, partitions: Sequence[str]
    ) -> tuple[list[str], list[str]]:
        """All of them."""
        return list(partitions), []

    def choose(self, settings: CompactionSettings, candidates: Sequence[Candidate]) -> Choice:
        """All of them."""
        return Choice(in_order(candidates, settings))


@dataclass(frozen=True, slots=True)
class BoundedIO(Unbounded):
    """Takes what comes until the budget is spent."""

    def choose(self, settings: CompactionSettings, candidates: Sequence[Candidate]) -> Choice:
        """The first ones; the one that goes beyond the budget is the last."""
        return within_budget(in_order(candidates, settings), settings)


@dataclass(frozen=True, slots=True)
class LogFileSize(Unbounded):
    """Takes the largest log files first, from a threshold on, until the budget is spent."""

    def choose(self, settings: CompactionSettings, candidates: Sequence[Candidate]) -> Choice:
        """Those with large log files."""
        small = {c.key for c in candidates if c.log_size < settings.log_size_threshold}
        reason = f"log files below the threshold of {_size(settings.log_size_threshold)}"
        return _largest(candidates, settings, small, reason, lambda c: c.log_size)


@dataclass(frozen=True, slots=True)
class LogFileNum(Unbounded):
    """Takes the most log files first, from a threshold on, until the budget is spent."""

    def choose(self, settings: CompactionSettings, candidates: Sequence[Candidate]) -> Choice:
        """Those with many log files."""
        least = settings.log_count_threshold
        few = {c.key for c in candidates if len(c.operation.logs) < least}
        reason = f"fewer than {least} log files"
        return _largest(candidates, settings, few, reason, lambda c: len(c.operation.logs))


@dataclass(frozen=True, slots=True)
class PartitionRegex(Unbounded):
    """Takes the partitions in whose path a pattern is found, and all that is in them."""

    def filter_partition_paths(
        self, settings: CompactionSettings, partitions: Sequence[str]
    ) -> tuple[list[str], list[str]]:
        """Those that match, and the others."""
        pattern = settings.partition_pattern
        if pattern is None:
            raise InvalidError(
                "this strategy needs a pattern",
                strategy="partition_regex",
                option="hoodie.compaction.partition.path.regex",
            )
        kept = [path for path in partitions if pattern.search(path)]
        return kept, [path for path in partitions if not pattern.search(path)]


def in_order(
    candidates: Iterable[Candidate],
    settings: CompactionSettings,
    key: Callable[[Candidate], int] | None = None,
) -> list[Candidate]:
    """The candidates by descending `key`, or in the order that the settings prefer to that."""
    if settings.order == OLDEST_DEBT_FIRST:
        return sorted(candidates, key=lambda c: c.oldest_log)
    return list(candidates) if key is None else sorted(candidates, key=key, reverse=True)


def within_budget(candidates: Sequence[Candidate], settings: CompactionSettings) -> Choice:
    """The first of the candidates, up to the one that goes beyond the budget."""
    rest = settings.target_io_mb
    for count, item in enumerate(candidates):
        if rest <= 0:
            reason = f"over the budget of {settings.target_io_mb} MB"
            return Choice(candidates[:count], {c.key: reason for c in candidates[count:]})
        rest -= item.io_mb
    return Choice(candidates)


def _largest(
    candidates: Sequence[Candidate],
    settings: CompactionSettings,
    excluded: set[GroupKey],
    reason: str,
    key: Callable[[Candidate], int],
) -> Choice:
    large = [c for c in candidates if c.key not in excluded]
    choice = within_budget(in_order(large, settings, key), settings)
    return Choice(choice.chosen, {**choice.left, **dict.fromkeys(excluded, reason)})


def _size(count: int) -> str:
    return f"{count / MB:g} MB" if count >= MB else f"{count} bytes"
