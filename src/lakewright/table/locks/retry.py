"""Timing for locks and heartbeats: ages by two clocks, retries, and periodic calls."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass

from lakewright.clock import Clock
from lakewright.errors import ConflictError, LakewrightError, UnavailableError
from lakewright.table.options import LockSettings

_FIRST_PAUSE_MS = 20
_MAX_MARGIN_MS = 60_000
_TRIES = 6
_RETRIES_PER_PERIOD = 10


class LostLockError(ConflictError):
    """A lock that this process held was lost: another process holds it, or may hold it."""


@dataclass(frozen=True, slots=True)
class DualTimestamp:
    """A point in time by both clocks of this machine.

    Neither is sufficient alone: the wall clock may be set back, and the steady clock stops while
    the machine sleeps.
    """

    wall_ms: int
    steady_ms: int

    @classmethod
    def now(cls, clock: Clock) -> DualTimestamp:
        """Return the current time."""
        return cls(clock.now_ms(), clock.monotonic_ms())

    def age_ms(self, clock: Clock) -> int:
        """Return how long ago this was, by the clock that shows the longer time."""
        return max(clock.now_ms() - self.wall_ms, clock.monotonic_ms() - self.steady_ms)


def safety_margin_ms(validity_ms: int) -> int:
    """Return how much validity a lock must have left, so that a commit finishes within it."""
    return min(_MAX_MARGIN_MS, validity_ms // 3)


def acquire_with_retry(
    attempt: Callable[[], str | None], settings: LockSettings, clock: Clock
) -> None:
    """Call `attempt` until it returns None: it has acquired the lock. Else it returns the holder.

    If storage does not answer, the lock counts as held. Raises UnavailableError after `wait_ms`.
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
        remaining_ms = settings.wait_ms - waited_ms
        if remaining_ms <= 0:
            raise UnavailableError(
                "the lock of the table was not free in time", holder=holder, waited_ms=waited_ms
            ) from cause
        clock.sleep(max(1, min(pause_ms, settings.retry_ms, remaining_ms)) / 1000)
        pause_ms *= 2


def retry(action: Callable[[], None], settings: LockSettings, clock: Clock) -> bool:
    """Repeat an action a few times while storage does not answer; return whether it succeeded."""
    for tries in range(_TRIES):
        try:
            action()
        except UnavailableError:
            clock.sleep(min(_FIRST_PAUSE_MS << tries, max(1, settings.retry_ms)) / 1000)
        else:
            return True
    return False


class PeriodicTask:
    """Calls a method of an object once in a period, in a thread, while it returns True.

    A call that fails is repeated soon. The thread ends with `stop`, and also when the object is
    garbage collected: a lock or heartbeat that is no longer referenced must not be renewed.
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
        """Stop the thread and wait for it, at most `patience_s`; a running call is not aborted."""
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
        # While it waits, the thread must not keep the object referenced.
        del method
