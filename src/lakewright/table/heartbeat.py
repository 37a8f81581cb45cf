"""Heartbeats: files that a running writer renews, so that others know when it has failed."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from contextlib import suppress

from lakewright.clock import Clock
from lakewright.errors import ConflictError, InvalidError, LakewrightError
from lakewright.model.instant import InstantTime
from lakewright.model.table_config import META_FOLDER
from lakewright.storage.base import Storage
from lakewright.table.locks.retry import DualTimestamp, PeriodicTask
from lakewright.table.options import HeartbeatSettings

FOLDER = f"{META_FOLDER}/.heartbeat"
_STOP_TIMEOUT_S = 10.0
_FILE_DELETED = "this writer's heartbeat is gone: its write was rolled back"


def last_heartbeats(storage: Storage) -> dict[str, int]:
    """Return when each heartbeat was last renewed, by its instant; lists one folder."""
    return {file.name: file.modified_ms for file in storage.list_files(FOLDER)}


def live_heartbeats(
    storage: Storage, instants: Iterable[str], settings: HeartbeatSettings, now_ms: int
) -> frozenset[str]:
    """Return those of `instants` that have a live heartbeat; lists one folder."""
    check_heartbeat(settings)
    live = {
        instant
        for instant, renewed_ms in last_heartbeats(storage).items()
        if not is_expired(renewed_ms, settings, now_ms)
    }
    return frozenset(live.intersection(instants))


class Heartbeat:
    """The heartbeat of one write, renewed by a thread between `start` and `stop`.

    Once it has expired it is not renewed any more: another process may be rolling the write back
    already.
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
        """Set up a heartbeat that is not yet started.

        `inheritable`: once it has expired, another process may continue at this instant, with a
        heartbeat of its own in the same file.
        """
        check_heartbeat(settings)
        self._inheritable = inheritable
        # A sync may wait for all that other processes write to the disk, and a renewal must not be
        # late.
        self._storage = storage.unsynced()
        self._path = f"{FOLDER}/{instant}"
        self._instant = instant
        self._settings = settings
        self._clock = clock
        self._last_renewal: DualTimestamp | None = None
        self._loss_reason = ""  # why it is lost; empty while it is not
        self._renewal: PeriodicTask | None = None
        self._stop_count = 0
        # Never held during a request to storage: a renewal that hangs must not block a commit.
        self._guard = threading.Lock()

    def start(self) -> None:
        """Renew the heartbeat once, then in a thread; raises if storage does not answer."""
        if self._last_renewal is not None:
            raise InvalidError("the heartbeat was started already", instant=self._instant)
        self.beat()
        # With one tolerable miss, too, a renewal comes well before the last one expires.
        period_ms = min(self._settings.interval_ms, self._settings.expires_after_ms // 2)
        name = f"heartbeat {self._instant}"
        self._renewal = PeriodicTask(self.beat, period_ms / 1000, self._clock, name=name)

    def beat(self) -> bool:
        """Renew the heartbeat unless it is lost; return whether it was renewed. Run by the thread.

        Raises UnavailableError if storage does not answer: the next renewal may still be in time.
        """
        # Other processes read the modification time of the file, which is this time or later.
        now = DualTimestamp.now(self._clock)
        last_renewal, stop_count = self._last_renewal, self._stop_count
        if last_renewal is not None and self._check_renewal(last_renewal):
            return False
        self._storage.replace(self._path, b"")
        with self._guard:
            if stop_count == self._stop_count:
                self._last_renewal = now
            return stop_count == self._stop_count

    def verify(self) -> None:
        """Raise ConflictError if another process may have found this heartbeat expired."""
        last_renewal = self._last_renewal
        if last_renewal is None:
            raise ConflictError("the heartbeat was not started", instant=self._instant)
        reason = self._check_renewal(last_renewal)
        if reason:
            raise ConflictError(reason, instant=self._instant, file=self._path)

    def stop(self, *, leave_file: bool = False) -> None:
        """Stop the thread and delete the file; does nothing if it was never started.

        With `leave_file`, or if another process may have continued at this instant, the file stays,
        as it may be the heartbeat of that process; if it is not, it expires. A renewal that hangs
        is not waited for: the file that it creates later expires, too.
        """
        if self._renewal is not None:
            self._renewal.stop(_STOP_TIMEOUT_S)
            self._renewal = None
        with self._guard:
            last_renewal, self._last_renewal = self._last_renewal, None
            self._stop_count += 1
        if last_renewal is not None and not leave_file and not self._may_be_inherited(last_renewal):
            # The write is finished. A heartbeat file that is left over expires, and has no effect.
            with suppress(LakewrightError):
                self._storage.delete(self._path)

    def _check_renewal(self, last_renewal: DualTimestamp) -> str:
        """Return why the heartbeat is lost, empty if it is not; a lost one stays lost."""
        if not self._loss_reason:
            reason = self._find_loss_reason(last_renewal)
            with self._guard:
                self._loss_reason = self._loss_reason or reason
        return self._loss_reason

    def _may_be_inherited(self, last_renewal: DualTimestamp) -> bool:
        return self._inheritable and (
            self._has_expired(last_renewal) or self._loss_reason == _FILE_DELETED
        )

    def _has_expired(self, last_renewal: DualTimestamp) -> bool:
        return last_renewal.age_ms(self._clock) > self._settings.expires_after_ms

    def _find_loss_reason(self, last_renewal: DualTimestamp) -> str:
        if self._has_expired(last_renewal):
            return "this writer's heartbeat has expired: its write may be rolled back"
        status = self._storage.status(self._path)
        if status is None:
            return _FILE_DELETED
        if is_expired(status.modified_ms, self._settings, self._clock.now_ms()):
            return "this writer's heartbeat has expired on storage: check the clocks"
        return ""


def check_heartbeat(settings: HeartbeatSettings) -> None:
    """Raise InvalidError if a heartbeat with these settings would never be live."""
    if settings.interval_ms <= 0 or settings.misses <= 0:
        raise InvalidError(
            "a heartbeat needs an interval and a number of tolerable misses above 0",
            interval_ms=settings.interval_ms,
            misses=settings.misses,
        )


def is_expired(modified_ms: int, settings: HeartbeatSettings, now_ms: int) -> bool:
    """Whether a file is older than a live heartbeat can be."""
    return now_ms - modified_ms > settings.expires_after_ms
