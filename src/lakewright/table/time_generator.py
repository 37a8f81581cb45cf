"""Where the times on a timeline come from."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, tzinfo

from lakewright.clock import Clock
from lakewright.errors import CorruptError, InvalidError
from lakewright.model.instant import format_time, full_time, parse_time
from lakewright.table.locks.base import Lock

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_LENGTH = 17


class TimeGenerator:
    """Gives the requested and completion times of one table, each above all that it knows of.

    Who asks holds the table's lock: a time is taken when it is on the timeline, not before. After
    reading the clock it waits `wait_ms`, so that no writer whose clock is that much behind can
    come to the same time or an earlier one.
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
        """LostLockError if the lock under which these times are given was lost."""
        if self._lock is not None:
            self._lock.verify()

    def observe(self, *times: str) -> None:
        """Stay above these times, which others have put on the timeline."""
        self._last = max(self._last, *map(full_time, times), "")

    def next(self) -> str:
        """A time of 17 digits above every time given or observed before."""
        now = format_epoch_ms(self._clock.now_ms(), self._zone)
        given = now if now > self._last else next_instant_time(self._last)
        self._last = given
        # A writer of another kind reads its clock alone. So what lies ahead of the clock is waited
        # for too, unless the clock is off by more than any wait can mend.
        wait_ms = self._wait_ms + min(_ahead_ms(given, now), self._wait_ms)
        if wait_ms > 0:
            self._clock.sleep(wait_ms / 1000)
        self.verify_lock()
        return given


def format_epoch_ms(now_ms: int, zone: tzinfo) -> str:
    """A moment, in milliseconds since 1970, as the timeline of a table writes it."""
    return format_time(_EPOCH + timedelta(milliseconds=now_ms), zone)


def next_instant_time(time: str) -> str:
    """The time one millisecond later by the digits alone.

    Where a clock is set back for winter the same digits come twice; only they must grow.
    """
    try:
        # Reading them in UTC, which skips and repeats nothing, makes it plain calendar arithmetic.
        return format_time(_moment(time) + timedelta(milliseconds=1))
    except (InvalidError, OverflowError) as error:
        raise CorruptError(
            "the timeline holds a time that no other can follow: it is later than the clock and "
            "no date",
            time=time,
        ) from error


def _ahead_ms(given: str, now: str) -> int:
    return (_moment(given) - _moment(now)) // timedelta(milliseconds=1)


def _moment(time: str) -> datetime:
    return parse_time(time[:_LENGTH])
