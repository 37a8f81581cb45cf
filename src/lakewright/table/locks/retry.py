"""Time as locks and heartbeats need it: how old is it, try until it works, do it time and again."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass

from lakewright.clock import Clock
from lakewright.errors import ConflictError, LakewrightError, UnavailableError
from lakewright.table.options import LockSettings

_FIRST_PAUSE_MS = 20
_LONGEST_MARGIN_MS = 60_000
_TRIES = 6
_RETRIES_PER_PERIOD = 10


class LostLockError(ConflictError):
    """A lock that was held is somebody else's now, or may be."""


@dataclass(frozen=True, slots=True)
class DualTimestamp:
    """A point in time by both clocks of this machine.

    Neither can be trusted alone: the wall clock may be set back, and the steady clock stands
    still while the machine sleeps.
    """

    wall_ms: int
    steady_ms: int

    @classmethod
    def now(cls, clock: Clock) -> DualTimestamp:
        """This moment."""
        return cls(clock.now_ms(), clock.monotonic_ms())

    def age_ms(self, clock: Clock) -> int:
        """How long ago this was, by the clock that says more."""
        return max(clock.now_ms() - self.wall_ms, clock.monotonic_ms() - self.steady_ms)


def safety_margin_ms(validity_ms: int) -> int:
    """How much of its validity a lock must still have, so that a commit ends within it."""
    return min(_LONGEST_MARGIN_MS, validity_ms // 3)


def acquire_with_retry(
    attempt: Callable[[], str | None], settings: LockSettings, clock: Clock
) -> None:
    """Try to take a lock until `attempt` gives None; else it tells who holds the lock.

    A storage that does not answer counts as a lock that is held.
    """
    begin, pause_ms = clock.monotonic_ms(), _FIRST_PAUSE_MS
    while True:
        cause: UnavailableError | None = None
        try:
            holder = attempt()
        except UnavailableError as error:
            holder, cause = "unknown: the storage did not answer", error
        if holder is None:
            return
        waited_ms = clock.monotonic_ms() - begin
        left_ms = settings.wait_ms - waited_ms
        if left_ms <= 0:
            raise UnavailableError(
                "the lock of the table was not free in time", holder=holder, waited_ms=waited_ms
            ) from cause
        clock.sleep(max(1, min(pause_ms, settings.retry_ms, left_ms)) / 1000)
        pause_ms *= 2


def retry(action: Callable[[], None], settings: LockSettings, clock: Clock) -> bool:
    """Do a repeatable action some times over while storage does not answer; tell if it worked."""
    for tries in range(_TRIES):
        try:
            action()
        except UnavailableError:
            clock.sleep(min(_FIRST_PAUSE_MS << tries, max(1, settings.retry_ms)) / 1000)
        else:
            return True
    return False


class PeriodicTask:
    """Calls a method of an object once in a period, in a thread, while it gives True.

    A call that fails is repeated soon. The thread ends with `stop`, and also when nobody has the
    object any more: what was forgotten must not look alive.
    """

    def __init__(
        self, method: Callable[[], bool], period_s: float, clock: Clock, *, name: str
    ) -> None:
        self._stopped = threading.Event()
        weak = weakref.WeakMethod(method)
        weakref.finalize(method.__self__, self._stopped.set)  # type: ignore[attr-defined]
        self._thread = threading.Thread(
            target=_repeat, args=(weak, period_s, clock, self._stopped), name=name, daemon=True
        )
        self._thread.start()

    def stop(self, patience_s: float | None = None) -> None:
        """Return when the thread has ended; a call under way ends first, or is left behind."""
        self._stopped.set()
        self._thread.join(patience_s)


def _repeat(
    weak: weakref.WeakMethod[Callable[[], bool]],
    period_s: float,
    clock: Clock,
    stopped: threading.Event,
) -> None:
    shortest_s = period_s / _RETRIES_PER_PERIOD
    pause_s = period_s
    while not stopped.wait(pause_s):
        method, begin = weak(), clock.monotonic_ms()
        try:
            if method is None or not method():
                return
        except LakewrightError:
            pause_s = shortest_s
        else:
            pause_s = max(shortest_s, period_s - (clock.monotonic_ms() - begin) / 1000)
        # While it waits the thread must not be what keeps the object.
        del method
