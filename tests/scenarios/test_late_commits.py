"""Commits that land late, or without the lock: two writers never both succeed on one file group."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from lakewright.errors import ConflictError, UnavailableError
from lakewright.storage.base import Storage
from lakewright.storage.memory import MemoryStorage
from lakewright.table.markers import MarkerKind, create_marker
from lakewright.testing.clock import ManualClock
from lakewright.testing.storage import CountingStorage, Crash
from support.concurrency import Creation, InterruptedStorage, another_process
from support.tables import Row, WrittenTable, row

SEVERAL = {"hoodie.write.concurrency.mode": "OPTIMISTIC_CONCURRENCY_CONTROL"}
FILE_LOCK = {
    **SEVERAL,
    "hoodie.write.lock.provider": "file",
    "hoodie.write.lock.filesystem.expire": "1",
}
STORAGE_LOCK = {**SEVERAL, "hoodie.write.lock.provider": "storage"}
COMPLETED = r"/\d+_\d+\.(commit|replacecommit)$"
TIMELINE = ".hoodie/timeline"


class StalledWriters:
    """A table with two rows in one file group, and its writers."""

    def __init__(self, options: Mapping[str, str] | None = None) -> None:
        self.clock = ManualClock()
        self.options = options or {}
        self.storage = MemoryStorage.fresh(now_ms=self.clock.now_ms)
        self.writer().create().upsert([row("a"), row("b")])
        self.clock.advance(5000)

    def writer(self, storage: Storage | None = None) -> WrittenTable:
        return WrittenTable(storage or self.storage, self.clock, self.options)

    def stalled(self, act: Creation, pattern: str = COMPLETED) -> WrittenTable:
        return self.writer(InterruptedStorage(self.storage, pattern, act))

    def notes(self) -> dict[str, str]:
        return {record["id"]: record["note"] for record in self.writer().rows()}

    def names(self, folder: str = TIMELINE) -> list[str]:
        return [file.name for file in self.storage.list_files(folder)]


def test_a_commit_that_lands_after_its_lock_was_taken_over() -> None:
    world = StalledWriters(FILE_LOCK)

    def stall(storage: Storage, path: str, data: bytes) -> None:
        world.clock.advance(65_000)
        world.writer().upsert([row("b", 5, "from B")])
        storage.create(path, data)

    with pytest.raises(ConflictError):
        world.stalled(stall).upsert([row("a", 5, "from A")])
    assert world.notes() == {"a": "first", "b": "from B"}


def test_a_commit_that_lands_after_its_answer_was_given_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = StalledWriters(STORAGE_LOCK)
    late: list[tuple[str, bytes]] = []

    def unanswered(storage: Storage, path: str, data: bytes) -> None:
        late.append((path, data))
        raise UnavailableError("timeout")

    def sleep(seconds: float, inner: Callable[[float], None] = world.clock.sleep) -> None:
        inner(seconds)
        if late:
            ((path, data),) = late
            late.clear()
            world.writer().upsert([row("b", 5, "from B")])
            world.storage.create(path, data)

    monkeypatch.setattr(ManualClock, "sleep", lambda self, seconds: sleep(seconds))
    with pytest.raises(ConflictError):
        world.stalled(unanswered).upsert([row("a", 5, "from A")])
    assert world.notes() == {"a": "first", "b": "from B"}


class Dying(CountingStorage):
    """Dies when it is about to take an inflight write off the timeline."""

    dead = False

    def delete(self, path: str) -> None:
        if self.dead or (path.endswith(".inflight") and "rollback" not in path):
            self.dead = True
            raise Crash
        super().delete(path)


def test_a_commit_that_lands_in_the_middle_of_its_rollback() -> None:
    world = StalledWriters()

    def stall(storage: Storage, path: str, data: bytes) -> None:
        with another_process(), pytest.raises(Crash):
            world.writer(Dying(world.storage)).upsert([row("x", 5, "B", "2026-01-02")])
        storage.create(path, data)
        world.clock.advance(1000)
        with another_process():
            world.writer().upsert([row("y", 5, "C", "2026-01-03")])

    with pytest.raises(ConflictError):
        world.stalled(stall).upsert([row("a", 5, "from A")])
    assert world.notes() == {"a": "first", "b": "first", "y": "C"}


def test_a_write_based_on_a_commit_that_was_rolled_back() -> None:
    world = StalledWriters()
    first = world.writer().write("INSERT", [row("n", 1, "inserted")])
    world.clock.advance(5000)

    def take_back(storage: Storage, path: str, data: bytes) -> None:
        for folder in (TIMELINE, "2026-01-01"):
            for file in storage.list_files(folder):
                if first.instant in file.name:
                    storage.delete(file.path)
        storage.create(path, data)

    with pytest.raises(ConflictError):
        world.stalled(take_back).upsert([row("a", 5, "from C")])
    assert world.notes() == {"a": "first", "b": "first"}


def test_a_file_of_a_lost_attempt_that_appears_right_before_the_commit() -> None:
    world = StalledWriters()

    def loser(storage: Storage, path: str, data: bytes) -> None:
        instant = path.rpartition("/")[2].partition("_")[0]
        (mine,) = [f for f in storage.list_files("2026-01-01") if instant in f.name]
        other = mine.path.replace("_0-0-0_", "_0-0-7_")
        create_marker(storage, instant, other, MarkerKind.MERGE)
        storage.create(other, storage.read(mine.path))
        storage.create(path, data)

    world.stalled(loser).upsert([row("a", 5, "from A")])
    assert world.notes() == {"a": "from A", "b": "first"}


def test_two_kinds_of_write_never_share_a_time() -> None:
    world = StalledWriters()
    same_time = ManualClock(world.clock.now_ms())

    def other(storage: Storage, path: str, data: bytes) -> None:
        with another_process():
            WrittenTable(world.storage, same_time).upsert([row("z", 5, "from B")])
        storage.create(path, data)

    requested = r"\.requested$"
    made = world.stalled(other, requested)
    commit: Any = made.write("INSERT_OVERWRITE", [row("o", 5, "from A", "2026-01-02")])
    assert world.notes() == {"a": "first", "b": "first", "z": "from B", "o": "from A"}
    times = [name.partition(".")[0].partition("_")[0] for name in world.names() if "_" in name]
    assert len(set(times)) == len(times) == 3
    assert commit.instant in times


def test_a_write_whose_spilled_rows_a_rollback_deleted_is_a_conflict() -> None:
    world = StalledWriters({**SEVERAL, "lakewright.write.hand.on.bytes": "0"})
    days = ("2026-01-02", "2026-01-03")
    world.writer().upsert([row(day, day=day) for day in days])

    class RolledBack(CountingStorage):
        def open_input(self, path: str) -> Any:
            if path.endswith(".arrow") and self.inner.exists(path):
                instant = path.split("/")[-2]
                self.inner.delete_folder(f".hoodie/.temp/{instant}")
                self.inner.delete_folder(path.rpartition("/")[0])
                for file in self.inner.list_files(TIMELINE):
                    if file.name.startswith(instant):
                        self.inner.delete(file.path)
            return super().open_input(path)

    changed: list[Row] = [row(day, 2, "second", day) for day in days]
    with pytest.raises(ConflictError, match="rolled back by another writer"):
        world.writer(RolledBack(world.storage)).upsert(changed)
