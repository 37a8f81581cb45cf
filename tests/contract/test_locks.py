"""What every lock promises, whatever it is made of."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from lakewright.clock import SystemClock
from lakewright.errors import ConflictError, InvalidError, UnavailableError
from lakewright.storage.base import Storage
from lakewright.storage.factory import storage_for
from lakewright.storage.local import LocalStorage
from lakewright.storage.memory import MemoryStorage
from lakewright.table.locks.base import Lock, acquired, lock_for
from lakewright.table.options import LockSettings
from lakewright.testing.clock import ManualClock
from lakewright.testing.s3 import S3Server
from support.faults import UnreliableStorage

NewLock = Callable[[], Lock]


@pytest.fixture(params=["memory", "local", "s3"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Storage:
    if request.param == "memory":
        return MemoryStorage.fresh()
    if request.param == "local":
        return LocalStorage(f"{tmp_path}/a table")
    moto = request.getfixturevalue("moto")
    assert isinstance(moto, S3Server)
    return storage_for(f"s3://lake/{secrets.token_hex(4)}", moto.options())


@pytest.fixture
def storage(place: Storage) -> UnreliableStorage:
    return UnreliableStorage(place)


@pytest.fixture(params=["in_process", "file", "storage"])
def settings(request: pytest.FixtureRequest) -> LockSettings:
    return LockSettings(provider=request.param, wait_ms=20, retry_ms=5)


@pytest.fixture
def new_lock(storage: UnreliableStorage, settings: LockSettings) -> NewLock:
    clock = ManualClock()
    return lambda: lock_for(storage, settings, clock, several_writers=True)


def test_a_lock_that_is_held_is_refused_to_others(new_lock: NewLock) -> None:
    with acquired(new_lock()), pytest.raises(UnavailableError, match="not free in time") as refused:
        new_lock().acquire()
    assert refused.value.facts["holder"]


def test_a_released_lock_is_free(new_lock: NewLock) -> None:
    first, second = new_lock(), new_lock()
    for lock in (first, second, first):
        with acquired(lock):
            lock.verify()


def test_a_lock_is_not_reentrant(new_lock: NewLock) -> None:
    lock = new_lock()
    with acquired(lock), pytest.raises(InvalidError):
        lock.acquire()
    with acquired(new_lock()):
        pass


def test_only_the_holder_of_a_lock_verifies_it(new_lock: NewLock) -> None:
    lock, other = new_lock(), new_lock()
    with pytest.raises(ConflictError):
        lock.verify()
    with acquired(lock):
        lock.verify()
        lock.verify()
        with pytest.raises(ConflictError):
            other.verify()
    with pytest.raises(ConflictError):
        lock.verify()


def test_releasing_a_lock_that_is_not_held_changes_nothing(new_lock: NewLock) -> None:
    lock, refused = new_lock(), new_lock()
    refused.release()
    with acquired(lock):
        with pytest.raises(UnavailableError):
            refused.acquire()
        refused.release()
        lock.verify()
        with pytest.raises(UnavailableError):
            new_lock().acquire()
    lock.release()


def test_an_error_releases_the_lock(new_lock: NewLock) -> None:
    with pytest.raises(ZeroDivisionError), acquired(new_lock()):
        raise ZeroDivisionError
    with acquired(new_lock()):
        pass


def test_tables_do_not_disturb_each_other(new_lock: NewLock, settings: LockSettings) -> None:
    other = lock_for(MemoryStorage.fresh(), settings, ManualClock(), several_writers=True)
    with acquired(new_lock()), acquired(other):
        other.verify()


ALL = ("create", "read", "read_versioned", "replace_if", "status", "delete")


@pytest.mark.parametrize("after_effect", [False, True], ids=["without effect", "after effect"])
def test_calls_that_storage_does_not_answer_are_retried(
    new_lock: NewLock, storage: UnreliableStorage, *, after_effect: bool
) -> None:
    lock = new_lock()
    storage.fail(*ALL, after_effect=after_effect)
    lock.acquire()
    storage.recover()
    lock.verify()
    with pytest.raises(UnavailableError):
        new_lock().acquire()
    storage.fail(*ALL, after_effect=after_effect)
    lock.release()
    storage.recover()
    with acquired(new_lock()):
        pass


def test_a_process_that_gives_up_on_a_silent_storage_leaves_no_lock(
    new_lock: NewLock, storage: UnreliableStorage, settings: LockSettings
) -> None:
    if settings.provider != "in_process":
        storage.fail("create", "replace_if", times=100, after_effect=True)
        storage.fail("read", times=7)
        with pytest.raises(UnavailableError):
            new_lock().acquire()
        storage.recover()
    with acquired(new_lock()):
        pass


def test_threads_exclude_each_other(storage: UnreliableStorage, settings: LockSettings) -> None:
    patient = LockSettings(provider=settings.provider, wait_ms=60_000, retry_ms=2)
    inside: list[str] = []
    crowds: list[int] = []

    def work() -> None:
        lock = lock_for(storage, patient, SystemClock(), several_writers=True)
        for _ in range(3):
            with acquired(lock):
                inside.append("one")
                lock.verify()
                crowds.append(len(inside))
                inside.pop()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert crowds == [1] * 12
