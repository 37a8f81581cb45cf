"""The lock that writers of a table hold while they change its timeline.

The protocol of locks, running work under a lock, choosing the provider by the settings, and the
lock for the threads of one process.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol, TypeVar

from lakewright.clock import Clock
from lakewright.errors import ConflictError, InvalidError, UnavailableError, UnsupportedError
from lakewright.storage.base import Storage, VersionedStorage
from lakewright.storage.object_store import SCHEMES as OBJECT_SCHEMES
from lakewright.table.locks.file_lock import FileLock
from lakewright.table.locks.retry import LostLockError
from lakewright.table.locks.storage_lock import StorageLock
from lakewright.table.options import LockSettings

Result = TypeVar("Result")

_TRIES = 4


class Lock(Protocol):
    """A mutual exclusion lock between the writers of one table; not re-entrant."""

    def acquire(self) -> None:
        """Wait for the lock and acquire it; raise UnavailableError after `wait_ms`."""
        ...

    def verify(self) -> None:
        """Raise LostLockError unless this process holds the lock for a while longer."""
        ...

    def release(self) -> None:
        """Release the lock; does nothing if it was lost or never held."""
        ...


@contextmanager
def acquired(lock: Lock) -> Iterator[None]:
    """Hold a lock for a block."""
    lock.acquire()
    try:
        yield
    finally:
        lock.release()


def run_locked(new_lock: Callable[[], Lock], work: Callable[[Lock], Result]) -> Result:
    """Run `work` under a lock; run it again from the start under a new lock if the lock was lost.

    Real Hudi deletes lock files that it considers abandoned, even those of running writers. So
    `work` verifies its lock before the step that needs it; until then it is repeatable.
    """
    for _ in range(_TRIES - 1):
        lock = new_lock()
        with suppress(LostLockError), acquired(lock):
            return work(lock)
    lock = new_lock()
    with acquired(lock):
        return work(lock)


class _Kind(StrEnum):
    IN_PROCESS = "in_process"
    FILE = "file"
    STORAGE = "storage"


_KINDS = {
    **{kind.value: kind for kind in _Kind},
    "InProcessLockProvider": _Kind.IN_PROCESS,
    "FileSystemBasedLockProvider": _Kind.FILE,
    "StorageBasedLockProvider": _Kind.STORAGE,
}
# The other providers of Hudi 1.2. They are refused, not replaced: a writer that takes another lock
# than the other writers of the table is not protected from them.
_UNSUPPORTED = {
    "ZookeeperBasedLockProvider",
    "ZookeeperBasedImplicitBasePathLockProvider",
    "HiveMetastoreBasedLockProvider",
    "DynamoDBBasedLockProvider",
    "DynamoDBBasedImplicitPartitionKeyLockProvider",
    "NoopLockProvider",
}


def lock_for(
    storage: Storage, settings: LockSettings, clock: Clock, *, several_writers: bool
) -> Lock:
    """Return the lock of the table in `storage`, of the kind that the settings name."""
    kind = _kind_of(settings.provider) or _default_kind(storage, several_writers=several_writers)
    if kind is _Kind.IN_PROCESS:
        return InProcessLock(storage.root, settings)
    if kind is _Kind.FILE:
        return FileLock(storage, settings, clock)
    if not isinstance(storage, VersionedStorage):
        raise UnsupportedError(
            "the storage has no conditional writes, which the storage lock needs: use file",
            table=storage.root,
        )
    return StorageLock(storage, settings, clock)


def _kind_of(provider: str | None) -> _Kind | None:
    if not provider:
        return None
    name = provider.rpartition(".")[2]
    if name in _UNSUPPORTED:
        raise UnsupportedError(
            "this lock provider is not supported; let all writers of the table use storage "
            "(object stores) or file (disks, HDFS)",
            provider=provider,
        )
    kind = _KINDS.get(name) or _KINDS.get(provider.lower())
    if kind is None:
        raise InvalidError("there is no such lock provider", provider=provider, known=[*_KINDS])
    return kind


def _default_kind(storage: Storage, *, several_writers: bool) -> _Kind:
    if not several_writers:
        return _Kind.IN_PROCESS
    scheme = storage.root.partition(":")[0]
    return _Kind.STORAGE if scheme in OBJECT_SCHEMES else _Kind.FILE


@dataclass(slots=True)
class _Slot:
    """The lock of one table in this process, and the thread that holds it."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    holder: str = ""


_SLOTS: dict[str, _Slot] = {}
_SLOTS_GUARD = threading.Lock()


class InProcessLock:
    """A lock between the threads of this process; other processes do not see it."""

    def __init__(self, root: str, settings: LockSettings) -> None:
        self._root = root
        self._wait_ms = max(0, settings.wait_ms)
        self._held_slot: _Slot | None = None

    def acquire(self) -> None:
        """Wait for the lock and acquire it."""
        if self._held_slot is not None:
            raise InvalidError("the lock is held already", table=self._root)
        with _SLOTS_GUARD:
            slot = _SLOTS.setdefault(self._root, _Slot())
        if not slot.lock.acquire(timeout=min(self._wait_ms / 1000, threading.TIMEOUT_MAX)):
            raise UnavailableError(
                "the lock of the table was not free in time",
                holder=slot.holder,
                waited_ms=self._wait_ms,
            )
        slot.holder = threading.current_thread().name
        self._held_slot = slot

    def verify(self) -> None:
        """Raise ConflictError unless the lock is held; once held, it cannot be lost."""
        if self._held_slot is None:
            raise ConflictError("the lock of the table is not held", table=self._root)

    def release(self) -> None:
        """Release the lock; does nothing if it is not held."""
        slot, self._held_slot = self._held_slot, None
        if slot is not None:
            slot.holder = ""
            slot.lock.release()
