"""Heartbeats: files that a running writer renews, so that others know when it has failed."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress

from lakewright.clock import Clock
from lakewright.errors import ConflictError, InvalidError, LakewrightError, UnavailableError
from lakewright.model.instant import InstantTime
from lakewright.model.table_config import META_FOLDER
from lakewright.storage.base import Storage
from lakewright.table.locks.retry import DualTimestamp, PeriodicTask
from lakewright.table.options import HeartbeatSettings

FOLDER = f"{META_FOLDER}/.heartbeat"
_STOP_TIMEOUT_S = 10.0
# A request that hangs leaves time for several others before the heartbeat expires.
_REQUESTS_PER_EXPIRY = 6
_MAX_HANGING_REQUESTS = 4
_FILE_DELETED = "this writer's heartbeat is gone: its write was rolled back"
_EXPIRED = "this writer's heartbeat has expired: its write may be rolled back"
# In the folder of auxiliary files, where Hudi ignores files that it does not know.
_CLOCK_PROBE = f"{META_FOLDER}/.aux/lakewright_clock"
_CLOCK_TRIES = 3


def last_heartbeats(storage: Storage) -> dict[str, int]:
    """Return when each heartbeat was last renewed, by its instant; lists one folder."""
    return {file.name: file.modified_ms for file in storage.list_files(FOLDER)}


def live_heartbeats(
    storage: Storage,
    instants: Iterable[str],
    settings: HeartbeatSettings,
    now_ms: int,
    *,
    check_clock: bool = False,
) -> frozenset[str]:
    """Return those of `instants` that have a live heartbeat; lists one folder.

    The clock of this machine may be wrong. With `check_clock`, which a process sets that acts on
    the answer, a heartbeat that seems expired is compared with the time of the storage, which costs
    writing a file; without that time it counts as live.
    """
    check_heartbeat(settings)
    candidates = frozenset(instants)
    renewed = {at: ms for at, ms in last_heartbeats(storage).items() if at in candidates}
    live = _unexpired(renewed, settings, now_ms)
    if not check_clock or len(live) == len(renewed):
        return live
    storage_ms = storage_time_ms(storage)
    if storage_ms is None:
        return frozenset(renewed)
    return _unexpired(renewed, settings, storage_ms)


def _unexpired(
    renewed: Mapping[str, int], settings: HeartbeatSettings, now_ms: int
) -> frozenset[str]:
    return frozenset(at for at, ms in renewed.items() if not is_expired(ms, settings, now_ms))


def storage_time_ms(storage: Storage) -> int | None:
    """Return the time by the clock that gives files their modification times.

    None if it is unknown: other processes that ask at the same time delete the file.
    """
    unsynced = storage.unsynced()
    for _ in range(_CLOCK_TRIES):
        unsynced.replace(_CLOCK_PROBE, b"")
        status = unsynced.status(_CLOCK_PROBE)
        unsynced.delete(_CLOCK_PROBE)
        if status is not None:
            return status.modified_ms
    return None


def check_execution_alive(
    storage: Storage, instant: InstantTime, settings: HeartbeatSettings, clock: Clock
) -> None:
    """Raise ConflictError if the heartbeat of an execution is gone or expired.

    For the tasks of an execution, which run in other processes than its heartbeat.
    """
    path = f"{FOLDER}/{instant}"
    status = storage.status(path)
    if status is None:
        raise ConflictError(_FILE_DELETED, instant=instant, file=path)
    if not is_expired(status.modified_ms, settings, clock.now_ms()):
        return
    storage_ms = storage_time_ms(storage)
    if storage_ms is not None and is_expired(status.modified_ms, settings, storage_ms):
        raise ConflictError(_EXPIRED, instant=instant, file=path)


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
        # late; nor must it wait for an answer until the heartbeat has expired.
        self._patience_s = settings.expires_after_ms / _REQUESTS_PER_EXPIRY / 1000
        self._storage = storage.unsynced().with_timeout(self._patience_s)
        self._path = f"{FOLDER}/{instant}"
        self._instant = instant
        self._settings = settings
        self._clock = clock
        self._last_renewal: DualTimestamp | None = None
        self._loss_reason = ""  # why it is lost; empty while it is not
        self._renewal: PeriodicTask | None = None
        self._hanging: list[threading.Thread] = []
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
        self._renewal = PeriodicTask(self._beat_in_time, period_ms / 1000, self._clock, name=name)

    def _beat_in_time(self) -> bool:
        """Renew the heartbeat; a request that hangs does not keep the next one waiting.

        Raises UnavailableError if the request is not answered in time. It is left to its thread,
        and counts if storage answers it after all.
        """
        self._hanging = [thread for thread in self._hanging if thread.is_alive()]
        if len(self._hanging) >= _MAX_HANGING_REQUESTS:
            raise UnavailableError("storage answers no heartbeat", file=self._path)
        request = _Request(self.beat, name=f"heartbeat {self._instant} request")
        request.start()
        request.join(self._patience_s)
        if request.is_alive():
            self._hanging.append(request)
            raise UnavailableError("storage did not answer a heartbeat in time", file=self._path)
        return request.result()

    def beat(self) -> bool:
        """Renew the heartbeat unless it is lost; return whether it was renewed.

        Raises UnavailableError if storage does not answer: the next renewal may still be in time.
        """
        # Other processes read the modification time of the file, which is this time or later.
        now = DualTimestamp.now(self._clock)
        last_renewal, stop_count = self._last_renewal, self._stop_count
        if last_renewal is not None and self._check_renewal(last_renewal):
            return False
        self._storage.replace(self._path, b"")
        with self._guard:
            is_running = stop_count == self._stop_count
            # A request that hung may be answered after a later one.
            latest = self._last_renewal
            if is_running and (latest is None or latest.steady_ms <= now.steady_ms):
                self._last_renewal = now
            return is_running

    def verify(self) -> None:
        """Raise ConflictError if another process may have found this heartbeat expired."""
        last_renewal = self._last_renewal
        if last_renewal is None:
            raise ConflictError("the heartbeat was not started", instant=self._instant)
        reason = self._check_renewal(last_renewal)
        if reason:
            raise ConflictError(reason, instant=self._instant, file=self._path)

    def is_live(self) -> bool:
        """Whether it was started and no other process may have found it expired."""
        try:
            self.verify()
        except ConflictError:
            return False
        return True

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
            return _EXPIRED
        status = self._storage.status(self._path)
        if status is None:
            return _FILE_DELETED
        if is_expired(status.modified_ms, self._settings, self._clock.now_ms()):
            return "this writer's heartbeat has expired on storage: check the clocks"
        return ""


class PlanHeartbeats:
    """The heartbeats of plans that this process has scheduled and not begun to execute.

    Real Hudi expects that the process which schedules a clustering that may expire executes it as
    well. The execution takes the heartbeat over. When this object is garbage collected, or the
    process ends, they stop and expire.
    """

    def __init__(self) -> None:
        """Set up an empty collection."""
        self._heartbeats: dict[InstantTime, Heartbeat] = {}
        self._guard = threading.Lock()

    def keep(self, instant: InstantTime, heartbeat: Heartbeat) -> None:
        """Keep the heartbeat of a plan that was scheduled just now."""
        with self._guard:
            self._heartbeats[instant] = heartbeat

    def take(self, instant: InstantTime) -> Heartbeat | None:
        """Return the heartbeat of a plan, which from now on is the caller's; None if there is none.

        So of several threads that execute the plan one gets it.
        """
        with self._guard:
            return self._heartbeats.pop(instant, None)

    def stop(self, instant: InstantTime) -> None:
        """Stop the heartbeat of a plan, unless an execution has taken it."""
        heartbeat = self.take(instant)
        if heartbeat is not None:
            heartbeat.stop()

    def stop_all(self) -> None:
        """Stop all heartbeats: other processes may execute the plans at once."""
        for instant in list(self._heartbeats):
            self.stop(instant)


class _Request(threading.Thread):
    """One call in a thread of its own, and its result."""

    def __init__(self, call: Callable[[], bool], *, name: str) -> None:
        super().__init__(name=name, daemon=True)
        self._call: Callable[[], bool] | None = call
        self._result = False
        self._error: LakewrightError | None = None

    def run(self) -> None:
        """Make the call."""
        assert self._call is not None
        try:
            self._result = self._call()
        except LakewrightError as error:
            self._error = error
        finally:
            # A heartbeat that is no longer referenced must be garbage collected.
            self._call = None

    def result(self) -> bool:
        """Return or raise what the call has returned or raised."""
        if self._error is not None:
            raise self._error
        return self._result


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
