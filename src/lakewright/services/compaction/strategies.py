"""Compaction strategies: which file groups a compaction selects, and in which order.

A strategy selects among candidates (a file slice with the costs of compacting it) by the size or
the number of log files, by partition path, or by the day in the partition path. `planner.py`
registers the strategies by name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, timedelta, tzinfo
from typing import Any, Protocol, runtime_checkable

from lakewright.errors import InvalidError
from lakewright.model.file_group import FileSlice, GroupKey
from lakewright.model.instant import InstantTime
from lakewright.model.partition_time import partition_day
from lakewright.model.plans import CompactionOperation
from lakewright.model.timeline import Timeline
from lakewright.services.compaction.options import OLDEST_DEBT_FIRST, CompactionSettings

MB = 1024 * 1024

_TOTAL_IO = "TOTAL_IO_MB"
_LOG_SIZE = "TOTAL_LOG_FILES_SIZE"


@dataclass(frozen=True, slots=True)
class StrategyContext:
    """What a strategy can know about the table and the plan when it is created."""

    timeline: Timeline
    instant: InstantTime
    today: date
    zone: tzinfo = UTC


@dataclass(frozen=True, slots=True)
class Candidate:
    """A file slice, and the operation that would compact all of its files."""

    slice: FileSlice
    operation: CompactionOperation

    @property
    def key(self) -> GroupKey:
        """The key of the file group."""
        return self.slice.partition, self.slice.file_id

    @property
    def log_size(self) -> int:
        """The bytes of the log files."""
        return int(self.operation.metrics[_LOG_SIZE])

    @property
    def io_mb(self) -> int:
        """The megabytes that compacting it reads and writes."""
        return int(self.operation.metrics[_TOTAL_IO])

    @property
    def oldest_log(self) -> str:
        """The instant of the oldest log file; empty without log files."""
        return min((log.instant for log in self.slice.logs), default="")


@dataclass(frozen=True, slots=True)
class Selection:
    """The candidates to compact, in this order, and why others are skipped.

    A candidate in neither is skipped as well.
    """

    chosen: Sequence[Candidate]
    skipped: Mapping[GroupKey, str] = field(default_factory=dict)


def candidate(slice_: FileSlice, max_file_size: int, at: str | None = None) -> Candidate:
    """Return the candidate of a slice; `max_file_size` is the assumed size of a first base file.

    `at` is the instant of the new base file, for a plan by event time.
    """
    operation = CompactionOperation(
        partition=slice_.partition,
        file_id=slice_.file_id,
        base_instant=slice_.base_instant,
        base_file=slice_.base.name if slice_.base else None,
        logs=tuple(log.name for log in slice_.logs),
        metrics=_metrics(slice_, max_file_size),
        next_base_instant=at,
    )
    return Candidate(slice_, operation)


def candidates(
    slices: Iterable[FileSlice], max_file_size: int, at: str | None = None
) -> list[Candidate]:
    """Return the candidates of slices, in their order."""
    return [candidate(slice_, max_file_size, at) for slice_ in slices]


def _metrics(slice_: FileSlice, max_file_size: int) -> dict[str, float]:
    # Whole megabytes, each rounded down, as in the plans of Hudi.
    read = slice_.size // MB
    base_size = slice_.base.size if slice_.base else 0
    write = (base_size or max_file_size) // MB
    return {
        "TOTAL_LOG_FILES": float(len(slice_.logs)),
        _LOG_SIZE: float(slice_.log_size),
        "TOTAL_IO_READ_MB": float(read),
        "TOTAL_IO_WRITE_MB": float(write),
        _TOTAL_IO: float(read + write),
    }


# Strategies by size, number and path


class Strategy(Protocol):
    """How a compaction selects file groups.

    A strategy that is an `IncrementalPartitionAwareStrategy` as well filters partitions before
    their files are listed; any other one gets the candidates of the whole table.
    """

    def choose(self, settings: CompactionSettings, candidates: Sequence[Candidate]) -> Selection:
        """Return the candidates to compact, in order, and why the others are skipped."""
        ...


@runtime_checkable
class ExplainsSkips(Protocol):
    """A strategy that has its own reasons for skipping partitions."""

    def skip_reason(self, settings: Any, partition: str) -> str | None:
        """Return why a partition is skipped; None for the default reason."""
        ...


@dataclass(frozen=True, slots=True)
class Unbounded:
    """Selects all candidates."""

    def filter_partition_paths(
        self, settings: CompactionSettings, partitions: Sequence[str]
    ) -> tuple[list[str], list[str]]:
        """Return all partitions."""
        return list(partitions), []

    def choose(self, settings: CompactionSettings, candidates: Sequence[Candidate]) -> Selection:
        """Select all candidates."""
        return Selection(in_order(candidates, settings))


@dataclass(frozen=True, slots=True)
class BoundedIO(Unbounded):
    """Selects candidates as they come until the budget is spent."""

    def choose(self, settings: CompactionSettings, candidates: Sequence[Candidate]) -> Selection:
        """Select the first candidates, up to the one that exceeds the budget."""
        return within_budget(in_order(candidates, settings), settings)


@dataclass(frozen=True, slots=True)
class LogFileSize(Unbounded):
    """Selects by size of log files, the largest first, with a minimum and within the budget."""

    def choose(self, settings: CompactionSettings, candidates: Sequence[Candidate]) -> Selection:
        """Select the candidates with large log files."""
        small = {c.key for c in candidates if c.log_size < settings.log_size_threshold}
        reason = f"log files below the threshold of {_size_text(settings.log_size_threshold)}"
        return _select_largest(candidates, settings, small, reason, lambda c: c.log_size)


@dataclass(frozen=True, slots=True)
class LogFileNum(Unbounded):
    """Selects by number of log files, the most first, with a minimum and within the budget."""

    def choose(self, settings: CompactionSettings, candidates: Sequence[Candidate]) -> Selection:
        """Select the candidates with many log files."""
        threshold = settings.log_count_threshold
        below_threshold = {c.key for c in candidates if len(c.operation.logs) < threshold}
        reason = f"fewer than {threshold} log files"
        return _select_largest(
            candidates, settings, below_threshold, reason, lambda c: len(c.operation.logs)
        )


@dataclass(frozen=True, slots=True)
class PartitionRegex(Unbounded):
    """Selects the partitions in whose path a pattern is found, and all candidates in them."""

    def filter_partition_paths(
        self, settings: CompactionSettings, partitions: Sequence[str]
    ) -> tuple[list[str], list[str]]:
        """Return the partitions that match the pattern, and the others."""
        pattern = settings.partition_pattern
        if pattern is None:
            raise InvalidError(
                "this strategy needs a pattern",
                strategy="partition_regex",
                option="hoodie.compaction.partition.path.regex",
            )
        matching = [path for path in partitions if pattern.search(path)]
        return matching, [path for path in partitions if not pattern.search(path)]


def in_order(
    candidates: Iterable[Candidate],
    settings: CompactionSettings,
    key: Callable[[Candidate], int] | None = None,
) -> list[Candidate]:
    """Return the candidates by descending `key`, or the oldest first if the settings say so."""
    if settings.order == OLDEST_DEBT_FIRST:
        return sorted(candidates, key=lambda c: c.oldest_log)
    return list(candidates) if key is None else sorted(candidates, key=key, reverse=True)


def within_budget(candidates: Sequence[Candidate], settings: CompactionSettings) -> Selection:
    """Select the first candidates, up to the one that exceeds the budget."""
    remaining_mb = settings.target_io_mb
    for count, item in enumerate(candidates):
        if remaining_mb <= 0:
            reason = f"over the budget of {settings.target_io_mb} MB"
            return Selection(candidates[:count], {c.key: reason for c in candidates[count:]})
        remaining_mb -= item.io_mb
    return Selection(candidates)


def _select_largest(
    candidates: Sequence[Candidate],
    settings: CompactionSettings,
    excluded: set[GroupKey],
    reason: str,
    key: Callable[[Candidate], int],
) -> Selection:
    included = [c for c in candidates if c.key not in excluded]
    selection = within_budget(in_order(included, settings, key), settings)
    return Selection(selection.chosen, {**selection.skipped, **dict.fromkeys(excluded, reason)})


def _size_text(count: int) -> str:
    return f"{count / MB:g} MB" if count >= MB else f"{count} bytes"


# Strategies by the day in the partition path


@dataclass(frozen=True, slots=True)
class _ByDay(Unbounded):
    today: date

    def skip_reason(self, settings: Any, partition: str) -> str | None:
        """Return the reason for partitions without a day, which all these strategies skip."""
        has_day = partition_day(partition) is not None
        return None if has_day else "no day such as 2026/01/31 in the partition path"


@dataclass(frozen=True, slots=True)
class DayBased(_ByDay):
    """Selects the partitions of the latest days, and candidates in them within the budget."""

    def filter_partition_paths(
        self, settings: CompactionSettings, partitions: Sequence[str]
    ) -> tuple[list[str], list[str]]:
        """Return the partitions with the latest days, and the others."""
        selected = self.latest_partitions(settings, partitions)
        return selected, [path for path in partitions if path not in set(selected)]

    def latest_partitions(
        self, settings: CompactionSettings, partitions: Sequence[str]
    ) -> list[str]:
        """Return the partitions with the latest days, the latest first."""
        days = {path: day for path in partitions if (day := partition_day(path)) is not None}
        latest = sorted(days, key=lambda path: (days[path], path), reverse=True)
        return latest[: settings.target_partitions]

    def choose(self, settings: CompactionSettings, candidates: Sequence[Candidate]) -> Selection:
        """Select within the budget, the latest days first."""
        latest = in_order(candidates, settings, lambda c: _ordinal(c.slice.partition))
        return within_budget(latest, settings)


@dataclass(frozen=True, slots=True)
class BoundedPartition(_ByDay):
    """Selects the partitions from some days before today on, and all candidates in them."""

    def filter_partition_paths(
        self, settings: CompactionSettings, partitions: Sequence[str]
    ) -> tuple[list[str], list[str]]:
        """Return the partitions of recent and future days, and the others."""
        selected = [path for path in partitions if self._is_recent(settings, path)]
        return selected, [path for path in partitions if path not in set(selected)]

    def choose(self, settings: CompactionSettings, candidates: Sequence[Candidate]) -> Selection:
        """Select all candidates, the latest days first."""
        return Selection(in_order(candidates, settings, lambda c: _ordinal(c.slice.partition)))

    def _is_recent(self, settings: CompactionSettings, path: str) -> bool | None:
        """Whether the day of a path is recent; None if the path has no day."""
        day = partition_day(path)
        first = self.today - timedelta(days=settings.target_partitions)
        return None if day is None else day >= first


@dataclass(frozen=True, slots=True)
class UnboundedPartition(BoundedPartition):
    """Selects the days that `BoundedPartition` skips."""

    def filter_partition_paths(
        self, settings: CompactionSettings, partitions: Sequence[str]
    ) -> tuple[list[str], list[str]]:
        """Return the partitions of earlier days, and the others."""
        selected = [path for path in partitions if self._is_recent(settings, path) is False]
        return selected, [path for path in partitions if path not in set(selected)]


def _ordinal(path: str) -> int:
    day = partition_day(path)
    return day.toordinal() if day is not None else 0
