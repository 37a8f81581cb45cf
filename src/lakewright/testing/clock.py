"""A clock that stands still until it is told otherwise."""

from __future__ import annotations

import threading
import uuid


class ManualClock:
    """Time moves when somebody sleeps or `advance` is called; ids count up.

    Threads may share it: a sleeper moves the time for all, as if all had waited.
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
        """The time it was set to."""
        with self._lock:
            return self._now_ms

    def monotonic_ms(self) -> int:
        """The same: this clock never steps back by itself."""
        return self.now_ms()

    def sleep(self, seconds: float) -> None:
        """Advance without waiting."""
        self.advance(round(seconds * 1000))

    def advance(self, milliseconds: int) -> None:
        """Move the time; a negative step is a clock that was set back."""
        with self._lock:
            self._now_ms += milliseconds

    def new_id(self) -> str:
        """The next UUID of a series that is the same in every run."""
        with self._lock:
            self._ids += 1
            return str(uuid.UUID(int=(0xABCDEF << 104) + self._ids))
