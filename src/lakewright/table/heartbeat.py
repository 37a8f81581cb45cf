"""Heartbeats: how a writer shows that it is alive, and how others see that it is not."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from contextlib import suppress

from lakewright.clock import Clock
from lakewright.errors import ConflictError, InvalidError, LakewrightError
from lakewright.model.instant import InstantTime
from lakewright.storage.base import Storage
from lakewright.table.locks.retry import DualTimestamp, PeriodicTask
from lakewright.table.options import HeartbeatSettings

FOLDER = ".hoodie/.heartbeat"
_PATIENCE_S = 10.0
_GONE = "this writer's heartbeat is gone: its write was rolled back"


def last_heartbeats(storage: Storage) -> dict[str, int]:
    """When each heartbeat that is there was last renewed, by its instant; one listing."""
    return {file.name: file.modified_ms for file in storage.list_files(FOLDER)}


def live_heartbeats(
    storage: Storage, instants: Iterable[str], settings: HeartbeatSettings, now_ms: int
) -> frozenset[str]:
    """Those of `instants` that have a heartbeat which is not expired; one listing."""
    check_heartbeat(settings)
    beating = {
        instant
        for instant, beat_ms in last_heartbeats(storage).items()
        if not is_expired(beat_ms, settings, now_ms)
    }
    return frozenset(beating.intersection(instants))


class Heartbeat:
    """The heartbeat of one write, renewed by a thread between `start` and `stop`.

    Once it has stopped for so long that others may take the writer for dead, it stays dead:
    somebody may be rolling the write back already.
    """

    def __init__(
        self,
        storage: Storage,
        instant: InstantTime,
        settings: HeartbeatSettings,
        clock: Clock,
        *,
        inheritable: bool = False,
    ) -> None:
        """`inheritable`: others may go on at this instant when this writer is taken for dead."""
        check_heartbeat(settings)
        self._inheritable = inheritable
        # A sync may wait for all that others write to the disk, and a beat must not be late.
        self._storage = storage.unsynced()
        self._path = f"{FOLDER}/{instant}"
        self._instant = instant
        self._settings = settings
        self._clock = clock
        self._last: DualTimestamp | None = None
        self._lost = ""
        self._beating: PeriodicTask | None = None
        self._stops = 0
        # Never held while storage is asked: a beat that hangs must not keep a commit waiting.
        self._guard = threading.Lock()

    def start(self) -> None:
        """Beat once, which raises if storage does not answer, and go on in a thread."""
        if self._last is not None:
            raise InvalidError("the heartbeat was started already", instant=self._instant)
        self.beat()
        # Also with one tolerable miss a beat comes well before the one before it expires.
        period_ms = min(self._settings.interval_ms, self._settings.expires_after_ms // 2)
        name = f"heartbeat {self._instant}"
        self._beating = PeriodicTask(self.beat, period_ms / 1000, self._clock, name=name)

    def beat(self) -> bool:
        """Renew the heartbeat unless it is lost, and tell which; the thread does this.

        UnavailableError if storage does not answer: the next beat may still be in time.
        """
        # Others go by the time of the file, which is this one or later.
        moment = DualTimestamp.now(self._clock)
        last, stops = self._last, self._stops
        if last is not None and self._lost_reason(last):
            return False
        self._storage.replace(self._path, b"")
        with self._guard:
            if stops == self._stops:
                self._last = moment
            return stops == self._stops

    def verify(self) -> None:
        """ConflictError if others may have taken this writer for dead."""
        last = self._last
        if last is None:
            raise ConflictError("the heartbeat was not started", instant=self._instant)
        lost = self._lost_reason(last)
        if lost:
            raise ConflictError(lost, instant=self._instant, file=self._path)

    def stop(self, *, leave_file: bool = False) -> None:
        """End the thread and delete the file; harmless if it was never started.

        The file is left to whoever has taken over what this writer was doing, and so it is where
        somebody may have: if it is not theirs it expires. A beat that hangs is not waited for: what
        it leaves when it ends expires, too.
        """
        if self._beating is not None:
            self._beating.stop(_PATIENCE_S)
            self._beating = None
        with self._guard:
            last, self._last = self._last, None
            self._stops += 1
        if last is not None and not leave_file and not self._may_be_inherited(last):
            # The write is over. A file that stays behind expires, and tells nobody anything.
            with suppress(LakewrightError):
                self._storage.delete(self._path)

    def _lost_reason(self, last: DualTimestamp) -> str:
        """Why the heartbeat has stopped, here or on storage, if it has; that is for good."""
        if not self._lost:
            lost = self._why_lost(last)
            with self._guard:
                self._lost = self._lost or lost
        return self._lost

    def _may_be_inherited(self, last: DualTimestamp) -> bool:
        return self._inheritable and (self._is_late(last) or self._lost == _GONE)

    def _is_late(self, last: DualTimestamp) -> bool:
        return last.age_ms(self._clock) > self._settings.expires_after_ms

    def _why_lost(self, last: DualTimestamp) -> str:
        if self._is_late(last):
            return "this writer's heartbeat has expired: its write may be rolled back"
        found = self._storage.status(self._path)
        if found is None:
            return _GONE
        if is_expired(found.modified_ms, self._settings, self._clock.now_ms()):
            return "this writer's heartbeat has expired on storage: check the clocks"
        return ""


def check_heartbeat(settings: HeartbeatSettings) -> None:
    """InvalidError if a writer with these settings would never count as alive."""
    if settings.interval_ms <= 0 or settings.misses <= 0:
        raise InvalidError(
            "a heartbeat needs an interval and a number of tolerable misses above 0",
            interval_ms=settings.interval_ms,
            misses=settings.misses,
        )


def is_expired(modified_ms: int, settings: HeartbeatSettings, now_ms: int) -> bool:
    """Whether a file is older than the heartbeat of a writer that may be alive."""
    return now_ms - modified_ms > settings.expires_after_ms
