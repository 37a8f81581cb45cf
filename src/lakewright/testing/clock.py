"""A clock that advances only when a test advances it."""

from __future__ import annotations

import threading
import uuid


class ManualClock:
    """A clock whose time advances only by `sleep` and `advance`; its ids count up.

    Threads may share it: a thread that sleeps advances the time for all of them.
    """

    def __init__(
        self,
        now_ms: int = 1_767_225_600_000,  # 2026-01-01 00:00 UTC
        first_id: int = 1,
    ) -> None:
        self._now_ms = now_ms
        self._ids = first_id - 1
        self._lock = threading.Lock()

    def now_ms(self) -> int:
        """The time that the clock is set to."""
        with self._lock:
            return self._now_ms

    def monotonic_ms(self) -> int:
        """The same as `now_ms`: this clock goes back only if a test sets it back."""
        return self.now_ms()

    def sleep(self, seconds: float) -> None:
        """Advance without waiting."""
        self.advance(round(seconds * 1000))

    def advance(self, milliseconds: int) -> None:
        """Advance the time; a negative number sets the clock back."""
        with self._lock:
            self._now_ms += milliseconds

    def new_id(self) -> str:
        """The next UUID of a sequence that is the same in every run."""
        with self._lock:
            self._ids += 1
            return str(uuid.UUID(int=(0xABCDEF << 104) + self._ids))
