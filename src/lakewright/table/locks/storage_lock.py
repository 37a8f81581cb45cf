"""A lock in a small JSON file, changed only by conditional writes; real Hudi uses the same file.

It is valid for a time and is renewed while it is held, so a writer that crashes does not block
others for long. The file is never deleted: releasing the lock marks it as expired.
"""

from __future__ import annotations

import json
import threading
from dataclasses import dataclass, replace

from lakewright.clock import Clock
from lakewright.errors import ConflictError, CorruptError, InvalidError
from lakewright.model.table_config import META_FOLDER
from lakewright.storage.base import MissingFileError, VersionedStorage
from lakewright.table.locks.retry import (
    DualTimestamp,
    LostLockError,
    PeriodicTask,
    acquire_with_retry,
    retry,
    safety_margin_ms,
)
from lakewright.table.options import LockSettings

PATH = f"{META_FOLDER}/.locks/table_lock.json"

# How far the clocks of two writers may be apart; the same as in real Hudi.
_CLOCK_SKEW_MS = 500
_RENEWALS_PER_VALIDITY = 3


@dataclass(frozen=True, slots=True)
class LockFile:
    """The content of the lock file: whether it was released, its validity, and its owner."""

    expired: bool
    valid_until_ms: int
    owner: str

    def is_free(self, now_ms: int) -> bool:
        """Whether another writer may acquire the lock."""
        return self.expired or now_ms > self.valid_until_ms + _CLOCK_SKEW_MS


def format_lock_file(lock: LockFile) -> bytes:
    """Return the bytes of a lock file."""
    fields = {"expired": lock.expired, "validUntil": lock.valid_until_ms, "owner": lock.owner}
    return json.dumps(fields, separators=(",", ":")).encode("utf-8")


