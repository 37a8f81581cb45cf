"""The compaction strategies that go by the day in a partition's path."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from typing import Any

from lakewright.core.partition_times import partition_day
from lakewright.services.compaction.candidates import Candidate, Choice
from lakewright.services.compaction.settings import CompactionSettings
from lakewright.services.compaction.strategies import Unbounded, in_order, within_budget


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

    def choose(self, settings: CompactionSettings, candidates: Sequence[Candidate]) -> Choice:
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

    def choose(self, settings: CompactionSettings, candidates: Sequence[Candidate]) -> Choice:
        """All of them, the latest days first."""
        return Choice(in_order(candidates, settings, lambda c: _ordinal(c.slice.partition)))

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
