"""The time that a partition's path names: a day, or an hour of it. Pure."""

from __future__ import annotations

import re
from datetime import date, datetime, timedelta, tzinfo

_NAMED = re.compile(r"(^|/)[^/]*?=")
_DAY = re.compile(r"(\d{4})([/-])(\d{1,2})\2(\d{1,2})(?!\d)|(\d{4})(\d{2})(\d{2})(?!\d)")
_HOUR = re.compile(r"[/-](\d{1,2})(?=/|$)")


def partition_day(path: str) -> date | None:
    """The day that a partition path begins with; None if it does not.

    Hudi knows `2026/01/31`, also with names as in `year=2026/month=01/day=31`, and with further
    levels behind. `2026-01-31` and `20260131` are days here as well.
    """
    found = _DAY.match(_NAMED.sub(r"\1", path))
    return _date(found) if found is not None else None


def _date(found: re.Match[str]) -> date | None:
    year, _, month, day, *compact = found.groups()
    try:
        return date(*map(int, (year, month, day) if year else compact))
    except ValueError:
        return None


def partition_end(path: str, zone: tzinfo, interval_ms: int | None = None) -> int | None:
    """When the time of a partition is over, in milliseconds since 1970; None if it names none.

    It lasts an hour if the path names one (`2026-01-31/05`, `day=2026-01-31/hour=05`), else a day;
    or as long as is said.
    """
    plain = _NAMED.sub(r"\1", path)
    found = _DAY.match(plain)
    day = _date(found) if found is not None else None
    if found is None or day is None:
        return None
    hour = _HOUR.match(plain[found.end() :])
    start = datetime(day.year, day.month, day.day, tzinfo=zone)
    length = timedelta(days=1)
    if hour is not None and int(hour[1]) < 24:
        start, length = start.replace(hour=int(hour[1])), timedelta(hours=1)
    if interval_ms is not None:
        return round(start.timestamp() * 1000) + interval_ms
    return round((start + length).timestamp() * 1000)
