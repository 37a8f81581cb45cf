from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from lakewright.clock import SystemClock
from lakewright.errors import ConflictError, InvalidError, UnavailableError
from lakewright.storage.base import Storage
from lakewright.storage.local import LocalStorage
from lakewright.storage.memory import MemoryStorage
from lakewright.table.heartbeat import Heartbeat, live_heartbeats
from lakewright.table.locks.retry import DualTimestamp
from lakewright.table.options import HeartbeatSettings
from lakewright.testing.clock import ManualClock
from lakewright.testing.storage import CountingStorage
from lakewright.testing.timeline_drawing import at
from support.faults import SlowStorage, UnreliableStorage, WatchedStorage
from support.processes import HANG_TIMEOUT_S, wait_until

T1, T2, T3 = at(1), at(2), at(3)
FILE = f".hoodie/.heartbeat/{T1}"
SETTINGS = HeartbeatSettings()


@pytest.fixture
def heartbeat(storage: UnreliableStorage, clock: ManualClock) -> Iterator[Heartbeat]:
    heart = Heartbeat(storage, T1, SETTINGS, clock)
    heart.start()
    yield heart
    storage.recover()
    heart.stop()


def test_a_heartbeat_is_an_empty_file_while_the_writer_is_at_work(
    memory: MemoryStorage, clock: ManualClock
) -> None:
    heart = Heartbeat(memory, T1, SETTINGS, clock)
    heart.stop()
    heart.start()
    heart.verify()
    assert memory.files() == {FILE: b""}
    heart.stop()
    assert memory.files() == {}
    heart.stop()


AGES = {
    "fresh": (0, True),
    "one beat was missed": (60_001, True),
    "as old as it may be": (120_000, True),
    "older": (120_001, False),
    "from a clock that is ahead": (-5_000, True),
}


@pytest.mark.parametrize(("age_ms", "live"), AGES.values(), ids=list(AGES))
def test_writers_are_alive_by_the_age_of_the_heartbeat(
    age_ms: int, live: bool, memory: MemoryStorage, clock: ManualClock
) -> None:
    memory.replace(FILE, b"")
    assert live_heartbeats(memory, [T1], SETTINGS, clock.now_ms() + age_ms) == (
        {T1} if live else set()
    )


def test_only_requested_heartbeats_are_checked_with_one_listing(
    memory: MemoryStorage, clock: ManualClock
) -> None:
    for instant in (T1, T2):
        memory.replace(f".hoodie/.heartbeat/{instant}", b"")
    counting = CountingStorage(memory)
    assert live_heartbeats(counting, iter([T2, T3]), SETTINGS, clock.now_ms()) == {T2}
    assert counting.calls == {"list_files": 1}


def test_without_heartbeats_no_writer_is_alive(memory: MemoryStorage, clock: ManualClock) -> None:
    assert live_heartbeats(memory, [T1], SETTINGS, clock.now_ms()) == frozenset()


def test_a_heartbeat_that_is_renewed_stays_valid(
    heartbeat: Heartbeat, memory: MemoryStorage, clock: ManualClock
) -> None:
    for _ in range(5):
        clock.advance(119_000)
        heartbeat.verify()
        assert heartbeat.beat()
        heartbeat.verify()
        assert live_heartbeats(memory, [T1], SETTINGS, clock.now_ms()) == {T1}


def test_an_expired_heartbeat_is_not_renewed(heartbeat: Heartbeat, clock: ManualClock) -> None:
    clock.advance(120_000)
    heartbeat.verify()
    clock.advance(1)
    assert not heartbeat.beat()
    clock.advance(-100_000)
    with pytest.raises(ConflictError, match="has expired"):
        heartbeat.verify()


@pytest.mark.parametrize("inheritable", [True, False])
@pytest.mark.parametrize("notices", [True, False])
def test_an_expired_execution_leaves_the_heartbeat_of_its_successor(
    notices: bool, inheritable: bool, memory: MemoryStorage, clock: ManualClock
) -> None:
    heart = Heartbeat(memory, T1, SETTINGS, clock, inheritable=inheritable)
    heart.start()
    clock.advance(120_001)
    memory.replace(FILE, b"")
    if notices:
        with pytest.raises(ConflictError, match="has expired"):
            heart.verify()
    heart.stop()
    assert memory.files() == ({FILE: b""} if inheritable else {})


def test_a_rolled_back_writer_notices_and_does_not_renew_its_heartbeat(
    heartbeat: Heartbeat, memory: MemoryStorage
) -> None:
    memory.delete(FILE)
    assert not heartbeat.beat()
    assert memory.files() == {}
    with pytest.raises(ConflictError, match="gone"):
        heartbeat.verify()


