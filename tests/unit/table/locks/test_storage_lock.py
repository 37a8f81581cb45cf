from __future__ import annotations

import gc
import threading
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakewright.clock import SystemClock
from lakewright.errors import ConflictError, CorruptError, InvalidError, UnavailableError
from lakewright.storage.memory import MemoryStorage
from lakewright.table.locks.base import acquired
from lakewright.table.locks.storage_lock import (
    PATH,
    LockFile,
    StorageLock,
    format_lock_file,
    parse_lock_file,
)
from lakewright.table.options import LockSettings
from lakewright.testing.clock import ManualClock
from support.faults import SlowStorage, UnreliableStorage, WatchedStorage
from support.processes import HANG_TIMEOUT_S

QUICK = LockSettings(wait_ms=20, retry_ms=5)


def test_the_document_is_written_as_real_hudi_reads_it(
    memory: MemoryStorage, clock: ManualClock
) -> None:
    lock = StorageLock(memory, QUICK, clock)
    lock.acquire()
    until = clock.now_ms() + 300_000
    owner = ManualClock().new_id()
    acquired = f'{{"expired":false,"validUntil":{until},"owner":"{owner}"}}'
    assert memory.files() == {PATH: acquired.encode()}
    clock.advance(5)
    lock.release()
    assert memory.files() == {PATH: acquired.replace("false", "true").encode()}


NOW = ManualClock().now_ms()
THEIRS = LockFile(False, NOW, "them")
FREE = {
    "a valid lock is not free": (replace(THEIRS, valid_until_ms=NOW + 1), False),
    "a lock is held until its end": (THEIRS, False),
    "clocks may differ by half a second": (replace(THEIRS, valid_until_ms=NOW - 500), False),
    "after that a lock has ended": (replace(THEIRS, valid_until_ms=NOW - 501), True),
    "a lock that was given back is free": (LockFile(True, NOW + 99_999, "them"), True),
}


@pytest.mark.parametrize(("theirs", "free"), FREE.values(), ids=list(FREE))
def test_when_a_document_is_free(
    theirs: LockFile, free: bool, memory: MemoryStorage, clock: ManualClock
) -> None:
    memory.create(PATH, format_lock_file(theirs))
    lock = StorageLock(memory, replace(QUICK, wait_ms=0), clock)
    if free:
        with acquired(lock):
            lock.verify()
    else:
        with pytest.raises(UnavailableError, match="them"):
            lock.acquire()
        assert parse_lock_file(memory.read(PATH)) == theirs


DAMAGED = {
    "empty": b"",
    "not JSON": b"{",
    "not UTF-8": b'{"owner":"\xff"}',
    "no object": b"[]",
    "a field is missing": b'{"expired":true,"validUntil":1}',
    "a time that is no number": b'{"expired":true,"validUntil":"1","owner":"x"}',
    "a flag that is no flag": b'{"expired":1,"validUntil":1,"owner":"x"}',
    "a flag that is a time": b'{"expired":true,"validUntil":true,"owner":"x"}',
    "no owner": b'{"expired":true,"validUntil":1,"owner":null}',
}


@pytest.mark.parametrize("content", DAMAGED.values(), ids=list(DAMAGED))
def test_a_damaged_lock_document_is_not_taken_over(
    content: bytes, memory: MemoryStorage, clock: ManualClock
) -> None:
    with pytest.raises(CorruptError):
        parse_lock_file(content)
    memory.create(PATH, content)
    with pytest.raises(UnavailableError, match="not the document of a lock"):
        StorageLock(memory, QUICK, clock).acquire()
    assert memory.files() == {PATH: content}


@given(st.builds(LockFile, st.booleans(), st.integers(), st.text()))
def test_a_document_survives_the_round_trip(lock: LockFile) -> None:
    assert parse_lock_file(format_lock_file(lock)) == lock


def test_a_lock_that_is_renewed_goes_on(memory: MemoryStorage, clock: ManualClock) -> None:
    with acquired(lock := StorageLock(memory, QUICK, clock)):
        for _ in range(10):
            clock.advance(200_000)
            lock.renew()
            lock.verify()
            assert parse_lock_file(memory.read(PATH)).valid_until_ms == clock.now_ms() + 300_000


STALLS = {
    "within its validity a lock is good": (239_000, True),
    "a commit needs time": (241_000, False),
    "after its validity it is over": (300_000, False),
    "long after": (10_000_000, False),
}


@pytest.mark.parametrize(("stalled_ms", "good"), STALLS.values(), ids=list(STALLS))
def test_a_writer_that_stalled_does_not_commit(
    stalled_ms: int, good: bool, memory: MemoryStorage, clock: ManualClock
) -> None:
    with acquired(lock := StorageLock(memory, QUICK, clock)):
        clock.advance(stalled_ms)
        if good:
            lock.verify()
        else:
            with pytest.raises(ConflictError):
                lock.verify()


