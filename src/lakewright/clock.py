"""The one place where the time is read, and time zones."""

from __future__ import annotations

import time
import uuid
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Protocol

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Clock(Protocol):
    """Time, waiting and chance in one argument: what makes one run differ from another."""

    def now_ms(self) -> int:
        """Milliseconds since 1970; they may step back when the machine's clock is set."""
        ...

    def monotonic_ms(self) -> int:
        """Milliseconds that never step back, to measure how long something took."""
        ...

    def sleep(self, seconds: float) -> None:
        """Wait."""
        ...

    def new_id(self) -> str:
        """A UUID that nobody else has."""
        ...


class SystemClock:
    """The clock of this machine; holds nothing, so it can be pickled and compared."""

    def now_ms(self) -> int:
        """The wall clock."""
        return time.time_ns() // 1_000_000

    def monotonic_ms(self) -> int:
        """The monotonic clock."""
        return time.monotonic_ns() // 1_000_000

    def sleep(self, seconds: float) -> None:
        """Block this thread."""
        time.sleep(seconds)

    def new_id(self) -> str:
        """A random UUID."""
        return str(uuid.uuid4())


class LocalZone(tzinfo):
    """The zone of this machine, with its daylight saving, as the C library knows it."""

    def utcoffset(self, moment: datetime | None) -> timedelta:
        """The offset at a local time; of two readings the first, where the clock is set back."""
        if moment is None:
            return timedelta(seconds=-time.timezone)
        # Not `timetuple()`, which asks for `dst` and so comes back here.
        date, clock = moment.date(), moment.time()
        fields = (date.year, date.month, date.day, clock.hour, clock.minute, clock.second, 0, 0, -1)
        return timedelta(seconds=time.localtime(time.mktime(fields)).tm_gmtoff)

    def dst(self, moment: datetime | None) -> timedelta:
        """How much of the offset is daylight saving."""
        return self.utcoffset(moment) - timedelta(seconds=-time.timezone)

    def tzname(self, moment: datetime | None) -> str:
        """The zone's name for messages."""
        return "LOCAL"

    def fromutc(self, moment: datetime) -> datetime:
        """The local time of a point in time."""
        seconds = (moment.replace(tzinfo=UTC) - _EPOCH).total_seconds()
        return moment + timedelta(seconds=time.localtime(seconds).tm_gmtoff)


def zone_of(name: str) -> tzinfo:
    """The zone of a table's timeline: UTC, or that of the machine."""
    return UTC if name.upper() == "UTC" else LocalZone()
