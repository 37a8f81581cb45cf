"""Tables that track event times, and what is told of their completion and freshness."""

from __future__ import annotations

from collections.abc import Mapping

from written import NO_SERVICES, Row, WrittenTable, row

from lakewright.model.freshness import Freshness, ViewFreshness
from lakewright.storage.base import Storage
from lakewright.table.freshness import compute_freshness
from lakewright.table.snapshot import Snapshot, load_snapshot

# The beginning of event time in these tests: what is told is told in milliseconds after it.
T = 1_767_000_000_000
NEVER = 10**15
DAY, NEXT = "2026-01-01", "2026-01-02"
AT_ONCE = {"hoodie.compact.inline.max.delta.commits": "1"}

Told = tuple[int | None, int | None, int | None, int | None]


def tracked(
    table_type: str = "MERGE_ON_READ",
    options: Mapping[str, str] | None = None,
    *,
    storage: Storage | None = None,
    told: Mapping[str, str] | None = None,
) -> WrittenTable:
    """A table whose event time is `ts`; no service runs by itself."""
    table = WrittenTable(options={**NO_SERVICES, **(told or {})})
    if storage is not None:
        table.storage = storage
    return table.create(table_type, event_time="ts", options=options or {})


def at(key: str, time: int, day: str = DAY, note: str = "x") -> Row:
    """A row of an event time, in milliseconds after T."""
    return row(key, T + time, note, day)


def untracked(table: WrittenTable) -> dict[str, str]:
    """The options of a writer that does not record event times."""
    return {**table.options, "hoodie.write.track.event.time.watermark": "false"}


def freshness(
    table: WrittenTable | Storage | Snapshot, *, future_from_ms: int = NEVER
) -> Freshness:
    """Completion and freshness now."""
    found = table.storage if isinstance(table, WrittenTable) else table
    snapshot = found if isinstance(found, Snapshot) else load_snapshot(found)
    return compute_freshness(snapshot, future_from_ms=future_from_ms)


def told(table: WrittenTable | Storage | Snapshot) -> Told:
    """Snapshot completion and freshness, then the read-optimized ones."""
    found = freshness(table)
    return _pair(found.snapshot) + _pair(found.read_optimized)


def told_of(table: WrittenTable | Storage | Snapshot, partition: str) -> Told | None:
    """The same of one partition; None if it is not there."""
    found = freshness(table).partitions.get(partition)
    return None if found is None else _pair(found.snapshot) + _pair(found.read_optimized)


def _pair(view: ViewFreshness) -> tuple[int | None, int | None]:
    return _after(view.completion), _after(view.freshness)


def _after(time: int | None) -> int | None:
    return None if time is None else time - T