def parse_lock_file(data: bytes) -> LockFile:
    """Parse the bytes of a lock file; the inverse of `format_lock_file`."""
    try:
        fields = json.loads(data)
        expired, until, owner = fields["expired"], fields["validUntil"], fields["owner"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise CorruptError("not the document of a lock", content=data[:200]) from error
    # In Python `True` is an int, but it is not a time.
    if type(expired) is not bool or type(until) is not int or type(owner) is not str:
        raise CorruptError("not the document of a lock", content=data[:200])
    return LockFile(expired, until, owner)


@dataclass(frozen=True, slots=True)
class _HeldLock:
    lock: LockFile
    version: str
    since: DualTimestamp


class StorageLock:
    """The file `.hoodie/.locks/table_lock.json`, renewed by a thread while the lock is held.

    A lock that was not renewed in time stays lost, even if no other writer has acquired it.
    """

    def __init__(self, storage: VersionedStorage, settings: LockSettings, clock: Clock) -> None:
        if not 0 < settings.storage_renew_s * _RENEWALS_PER_VALIDITY <= settings.storage_validity_s:
            raise InvalidError(
                "a storage lock must be valid for three renewals at least",
                validity_s=settings.storage_validity_s,
                renew_s=settings.storage_renew_s,
            )
        self._storage = storage
        self._settings = settings
        self._clock = clock
        self._validity_ms = settings.storage_validity_s * 1000
        self._margin_ms = safety_margin_ms(self._validity_ms)
        self._held_lock: _HeldLock | None = None
        self._loss_reason = ""  # why it is lost; empty while it is not
        self._guard = threading.RLock()
        self._renewal: PeriodicTask | None = None

    def acquire(self) -> None:
        """Wait for the lock and acquire it; from then on a thread renews it."""
        if self._held_lock is not None:
            raise InvalidError("the lock is held already", file=PATH)
        owner = self._clock.new_id()
        self._loss_reason = ""
        try:
            acquire_with_retry(lambda: self._attempt(owner), self._settings, self._clock)
        finally:
            # The file may have been written though storage did not answer.
            if self._held_lock is None:
                retry(lambda: self._expire(owner), self._settings, self._clock)
        period_s = self._settings.storage_renew_s
        self._renewal = PeriodicTask(self.renew, period_s, self._clock, name="storage lock")

    def verify(self) -> None:
        """Raise LostLockError unless this process holds the lock for long enough to commit.

        This renews the lock: only a conditional write proves that no other writer acquired it.
        """
        with self._guard:
            self._check_validity()
            self.renew()
            self._check_validity()

    def renew(self) -> bool:
        """Renew the full validity of the lock unless it is lost; return whether it is held.

        Run by the thread. Raises UnavailableError if storage does not answer: then the validity of
        the lock stays as it was.
        """
        with self._guard:
            held_lock = self._held_lock
            if held_lock is None or self._loss_reason:
                return False
            now = DualTimestamp.now(self._clock)
            if held_lock.since.age_ms(self._clock) >= self._validity_ms:
                self._loss_reason = "the lock was not renewed in time"
                return False
            lock = replace(held_lock.lock, valid_until_ms=now.wall_ms + self._validity_ms)
            try:
                version = self._storage.replace_if(PATH, format_lock_file(lock), held_lock.version)
            except ConflictError:
                return self._is_still_ours(held_lock)
            self._held_lock = _HeldLock(lock, version, now)
            return True

    def release(self) -> None:
        """Stop the renewal and mark the lock as expired, if this process still owns it."""
        if self._renewal is not None:
            self._renewal.stop()
            self._renewal = None
        held_lock, self._held_lock = self._held_lock, None
        if held_lock is not None:
            # If storage does not answer at all, the lock expires with its validity.
            retry(lambda: self._expire(held_lock.lock.owner), self._settings, self._clock)

    def _attempt(self, owner: str) -> str | None:
        """Try once to acquire the lock; return None, or its holder."""
        try:
            stored = self._load()
        except CorruptError as error:
            return str(error)
        now = DualTimestamp.now(self._clock)
        if stored and stored[0].owner != owner and not stored[0].is_free(now.wall_ms):
            return f"{stored[0].owner}, valid until {stored[0].valid_until_ms}"
        lock = LockFile(False, now.wall_ms + self._validity_ms, owner)
        try:
            version = self._storage.replace_if(PATH, format_lock_file(lock), stored and stored[1])
        except ConflictError:
            return "another writer that was faster"
        if self._validity_ms - now.age_ms(self._clock) < self._margin_ms:
            return "ourselves, but storage answered so late that it is no longer valid"
        self._held_lock = _HeldLock(lock, version, now)
        return None

    def _is_still_ours(self, held_lock: _HeldLock) -> bool:
        """Whether a renewal was refused because an earlier one succeeded without an answer."""
        try:
            stored = self._load()
        except CorruptError:
            stored = None
        if stored and stored[0].owner == held_lock.lock.owner and not stored[0].expired:
            # When that renewal was written is unknown, so the known validity is not extended.
            self._held_lock = replace(held_lock, version=stored[1])
            return True
        self._loss_reason = "the lock was taken away"
        return False

    def _check_validity(self) -> None:
        if self._held_lock is None:
            raise ConflictError("the lock of the table is not held", file=PATH)
        remaining_ms = self._validity_ms - self._held_lock.since.age_ms(self._clock)
        if remaining_ms <= 0:
            self._loss_reason = self._loss_reason or "the lock was not renewed in time"
        if self._loss_reason:
            raise LostLockError(self._loss_reason, file=PATH)
        if remaining_ms < self._margin_ms:
            raise LostLockError("the lock is about to end", file=PATH, left_ms=remaining_ms)

    def _expire(self, owner: str) -> None:
        try:
            stored = self._load()
        except CorruptError:
            return
        if stored is None or stored[0].owner != owner or stored[0].expired:
            return
        try:
            expired = format_lock_file(replace(stored[0], expired=True))
            self._storage.replace_if(PATH, expired, stored[1])
        except ConflictError:
            return

    def _load(self) -> tuple[LockFile, str] | None:
        try:
            data, version = self._storage.read_versioned(PATH)
        except MissingFileError:
            return None
        return parse_lock_file(data), version
