"""The clock, the only source of time and random ids in this library, and time zones."""

from __future__ import annotations

import time
import uuid
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from typing import Protocol

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

WESTERNMOST = timezone(timedelta(hours=-12))
"""The zone in which every date and time is reached last."""


class Clock(Protocol):
    """Time, sleeping and random ids behind one interface, so that tests can control them."""

    def now_ms(self) -> int:
        """Return the milliseconds since 1970; they may step back when the system clock is set."""
        ...

    def monotonic_ms(self) -> int:
        """Return milliseconds that never step back, to measure durations."""
        ...

    def sleep(self, seconds: float) -> None:
        """Block the calling thread."""
        ...

    def new_id(self) -> str:
        """Return a new, unique UUID."""
        ...


class SystemClock:
    """The clock of this machine; it has no state, so it can be pickled."""

    def now_ms(self) -> int:
        """Return the wall-clock time."""
        return time.time_ns() // 1_000_000

    def monotonic_ms(self) -> int:
        """Return the time of the monotonic clock."""
        return time.monotonic_ns() // 1_000_000

    def sleep(self, seconds: float) -> None:
        """Block the calling thread."""
        time.sleep(seconds)

    def new_id(self) -> str:
        """Return a random UUID."""
        return str(uuid.uuid4())


class LocalZone(tzinfo):
    """The local time zone of this machine, with daylight saving, from the C library."""

    def utcoffset(self, moment: datetime | None) -> timedelta:
        """Return the offset at a local time; the earlier one if the local time occurs twice."""
        if moment is None:
            return timedelta(seconds=-time.timezone)
        # Not `timetuple()`: it calls `dst`, which calls this method.
        date, clock = moment.date(), moment.time()
        fields = (date.year, date.month, date.day, clock.hour, clock.minute, clock.second, 0, 0, -1)
        return timedelta(seconds=time.localtime(time.mktime(fields)).tm_gmtoff)

    def dst(self, moment: datetime | None) -> timedelta:
        """Return the daylight saving part of the offset."""
        return self.utcoffset(moment) - timedelta(seconds=-time.timezone)

    def tzname(self, moment: datetime | None) -> str:
        """Return the name of the zone for messages."""
        return "LOCAL"

    def fromutc(self, moment: datetime) -> datetime:
        """Return the local time of a point in time given in UTC."""
        seconds = (moment.replace(tzinfo=UTC) - _EPOCH).total_seconds()
        return moment + timedelta(seconds=time.localtime(seconds).tm_gmtoff)


def zone_of(name: str) -> tzinfo:
    """Return the time zone of a table's timeline: UTC, or the local zone of this machine."""
    return UTC if name.upper() == "UTC" else LocalZone()