def test_a_rolled_back_writer_notices_without_a_renewal(
    heartbeat: Heartbeat, memory: MemoryStorage
) -> None:
    memory.delete(FILE)
    with pytest.raises(ConflictError, match="gone"):
        heartbeat.verify()


def test_a_storage_whose_clock_is_behind_makes_a_writer_look_dead(clock: ManualClock) -> None:
    behind = MemoryStorage.fresh(now_ms=lambda: clock.now_ms() - 120_001)
    heart = Heartbeat(behind, T1, SETTINGS, clock)
    heart.start()
    with pytest.raises(ConflictError, match="clocks"):
        heart.verify()
    heart.stop()


def test_a_beat_that_storage_does_not_answer_may_be_made_up_for(
    heartbeat: Heartbeat, storage: UnreliableStorage, clock: ManualClock
) -> None:
    for after_effect in (False, True):
        clock.advance(60_000)
        storage.fail("replace", after_effect=after_effect)
        with pytest.raises(UnavailableError):
            heartbeat.beat()
        heartbeat.verify()
        clock.advance(60_000)
        assert heartbeat.beat()
    heartbeat.verify()


def test_a_beat_counts_from_the_time_of_its_request(
    memory: MemoryStorage, clock: ManualClock
) -> None:
    heart = Heartbeat(SlowStorage(memory, clock, "replace", 100_000), T1, SETTINGS, clock)
    heart.start()
    clock.advance(20_000)
    heart.verify()
    clock.advance(1)
    with pytest.raises(ConflictError):
        heart.verify()
    heart.stop()


def test_no_writer_begins_without_a_heartbeat(
    storage: UnreliableStorage, clock: ManualClock
) -> None:
    heart = Heartbeat(storage, T1, SETTINGS, clock)
    storage.fail("replace")
    with pytest.raises(UnavailableError):
        heart.start()
    with pytest.raises(ConflictError, match="not started"):
        heart.verify()
    heart.start()
    heart.verify()
    heart.stop()


def test_a_file_that_cannot_be_deleted_is_no_error(
    heartbeat: Heartbeat, storage: UnreliableStorage, memory: MemoryStorage
) -> None:
    storage.fail("delete")
    heartbeat.stop()
    assert list(memory.files()) == [FILE]
    with pytest.raises(ConflictError):
        heartbeat.verify()


WRONG: dict[str, Callable[[Heartbeat], object]] = {
    "no heartbeat starts twice": lambda heart: heart.start(),
    "no interval": lambda heart: Heartbeat(
        MemoryStorage.fresh(), T1, HeartbeatSettings(interval_ms=0), ManualClock()
    ),
    "no misses": lambda heart: live_heartbeats(
        MemoryStorage.fresh(), [], HeartbeatSettings(misses=0), 0
    ),
}


@pytest.mark.parametrize("act", WRONG.values(), ids=list(WRONG))
def test_wrong_calls_are_reported(act: Callable[[Heartbeat], object], heartbeat: Heartbeat) -> None:
    with pytest.raises(InvalidError):
        act(heartbeat)


class HangingStorage(UnreliableStorage):
    """Lets a beat hang until it is let go; the first one gets through."""

    __slots__ = ("_beats", "hangs", "let_go")

    def __init__(self, inner: Storage) -> None:
        super().__init__(inner)
        self._beats = 0
        self.hangs = threading.Event()
        self.let_go = threading.Event()

    def replace(self, path: str, data: bytes) -> None:
        self._beats += 1
        if self._beats > 1:
            self.hangs.set()
            assert self.let_go.wait(HANG_TIMEOUT_S)
        super().replace(path, data)


@pytest.fixture
def hanging(memory: MemoryStorage) -> Iterator[HangingStorage]:
    storage = HangingStorage(memory)
    yield storage
    storage.let_go.set()


