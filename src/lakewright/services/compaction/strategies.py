"""Which file groups a compaction takes on: strategies by sizes, counts, paths and days.

`planner.py` finds them all by name.
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
    """What a strategy is told of the table when it is made."""

    timeline: Timeline
    instant: InstantTime
    today: date
    zone: tzinfo = UTC


@dataclass(frozen=True, slots=True)
class Candidate:
    """A file slice, and the operation that would compact it, which names all of its files."""

    slice: FileSlice
    operation: CompactionOperation

    @property
    def key(self) -> GroupKey:
        """The file group."""
        return self.slice.partition, self.slice.file_id

    @property
    def log_size(self) -> int:
        """Bytes of the log files."""
        return int(self.operation.metrics[_LOG_SIZE])

    @property
    def io_mb(self) -> int:
        """What compacting it reads and writes."""
        return int(self.operation.metrics[_TOTAL_IO])

    @property
    def oldest_log(self) -> str:
        """The instant of the log file that has waited longest."""
        return min((log.instant for log in self.slice.logs), default="")


@dataclass(frozen=True, slots=True)
class Selection:
    """The candidates that are compacted, in this order, and why others are not.

    A candidate that is in neither is left out as well.
    """

    chosen: Sequence[Candidate]
    left: Mapping[GroupKey, str] = field(default_factory=dict)


def candidate(slice_: FileSlice, max_file_size: int, at: str | None = None) -> Candidate:
    """A slice with all of its log files; `max_file_size` is the cost of a first base file.

    `at` is the instant of the new base file, where that is not simply the plan's.
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
    """The slices as candidates, in their order."""
    return [candidate(slice_, max_file_size, at) for slice_ in slices]


def _metrics(slice_: FileSlice, max_file_size: int) -> dict[str, float]:
    # Whole megabytes, cut off on either side, as every other planner counts them.
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


# ------------------------------------------------------------------------------------------------
# A file group that may be compacted, what that costs, and what a strategy chose.


class Strategy(Protocol):
    """How a compaction chooses.

    A strategy that is an `IncrementalPartitionAwareStrategy` as well is asked about partitions
    before their files are listed; another one sees the candidates of the whole table.
    """

    def choose(self, settings: CompactionSettings, candidates: Sequence[Candidate]) -> Selection:
        """Of file groups with log files those to compact, in order, and why not the others."""
        ...


@runtime_checkable
class ExplainsSkips(Protocol):
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

    def choose(self, settings: CompactionSettings, candidates: Sequence[Candidate]) -> Selection:
        """All of them."""
        return Selection(in_order(candidates, settings))


@dataclass(frozen=True, slots=True)
class BoundedIO(Unbounded):
    """Takes what comes until the budget is spent."""

    def choose(self, settings: CompactionSettings, candidates: Sequence[Candidate]) -> Selection:
        """The first ones; the one that goes beyond the budget is the last."""
        return within_budget(in_order(candidates, settings), settings)


@dataclass(frozen=True, slots=True)
class LogFileSize(Unbounded):
    """Takes the largest log files first, from a threshold on, until the budget is spent."""

    def choose(self, settings: CompactionSettings, candidates: Sequence[Candidate]) -> Selection:
        """Those with large log files."""
        small = {c.key for c in candidates if c.log_size < settings.log_size_threshold}
        reason = f"log files below the threshold of {_size(settings.log_size_threshold)}"
        return _largest(candidates, settings, small, reason, lambda c: c.log_size)


@dataclass(frozen=True, slots=True)
class LogFileNum(Unbounded):
    """Takes the most log files first, from a threshold on, until the budget is spent."""

    def choose(self, settings: CompactionSettings, candidates: Sequence[Candidate]) -> Selection:
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


def within_budget(candidates: Sequence[Candidate], settings: CompactionSettings) -> Selection:
    """The first of the candidates, up to the one that goes beyond the budget."""
    rest = settings.target_io_mb
    for count, item in enumerate(candidates):
        if rest <= 0:
            reason = f"over the budget of {settings.target_io_mb} MB"
            return Selection(candidates[:count], {c.key: reason for c in candidates[count:]})
        rest -= item.io_mb
    return Selection(candidates)


def _largest(
    candidates: Sequence[Candidate],
    settings: CompactionSettings,
    excluded: set[GroupKey],
    reason: str,
    key: Callable[[Candidate], int],
) -> Selection:
    large = [c for c in candidates if c.key not in excluded]
    choice = within_budget(in_order(large, settings, key), settings)
    return Selection(choice.chosen, {**choice.left, **dict.fromkeys(excluded, reason)})


def _size(count: int) -> str:
    return f"{count / MB:g} MB" if count >= MB else f"{count} bytes"


# ------------------------------------------------------------------------------------------------
# The compaction strategies that go by the day in a partition's path.


@dataclass(frozen=True, slots=True)
class _ByDay(Unbounded):
    today: date

    def why_left_out(self, settings: Any, partition: str) -> str | None:
        """Partitions without a day are left by all of these strategies, and stay left."""
        has_day = partition_day(partition) is not None
        return None if has_day else "no day such as 2026/01/31 in the partition path"


@dataclass(frozen=True, slots=True)
class DayBased(_ByDay):
    """Takes the partitions of the latest days, and of these what the budget allows."""

    def filter_partition_paths(
        self, settings: CompactionSettings, partitions: Sequence[str]
    ) -> tuple[list[str], list[str]]:
        """The partitions with the latest days, and the others."""
        days = {path: day for path in partitions if (day := partition_day(path)) is not None}
        latest = sorted(days, key=lambda path: days[path], reverse=True)
        kept = latest[: settings.target_partitions]
        return kept, [path for path in partitions if path not in set(kept)]

    def choose(self, settings: CompactionSettings, candidates: Sequence[Candidate]) -> Selection:
        """Those of the latest days first, until the budget is spent."""
        latest = in_order(candidates, settings, lambda c: _ordinal(c.slice.partition))
        return within_budget(latest, settings)


@dataclass(frozen=True, slots=True)
class BoundedPartition(_ByDay):
    """Takes the partitions from some days before today on, and all that is in them."""

    def filter_partition_paths(
        self, settings: CompactionSettings, partitions: Sequence[str]
    ) -> tuple[list[str], list[str]]:
        """The recent and future days, and the others."""
        kept = [path for path in partitions if self._is_recent(settings, path)]
        return kept, [path for path in partitions if path not in set(kept)]

    def choose(self, settings: CompactionSettings, candidates: Sequence[Candidate]) -> Selection:
        """All of them, the latest days first."""
        return Selection(in_order(candidates, settings, lambda c: _ordinal(c.slice.partition)))

    def _is_recent(self, settings: CompactionSettings, path: str) -> bool | None:
        """Whether the day of a path is recent; None if it has none."""
        day = partition_day(path)
        first = self.today - timedelta(days=settings.target_partitions)
        return None if day is None else day >= first


@dataclass(frozen=True, slots=True)
class UnboundedPartition(BoundedPartition):
    """Takes the days that `BoundedPartition` leaves out."""

    def filter_partition_paths(
        self, settings: CompactionSettings, partitions: Sequence[str]
    ) -> tuple[list[str], list[str]]:
        """The days long past, and the others."""
        kept = [path for path in partitions if self._is_recent(settings, path) is False]
        return kept, [path for path in partitions if path not in set(kept)]


def _ordinal(path: str) -> int:
    day = partition_day(path)
    return day.toordinal() if day is not None else 0
