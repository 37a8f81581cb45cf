from __future__ import annotations

import json
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakewright.errors import (
    ConflictError,
    InvalidError,
    LakewrightError,
    UnavailableError,
    UnsupportedError,
)
from lakewright.storage.base import Storage
from lakewright.storage.local import LocalStorage
from lakewright.storage.memory import MemoryStorage
from lakewright.storage.object_store import ObjectStorage
from lakewright.table.locks.base import InProcessLock, Lock, acquired, lock_for
from lakewright.table.locks.file_lock import FileLock
from lakewright.table.locks.storage_lock import PATH, StorageLock
from lakewright.table.options import LockSettings
from lakewright.testing.checksums import sidecar_of
from lakewright.testing.clock import ManualClock
from lakewright.testing.storage import Crash, CrashingStorage
from support.faults import UnreliableStorage

LOCK = ".hoodie/lock"
MINUTE = 60_000
QUICK = LockSettings(wait_ms=20, retry_ms=5)
EXPIRING = replace(QUICK, file_expire_minutes=10)

PROVIDERS: dict[str, tuple[str | None, bool, str, type[object]]] = {
    "a single writer locks within the process": (None, False, "memory", InProcessLock),
    "a single writer on an object store too": (None, False, "s3", InProcessLock),
    "several writers on a disk share a file": (None, True, "local", FileLock),
    "several writers in memory share a file": (None, True, "memory", FileLock),
    "several writers on an object store share a document": (None, True, "s3", StorageLock),
    "an empty name is none": ("", True, "memory", FileLock),
    "a short name": ("storage", False, "memory", StorageLock),
    "a short name in capitals": ("FILE", True, "memory", FileLock),
    "what is asked for wins over what is usual": ("in_process", True, "s3", InProcessLock),
    "Hudi's class for one process": (
        "org.apache.hudi.client.transaction.lock.InProcessLockProvider", True, "memory",
        InProcessLock),
    "Hudi's class for files": (
        "org.apache.hudi.client.transaction.lock.FileSystemBasedLockProvider", True, "s3",
        FileLock),
    "Hudi's class for documents, in any package": (
        "com.example.StorageBasedLockProvider", True, "local", StorageLock),
    "Hudi's class without a package": ("StorageBasedLockProvider", True, "memory", StorageLock),
}  # fmt: skip


@pytest.mark.parametrize(
    ("provider", "several", "place", "kind"), PROVIDERS.values(), ids=list(PROVIDERS)
)
def test_the_lock_of_a_table(
    provider: str | None, several: bool, place: str, kind: type[object], tmp_path: Path
) -> None:
    storages: dict[str, Callable[[], Storage]] = {
        "memory": MemoryStorage.fresh,
        "local": lambda: LocalStorage(str(tmp_path)),
        "s3": lambda: ObjectStorage.at("s3://bucket/table", {"region": "us-east-1"}),
    }
    settings = LockSettings(provider=provider)
    lock = lock_for(storages[place](), settings, ManualClock(), several_writers=several)
    assert type(lock) is kind


REFUSED: dict[str, tuple[str, type[LakewrightError]]] = {
    "Zookeeper is not reached": (
        "org.apache.hudi.client.transaction.lock.ZookeeperBasedLockProvider", UnsupportedError),
    "DynamoDB is not reached": (
        "org.apache.hudi.aws.transaction.lock.DynamoDBBasedLockProvider", UnsupportedError),
    "Hive is not reached": (
        "org.apache.hudi.hive.transaction.lock.HiveMetastoreBasedLockProvider", UnsupportedError),
    "no lock at all is no lock": ("NoopLockProvider", UnsupportedError),
    "nonsense": ("redis", InvalidError),
    "a package alone": ("org.apache.hudi.", InvalidError),
}  # fmt: skip


@pytest.mark.parametrize(("provider", "error"), REFUSED.values(), ids=list(REFUSED))
def test_other_providers_are_refused(provider: str, error: type[LakewrightError]) -> None:
    settings = LockSettings(provider=provider)
    with pytest.raises(error) as refused:
        lock_for(MemoryStorage.fresh(), settings, ManualClock(), several_writers=True)
    assert "storage" in str(refused.value)
    assert "file" in str(refused.value)


class PlainStorage:
    """A storage without conditional writes, as far as locks look at it."""

    root = "plain://table"


