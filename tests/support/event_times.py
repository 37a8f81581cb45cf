"""Rows with event times, and the completion and freshness of tables that track them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from unittest.mock import patch

from lakewright.model.freshness import Freshness, ViewFreshness
from lakewright.storage.base import Storage
from lakewright.table.freshness import compute_freshness
from lakewright.table.snapshot import Snapshot, load_snapshot
from support.tables import NO_SERVICES, Row, WrittenTable, row

HOUR = 3_600_000
BEGIN = 1_767_139_200_000  # 2025-12-31T00:00:00Z, the day before the clock of tests begins


def event_time(hour: float) -> int:
    """An event time, in hours of the day."""
    return BEGIN + round(hour * HOUR)


def event_row(key: str, hour: float, note: str = "", day: str = "2026-01-01") -> Row:
    """A row whose event time is an hour; its note is its key and hour."""
    return {"id": key, "day": day, "ts": event_time(hour), "note": note or f"{key}{hour:g}"}


def compact_before(hour: float) -> dict[str, str]:
    """The options of a compaction of rows with event times before an hour."""
    moment = f"2025-12-31T{int(hour):02d}:{round(hour % 1 * 60):02d}:00Z"
    return {
        "hoodie.compaction.strategy": "event_time",
        "hoodie.compaction.event.time.threshold": moment,
    }


EXACT_SPLIT = {"hoodie.compaction.event.time.exact.split": "true"}

# Zero of the event times in these tests, which are in milliseconds after it.
TIME_ZERO = 1_767_000_000_000
NEVER = 10**15
DAY, NEXT_DAY = "2026-01-01", "2026-01-02"
COMPACT_EVERY_COMMIT = {"hoodie.compact.inline.max.delta.commits": "1"}

ViewTimes = tuple[int | None, int | None, int | None, int | None]


def tracked_table(
    table_type: str = "MERGE_ON_READ",
    options: Mapping[str, str] | None = None,
    *,
    storage: Storage | None = None,
    write_options: Mapping[str, str] | None = None,
) -> WrittenTable:
    """A table whose event time is `ts`; no service runs by itself."""
    table = WrittenTable(options={**NO_SERVICES, **(write_options or {})})
    if storage is not None:
        table.storage = storage
    return table.create(table_type, event_time="ts", options=options or {})


def tracked_row(key: str, time: int, day: str = DAY, note: str = "x") -> Row:
    """A row of an event time, in milliseconds after T."""
    return row(key, TIME_ZERO + time, note, day)


def untracked_options(table: WrittenTable) -> dict[str, str]:
    """The options of a writer that does not record event times."""
    return {**table.options, "hoodie.write.track.event.time.watermark": "false"}


def table_freshness(
    table: WrittenTable | Storage | Snapshot, *, future_from_ms: int = NEVER
) -> Freshness:
    """Completion and freshness now."""
    source = table.storage if isinstance(table, WrittenTable) else table
    snapshot = source if isinstance(source, Snapshot) else load_snapshot(source)
    return compute_freshness(snapshot, future_from_ms=future_from_ms)


@contextmanager
def ignoring_freshness_records() -> Iterator[None]:
    """Compute completion and freshness from commits, as if none had recorded them."""
    with (
        patch("lakewright.table.freshness.parse_freshness_record", lambda extra: None),
        patch("lakewright.table.partition_freshness.parse_freshness_record", lambda extra: None),
    ):
        yield


def view_times(table: WrittenTable | Storage | Snapshot) -> ViewTimes:
    """Snapshot completion and freshness, then the read-optimized ones."""
    freshness = table_freshness(table)
    return _times_of_view(freshness.snapshot) + _times_of_view(freshness.read_optimized)


def partition_view_times(
    table: WrittenTable | Storage | Snapshot, partition: str
) -> ViewTimes | None:
    """The same of one partition; None if there is no such partition."""
    freshness = table_freshness(table).partitions.get(partition)
    return (
        None
        if freshness is None
        else _times_of_view(freshness.snapshot) + _times_of_view(freshness.read_optimized)
    )


def _times_of_view(view: ViewFreshness) -> tuple[int | None, int | None]:
    return _after_zero(view.completion), _after_zero(view.freshness)


def _after_zero(time: int | None) -> int | None:
    return None if time is None else time - TIME_ZERO
