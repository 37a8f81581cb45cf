"""Generating the requested and completion times of a timeline."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, tzinfo

from lakewright.clock import Clock
from lakewright.errors import CorruptError, InvalidError
from lakewright.model.instant import format_time, full_time, parse_time
from lakewright.table.locks.base import Lock

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_LENGTH = 17


class TimeGenerator:
    """Generates requested and completion times for one table, each greater than all known times.

    The caller holds the table's lock: a time is reserved once it is on the timeline, not before.
    After reading the clock, `next` waits `wait_ms`, so that no writer whose clock is that much
    behind can generate the same time or an earlier one.
    """

    def __init__(
        self,
        clock: Clock,
        zone: tzinfo,
        wait_ms: int,
        *,
        after: str = "",
        lock: Lock | None = None,
    ) -> None:
        self._lock = lock
        self._clock = clock
        self._zone = zone
        self._wait_ms = wait_ms
        self._last = ""
        self.observe(after)

    def verify_lock(self) -> None:
        """Raise LostLockError if the lock under which these times are generated was lost."""
        if self._lock is not None:
            self._lock.verify()

    def observe(self, *times: str) -> None:
        """Stay above these times, which other processes have put on the timeline."""
        self._last = max(self._last, *map(full_time, times), "")

    def next(self) -> str:
        """Return a time of 17 digits above every time returned or observed before."""
        now = format_epoch_ms(self._clock.now_ms(), self._zone)
        time = now if now > self._last else next_instant_time(self._last)
        self._last = time
        # A writer of another library reads only its clock. So the time by which the generated time
        # is ahead of the clock is waited for too, unless the clock is off by more than any wait can
        # fix.
        wait_ms = self._wait_ms + min(_ahead_ms(time, now), self._wait_ms)
        if wait_ms > 0:
            self._clock.sleep(wait_ms / 1000)
        self.verify_lock()
        return time


def format_epoch_ms(now_ms: int, zone: tzinfo) -> str:
    """Return a moment, in milliseconds since 1970, in the format and zone of a timeline."""
    return format_time(_EPOCH + timedelta(milliseconds=now_ms), zone)


def next_instant_time(time: str) -> str:
    """Return the time one millisecond later, by the digits alone.

    Where a clock is set back for winter the same digits occur twice; only the digits must grow.
    """
    try:
        # Parsing them as UTC, which skips and repeats nothing, makes this plain calendar
        # arithmetic.
        return format_time(_moment(time) + timedelta(milliseconds=1))
    except (InvalidError, OverflowError) as error:
        raise CorruptError(
            "the timeline holds a time that no other can follow: it is later than the clock and "
            "no date",
            time=time,
        ) from error


def _ahead_ms(time: str, now: str) -> int:
    return (_moment(time) - _moment(now)) // timedelta(milliseconds=1)


def _moment(time: str) -> datetime:
    return parse_time(time[:_LENGTH])
