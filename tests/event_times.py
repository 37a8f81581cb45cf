"""Rows that tell when they happened, and compactions up to an hour of that day."""

from __future__ import annotations

from written import Row

HOUR = 3_600_000
BEGIN = 1_767_139_200_000  # 2025-12-31T00:00:00Z, the day before the clock of tests begins


def at(hour: float) -> int:
    """An event time, in hours of the day."""
    return BEGIN + round(hour * HOUR)


def row(key: str, hour: float, note: str = "", day: str = "2026-01-01") -> Row:
    """A row that happened at an hour; what it notes is its key and hour."""
    return {"id": key, "day": day, "ts": at(hour), "note": note or f"{key}{hour:g}"}


def before(hour: float) -> dict[str, str]:
    """The options of a compaction of what happened before an hour."""
    moment = f"2025-12-31T{int(hour):02d}:{round(hour % 1 * 60):02d}:00Z"
    return {
        "hoodie.compaction.strategy": "event_time",
        "hoodie.compaction.event.time.threshold": moment,
    }


EXACT = {"hoodie.compaction.event.time.exact.split": "true"}