def test_a_renewal_that_hangs_blocks_no_process(
    hanging: HangingStorage,
    memory: MemoryStorage,
    clock: ManualClock,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("lakewright.table.heartbeat._STOP_TIMEOUT_S", 0.01)
    heart = Heartbeat(hanging, T1, HeartbeatSettings(interval_ms=20, misses=6000), clock)
    heart.start()
    thread = heartbeat_thread()
    assert thread is not None
    assert hanging.hangs.wait(HANG_TIMEOUT_S)
    heart.verify()
    clock.advance(120_001)
    with pytest.raises(ConflictError, match="has expired"):
        heart.verify()
    heart.stop()
    assert memory.files() == {}
    hanging.let_go.set()
    thread.join(HANG_TIMEOUT_S)
    # What comes late looks like the leftover of a killed process, and expires like one.
    assert list(memory.files()) == [FILE]
    with pytest.raises(ConflictError, match="not started"):
        heart.verify()


class OneHangs(UnreliableStorage):
    """Lets the second beat hang until it is let go; `beats` counts those that are over."""

    __slots__ = ("beats", "calls", "let_go", "others")

    def __init__(self, inner: Storage) -> None:
        super().__init__(inner)
        self.calls = self.beats = 0
        self.let_go = threading.Event()
        self.others = threading.Event()

    def replace(self, path: str, data: bytes) -> None:
        self.calls += 1
        if self.calls == 2:
            assert self.let_go.wait(HANG_TIMEOUT_S)
        super().replace(path, data)
        self.beats += 1
        if self.beats == 4:
            self.others.set()


def test_a_renewal_that_hangs_does_not_stop_the_others(memory: MemoryStorage) -> None:
    clock = SetClock()
    storage = OneHangs(MemoryStorage.fresh(now_ms=clock.now_ms))
    heart = Heartbeat(storage, T1, HeartbeatSettings(interval_ms=40, misses=3), clock)
    heart.start()
    assert storage.others.wait(HANG_TIMEOUT_S)
    heart.verify()
    last = heart._last_renewal
    clock.time_ms += 100
    wait_until(lambda: heart._last_renewal != last)
    # The answer that comes late is older than what came since.
    late = next(t for t in threading.enumerate() if t.name == f"heartbeat {T1} request")
    clock.time_ms += 100
    wait_until(lambda: heart._last_renewal == DualTimestamp.now(clock))
    storage.let_go.set()
    late.join(HANG_TIMEOUT_S)
    heart.verify()
    heart.stop()


class SetClock(SystemClock):
    """A clock that stands still until it is set."""

    time_ms = 1_767_225_600_000

    def now_ms(self) -> int:
        return self.time_ms

    def monotonic_ms(self) -> int:
        return self.time_ms


def test_requests_that_all_hang_are_not_piled_up(
    hanging: HangingStorage, clock: ManualClock
) -> None:
    heart = Heartbeat(hanging, T1, HeartbeatSettings(interval_ms=6, misses=1), clock)
    heart.start()

    def requests() -> int:
        return sum(t.name == f"heartbeat {T1} request" for t in threading.enumerate())

    wait_until(lambda: len(heart._hanging) == 4)
    with pytest.raises(UnavailableError, match="answers no heartbeat"):
        heart._beat_in_time()
    assert requests() == 4
    hanging.let_go.set()
    wait_until(lambda: requests() == 0)
    heart.stop()


def test_a_request_is_given_up_long_before_the_heartbeat_expires(clock: ManualClock) -> None:
    timeouts: list[float] = []

    class Recorded(UnreliableStorage):
        __slots__ = ()

        def with_timeout(self, seconds: float) -> Storage:
            timeouts.append(seconds)
            return self

    Heartbeat(Recorded(MemoryStorage.fresh()), T1, SETTINGS, clock)
    assert timeouts == [20.0]


OFTEN = HeartbeatSettings(interval_ms=5, misses=1_000_000)


def test_a_thread_beats_until_it_is_stopped_and_outlives_a_silent_storage(tmp_path: Path) -> None:
    watched = WatchedStorage(LocalStorage(str(tmp_path), durable=False), "replace", times=5)
    heart = Heartbeat(watched, T1, OFTEN, SystemClock())
    heart.start()
    watched.fail("replace", "status", times=2)
    assert watched.happened.wait(HANG_TIMEOUT_S)
    heart.verify()
    heart.stop()
    assert not watched.exists(FILE)
    assert heartbeat_thread() is None


def test_the_heartbeat_of_a_writer_without_references_stops(
    memory: MemoryStorage, clock: ManualClock
) -> None:
    heart = Heartbeat(memory, T1, SETTINGS, clock)
    heart.start()
    thread = heartbeat_thread()
    assert thread is not None
    del heart
    gc.collect()
    thread.join(HANG_TIMEOUT_S)
    assert not thread.is_alive()
    assert list(memory.files()) == [FILE]


def heartbeat_thread() -> threading.Thread | None:
    return next((t for t in threading.enumerate() if t.name == f"heartbeat {T1}"), None)