@pytest.mark.parametrize("look", ["renew", "verify"])
def test_a_lock_that_has_ended_is_not_revived(
    look: str, memory: MemoryStorage, clock: ManualClock
) -> None:
    with acquired(lock := StorageLock(memory, QUICK, clock)):
        clock.advance(300_000)
        with suppress(ConflictError):
            getattr(lock, look)()
        clock.advance(-300_000)
        with pytest.raises(ConflictError, match="not renewed in time"):
            lock.verify()


def test_a_lock_that_another_process_expired_is_lost(
    memory: MemoryStorage, clock: ManualClock
) -> None:
    with acquired(lock := StorageLock(memory, QUICK, clock)):
        mine = parse_lock_file(memory.read(PATH))
        memory.replace(PATH, format_lock_file(replace(mine, expired=True)))
        with pytest.raises(ConflictError, match="taken away"):
            lock.verify()


class SteadyClock(ManualClock):
    """A machine whose wall clock can be set back while real time goes on."""

    def __init__(self) -> None:
        super().__init__()
        self.set_back_ms = 0

    def now_ms(self) -> int:
        return super().now_ms() - self.set_back_ms

    def monotonic_ms(self) -> int:
        return super().now_ms()


def test_setting_the_clock_back_makes_no_lock_last_longer(memory: MemoryStorage) -> None:
    clock = SteadyClock()
    with acquired(lock := StorageLock(memory, QUICK, clock)):
        clock.advance(301_000)
        clock.set_back_ms = 300_000
        with pytest.raises(ConflictError):
            lock.verify()


def test_a_document_that_another_process_took_is_detected_and_left_alone(
    memory: MemoryStorage, clock: ManualClock
) -> None:
    lock = StorageLock(memory, QUICK, clock)
    lock.acquire()
    theirs = format_lock_file(LockFile(False, clock.now_ms() + 300_000, "them"))
    memory.replace(PATH, theirs)
    lock.renew()
    for _ in range(2):
        with pytest.raises(ConflictError, match="taken away"):
            lock.verify()
    lock.release()
    assert memory.files() == {PATH: theirs}


def test_a_renewal_whose_answer_was_lost_does_not_lose_the_lock(
    storage: UnreliableStorage, clock: ManualClock
) -> None:
    with acquired(lock := StorageLock(storage, QUICK, clock)):
        clock.advance(30_000)
        storage.fail("replace_if", after_effect=True)
        with pytest.raises(UnavailableError):
            lock.renew()
        lock.verify()
        clock.advance(239_000 - 30_000)
        lock.verify()
        clock.advance(239_000)
        lock.verify()


def test_a_lock_whose_renewal_fails_for_too_long_is_refused(
    storage: UnreliableStorage, clock: ManualClock
) -> None:
    with acquired(lock := StorageLock(storage, QUICK, clock)):
        for _ in range(8):
            clock.advance(30_000)
            storage.fail("replace_if")
            with pytest.raises(UnavailableError):
                lock.renew()
        clock.advance(1)
        with pytest.raises(ConflictError, match="about to end"):
            lock.verify()


def test_a_lock_that_came_too_late_to_be_valid_is_taken_again(
    memory: MemoryStorage, clock: ManualClock
) -> None:
    slow = SlowStorage(memory, clock, "replace_if", 290_000)
    patient = replace(QUICK, wait_ms=600_000)
    with acquired(lock := StorageLock(slow, patient, clock)):
        lock.verify()
        assert parse_lock_file(memory.read(PATH)).valid_until_ms > clock.now_ms() + 290_000


@pytest.mark.parametrize(
    ("validity", "renew"), [(300, 0), (300, -1), (0, 0), (89, 30)], ids=lambda value: str(value)
)
def test_a_validity_without_renewals_is_refused(
    validity: int, renew: int, memory: MemoryStorage, clock: ManualClock
) -> None:
    settings = replace(QUICK, storage_validity_s=validity, storage_renew_s=renew)
    with pytest.raises(InvalidError):
        StorageLock(memory, settings, clock)


def test_a_thread_renews_while_the_lock_is_held_and_outlives_a_silent_storage(
    memory: MemoryStorage,
) -> None:
    watched = WatchedStorage(memory, "replace_if", times=4)
    often: dict[str, Any] = {"storage_renew_s": 0.005, "storage_validity_s": 3600}
    lock = StorageLock(watched, replace(QUICK, **often), SystemClock())
    with acquired(lock):
        watched.fail("replace_if", times=2)
        assert watched.happened.wait(HANG_TIMEOUT_S)
        lock.verify()
    assert parse_lock_file(memory.read(PATH)).expired


def test_a_lock_without_references_is_not_renewed(
    memory: MemoryStorage, clock: ManualClock
) -> None:
    before = set(threading.enumerate())
    lock = StorageLock(memory, QUICK, clock)
    lock.acquire()
    (thread,) = set(threading.enumerate()) - before
    del lock
    gc.collect()
    thread.join(HANG_TIMEOUT_S)
    assert not thread.is_alive()
