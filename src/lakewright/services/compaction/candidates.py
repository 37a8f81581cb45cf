"""A file group that may be compacted, what that costs, and what a strategy chose."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, tzinfo

from lakewright.core.plans import CompactionOperation
from lakewright.core.slices import FileSlice, GroupKey
from lakewright.core.timeline import Timeline

MB = 1024 * 1024

_TOTAL_IO = "TOTAL_IO_MB"
_LOG_SIZE = "TOTAL_LOG_FILES_SIZE"


@dataclass(frozen=True, slots=True)
class Scene:
    """What a strategy is told of the table when it is made."""

    timeline: Timeline
    instant: str
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
class Choice:
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