@pytest.mark.parametrize(
    "settings",
    [LockSettings(provider="storage"), LockSettings(provider="file", file_expire_minutes=1)],
    ids=["a storage lock", "an expiring file lock"],
)
def test_a_lock_without_conditional_writes_is_unsupported(settings: LockSettings) -> None:
    plain: Any = PlainStorage()
    with pytest.raises(UnsupportedError, match="no conditional writes"):
        lock_for(plain, settings, ManualClock(), several_writers=True)


def test_the_refusal_names_the_thread_that_holds_the_lock() -> None:
    first, second = (InProcessLock("memory://named", QUICK) for _ in range(2))
    thread = threading.Thread(target=first.acquire, name="the other writer")
    thread.start()
    thread.join()
    with pytest.raises(UnavailableError, match="the other writer"):
        second.acquire()
    first.release()
    with acquired(second):
        second.verify()


def test_the_file_names_its_owner_and_goes_with_the_lock(
    memory: MemoryStorage, clock: ManualClock
) -> None:
    with acquired(FileLock(memory, QUICK, clock)):
        (path, data), *others = memory.files().items()
        assert path == LOCK
        assert others == []
        assert json.loads(data).keys() == {"owner", "time"}
    assert memory.files() == {}


FOLDERS = {
    "the usual one": ("", "file:///lake/t", ".hoodie/lock"),
    "one below the table": (".hoodie/.aux", "file:///lake/t", ".hoodie/.aux/lock"),
    "a whole path": ("/lake/t/.hoodie/.aux", "file:///lake/t", ".hoodie/.aux/lock"),
    "a URI with one slash": ("file:/lake/t/locks/", "file:///lake/t", "locks/lock"),
    "the table itself": ("/lake/t", "file:///lake/t", "lock"),
    "another spelling of S3": ("s3://b/t/x", "s3a://b/t", "x/lock"),
}


class Rooted(UnreliableStorage):
    """Files in memory that claim to be elsewhere."""

    __slots__ = ("claimed",)

    def __init__(self, inner: Storage, claimed: str) -> None:
        super().__init__(inner)
        self.claimed = claimed

    @property
    def root(self) -> str:
        return self.claimed


@pytest.mark.parametrize(("folder", "root", "path"), FOLDERS.values(), ids=list(FOLDERS))
def test_the_folder_of_the_file(
    folder: str, root: str, path: str, memory: MemoryStorage, clock: ManualClock
) -> None:
    with acquired(FileLock(Rooted(memory, root), replace(QUICK, file_path=folder), clock)):
        assert list(memory.files()) == [path]


@pytest.mark.parametrize("folder", ["/elsewhere", "/lake/table/x", "s3://b/t", "../t", "a//b"])
def test_a_folder_elsewhere_is_refused(
    folder: str, memory: MemoryStorage, clock: ManualClock
) -> None:
    with pytest.raises(InvalidError):
        FileLock(Rooted(memory, "file:///lake/t"), replace(QUICK, file_path=folder), clock)


JAVA = b'{"lockCreateTime":"2026-01-01 00:00:00.000","lockThreadName":"main","lockStackInfo":[]}'
FOREIGN = {
    "empty": (b"", "empty"),
    "as real Hudi writes it": (JAVA, "lockThreadName"),
    "not JSON": (b"\xff{", "{"),
    "JSON, but no object": (b"[1]", "[1]"),
    "an owner that is no text": (b'{"owner":1}', "owner"),
}


@pytest.mark.parametrize(("content", "message"), FOREIGN.values(), ids=list(FOREIGN))
def test_a_lock_file_of_another_process_holds_the_lock(
    content: bytes, message: str, memory: MemoryStorage, clock: ManualClock
) -> None:
    memory.create(LOCK, content)
    clock.advance(60 * 24 * MINUTE)
    with pytest.raises(UnavailableError) as refused:
        FileLock(memory, QUICK, clock).acquire()
    assert message in str(refused.value.facts["holder"])
    assert memory.files() == {LOCK: content}


@pytest.mark.parametrize("content", [b"", JAVA], ids=["empty", "as real Hudi writes it"])
def test_a_file_that_has_expired_is_taken_over(
    content: bytes, memory: MemoryStorage, clock: ManualClock
) -> None:
    memory.create(LOCK, content)
    clock.advance(10 * MINUTE - 100)
    with pytest.raises(UnavailableError):
        FileLock(memory, EXPIRING, clock).acquire()
    clock.advance(101)
    with acquired(lock := FileLock(memory, EXPIRING, clock)):
        lock.verify()
        with pytest.raises(UnavailableError):
            FileLock(memory, EXPIRING, clock).acquire()
    assert memory.files() == {}


