"""Up to which event time a compaction goes, as people say it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from lakewright.core.instant import full_time, is_time

_WORDS = ("hour", "day")


@dataclass(frozen=True, slots=True)
class Floor:
    """The beginning of the hour or day that a moment lies in, by the clocks of a zone."""

    unit: str
    zone: tzinfo = UTC

    def of(self, moment: datetime) -> datetime:
        """The last full hour or day before a moment, or the moment itself if it is one."""
        local = moment.astimezone(self.zone)
        cut = local.replace(minute=0, second=0, microsecond=0)
        return cut.replace(hour=0, fold=0) if self.unit == "day" else cut


def parse_floor(text: str) -> Floor:
    """`hour` or `day`, and the name of a zone after a blank or a comma."""
    unit, *zones = text.replace(",", " ").split() or [""]
    if unit.lower() not in _WORDS or len(zones) > 1:
        raise ValueError("hour or day expected, with or without a zone, such as day Europe/Berlin")
    try:
        zone: tzinfo = ZoneInfo(zones[0]) if zones else UTC
    except (ZoneInfoNotFoundError, ValueError) as error:
        raise ValueError(f"no such zone: {zones[0]}") from error
    return Floor(unit.lower(), zone)


def parse_threshold(text: str) -> str:
    """An instant, or a time that tells its zone; given back as it stands."""
    if is_time(text.strip()):
        return full_time(text.strip())
    moment = datetime.fromisoformat(text.strip())
    if moment.tzinfo is None:
        raise ValueError("a time with its zone expected, such as 2026-01-31T00:00:00Z")
    return moment.isoformat()


def earlier(moment: datetime, lateness_ms: int | None, floor: Floor | None) -> datetime:
    """A moment less the lateness that is allowed, floored."""
    late = moment - timedelta(milliseconds=lateness_ms or 0)
    return floor.of(late) if floor is not None else late