def test_a_damaged_checksum_means_that_another_process_writes_the_lock(
    tmp_path: Path, clock: ManualClock
) -> None:
    storage = LocalStorage(str(tmp_path))
    (tmp_path / ".hoodie").mkdir()
    (tmp_path / LOCK).write_bytes(JAVA)
    (tmp_path / ".hoodie/.lock.crc").write_bytes(sidecar_of(b"something else"))
    with pytest.raises(UnavailableError):
        FileLock(storage, EXPIRING, clock).acquire()
    assert (tmp_path / LOCK).read_bytes() == JAVA


def test_a_lock_held_too_long_is_not_relied_on(memory: MemoryStorage, clock: ManualClock) -> None:
    slow, quick = (FileLock(memory, EXPIRING, clock) for _ in range(2))
    slow.acquire()
    clock.advance(8 * MINUTE)
    slow.verify()
    clock.advance(MINUTE + 1)
    with pytest.raises(ConflictError, match="too long"):
        slow.verify()
    clock.advance(MINUTE)
    with acquired(quick):
        slow.release()
        quick.verify()


def test_a_lock_is_as_old_as_the_first_try_that_may_have_made_it(
    storage: UnreliableStorage, clock: ManualClock
) -> None:
    patient = replace(EXPIRING, wait_ms=20 * MINUTE, retry_ms=MINUTE)
    lock = FileLock(storage, patient, clock)
    storage.fail("create", after_effect=True)
    storage.fail("read", times=19)
    begin = clock.now_ms()
    with acquired(lock):
        assert 9 * MINUTE < clock.now_ms() - begin < 10 * MINUTE
        with pytest.raises(ConflictError, match="too long"):
            lock.verify()


TAKEN_AWAY: dict[str, Callable[[MemoryStorage], None]] = {
    "by a Java writer that closes its client": lambda memory: memory.delete(LOCK),
    "by a Java writer that took it over": lambda memory: memory.replace(LOCK, JAVA),
    "by a Java writer that is about to write": lambda memory: memory.replace(LOCK, b""),
}


@pytest.mark.parametrize("settings", [QUICK, EXPIRING], ids=["never expires", "expires"])
@pytest.mark.parametrize("take", TAKEN_AWAY.values(), ids=list(TAKEN_AWAY))
def test_a_lock_file_that_another_process_took_is_detected_and_left_alone(
    take: Callable[[MemoryStorage], None],
    settings: LockSettings,
    memory: MemoryStorage,
    clock: ManualClock,
) -> None:
    lock = FileLock(memory, settings, clock)
    lock.acquire()
    take(memory)
    remaining = memory.files()
    with pytest.raises(ConflictError, match="taken away"):
        lock.verify()
    lock.release()
    assert memory.files() == remaining


def test_a_lock_that_cannot_be_released_is_a_warning(
    storage: UnreliableStorage, clock: ManualClock
) -> None:
    lock = FileLock(storage, QUICK, clock)
    lock.acquire()
    storage.fail("delete", times=100)
    with pytest.warns(RuntimeWarning, match="remove it"):
        lock.release()


@pytest.mark.parametrize("after_effect", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("provider", ["file", "storage"])
def test_a_writer_that_dies_anywhere_blocks_others_only_until_its_lock_expires(
    provider: str, clock: ManualClock, *, after_effect: bool
) -> None:
    settings = replace(EXPIRING, provider=provider)
    for survive in range(5):
        memory = MemoryStorage.fresh(now_ms=clock.now_ms)
        dying = CrashingStorage(memory, survive, after_effect=after_effect)
        lock = lock_for(dying, settings, clock, several_writers=True)
        with suppress(Crash), acquired(lock):
            lock.verify()
        clock.advance(10 * MINUTE + 1)
        with acquired(successor := lock_for(memory, settings, clock, several_writers=True)):
            successor.verify()


class InterruptedAtCall(UnreliableStorage):
    """Another process acts before the n-th call."""

    __slots__ = ("_act", "_calls_left")

    def __init__(self, inner: Storage, calls: int, act: Callable[[], None]) -> None:
        super().__init__(inner)
        self._calls_left = calls
        self._act = act

    def interrupt_after(self, calls: int) -> None:
        self._calls_left = calls

    def _call(self, method: Callable[..., Any], *arguments: Any) -> Any:
        self._calls_left -= 1
        if self._calls_left == -1:
            self._act()
        return super()._call(method, *arguments)


FILES_OF_A_DEAD_PROCESS: dict[str, dict[str, bytes]] = {
    "it was free": {},
    "real Hudi had it": {LOCK: JAVA, PATH: b'{"expired":false,"validUntil":1,"owner":"dead"}'},
    "it was given back": {PATH: b'{"expired":true,"validUntil":1,"owner":"other"}'},
}


@pytest.mark.parametrize("provider", ["file", "storage"])
@pytest.mark.parametrize(
    "files", FILES_OF_A_DEAD_PROCESS.values(), ids=list(FILES_OF_A_DEAD_PROCESS)
)
def test_of_two_that_take_a_lock_at_once_one_succeeds(
    files: dict[str, bytes], provider: str, clock: ManualClock
) -> None:
    settings = replace(EXPIRING, provider=provider, wait_ms=0)
    for calls in range(8):
        memory = MemoryStorage.fresh(files, now_ms=clock.now_ms)
        clock.advance(10 * MINUTE + 1)
        other = lock_for(memory, settings, clock, several_writers=True)
        won: list[bool] = []
        interrupted = InterruptedAtCall(memory, calls, partial(_take, other, won))
        lock = lock_for(interrupted, settings, clock, several_writers=True)
        _try(lock, "acquire")
        assert [_passes(lock), _passes(other)] == ([False, True] if any(won) else [True, False])
        lock.release()
        other.release()
        with acquired(successor := lock_for(memory, settings, clock, several_writers=True)):
            successor.verify()


@pytest.mark.parametrize("provider", ["file", "storage"])
def test_a_late_release_never_releases_the_lock_of_another(
    provider: str, clock: ManualClock
) -> None:
    settings = replace(EXPIRING, provider=provider, wait_ms=0)
    for calls in range(8):
        memory = MemoryStorage.fresh(now_ms=clock.now_ms)
        other = lock_for(memory, settings, clock, several_writers=True)
        interrupted = InterruptedAtCall(memory, 99, partial(_try, other, "acquire"))
        late = lock_for(interrupted, settings, clock, several_writers=True)
        late.acquire()
        clock.advance(10 * MINUTE + 1)
        interrupted.interrupt_after(calls)
        late.release()
        if not _passes(other):
            other.acquire()
        other.verify()
        other.release()


STEPS = st.sampled_from(["acquire", "renew", "release", "verify"])
TROUBLE = st.sampled_from([None, None, None, "before", "after"])
PAUSES = st.sampled_from([0, 0, 1, 400, 30_000, 299_000, 601_000])


@pytest.mark.parametrize("provider", ["file", "storage"])
@given(steps=st.lists(st.tuples(st.integers(0, 2), STEPS, TROUBLE, PAUSES), max_size=25))
def test_whatever_happens_no_two_writers_hold_a_lock(
    provider: str, steps: list[tuple[int, str, str | None, int]]
) -> None:
    clock = ManualClock()
    storage = UnreliableStorage(MemoryStorage.fresh(now_ms=clock.now_ms))
    settings = replace(EXPIRING, provider=provider, wait_ms=0)
    locks = [lock_for(storage, settings, clock, several_writers=True) for _ in range(3)]
    try:
        for writer, step, trouble, pause in steps:
            clock.advance(pause)
            if trouble:
                storage.fail("create", "replace_if", "delete", after_effect=trouble == "after")
            _try(locks[writer], step)
            storage.recover()
            assert sum(_passes(lock) for lock in locks) <= 1
    finally:
        storage.recover()
        for lock in locks:
            lock.release()


def _take(lock: Lock, won: list[bool]) -> None:
    _try(lock, "acquire")
    won.append(_passes(lock))


def _try(lock: Lock, step: str) -> None:
    try:
        getattr(lock, step, lambda: None)()
    except (ConflictError, InvalidError, UnavailableError):
        return


def _passes(lock: Lock) -> bool:
    try:
        lock.verify()
    except ConflictError:
        return False
    return True
