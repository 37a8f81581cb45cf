from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest

from lakewright.errors import ConflictError, UnsupportedError
from lakewright.storage.base import Storage, VersionedStorage
from lakewright.storage.memory import MemoryStorage
from lakewright.testing.storage import CountingStorage, Crash, CrashingStorage
from lakewright.testing.storage_contract import WITH_A_PATH


def work(storage: VersionedStorage) -> None:
    storage.create("d/a", b"1")
    storage.create("d/b", b"2")
    with storage.open_output("d/c") as output:
        output.write(b"3")
    storage.replace("d/a", b"4")
    storage.replace_if("lock", b"5", None)
    storage.delete_many(["d/a", "d/b"])
    storage.delete("lock")
    storage.delete_folder("d")


STATES = [
    "",
    "d/a=1",
    "d/a=1 d/b=2",
    "d/a=1 d/b=2 d/c=3",
    "d/a=4 d/b=2 d/c=3",
    "d/a=4 d/b=2 d/c=3 lock=5",
    "d/b=2 d/c=3 lock=5",
    "d/c=3 lock=5",
    "d/c=3",
    "",
    "",
]


def state(storage: MemoryStorage) -> str:
    return " ".join(f"{path}={data.decode()}" for path, data in storage.files().items())


@pytest.mark.parametrize("after_effect", [False, True], ids=["before effect", "after effect"])
def test_every_change_is_a_moment_to_die(after_effect: bool) -> None:
    for survive in range(len(STATES) - 1):
        inner = MemoryStorage.fresh()
        with pytest.raises(Crash):
            work(CrashingStorage(inner, survive, after_effect=after_effect))
        assert state(inner) == STATES[survive + after_effect]
    storage = CrashingStorage(MemoryStorage.fresh(), len(STATES) - 1, after_effect=after_effect)
    work(storage)
    assert not storage.crashed


def test_the_dead_stay_dead_even_for_readers() -> None:
    inner = MemoryStorage.fresh({"a": b"1"})
    storage = CrashingStorage(inner, 0)
    assert storage.read("a") == b"1"
    with pytest.raises(Crash):
        storage.delete("a")
    assert storage.crashed
    for method, call in WITH_A_PATH.items():
        if method not in ("url", "open_output"):
            with pytest.raises(Crash):
                call(storage, "a")
    assert inner.files() == {"a": b"1"}


def test_a_failed_change_was_a_change_all_the_same() -> None:
    storage = CrashingStorage(MemoryStorage.fresh({"a": b"1"}), 1)
    with pytest.raises(ConflictError):
        storage.create("a", b"2")
    with pytest.raises(Crash):
        storage.create("b", b"2")


def test_calls_are_counted_by_method_and_by_path() -> None:
    storage = CountingStorage(MemoryStorage.fresh({"d/a": b"1", "d/b": b"2"}))
    storage.read_many(f"d/{name}" for name in "ab")
    storage.list_many(["d", "e", "f"])
    storage.read("d/a")
    with pytest.raises(ConflictError):
        storage.create("d/a", b"")
    assert storage.calls == {"read_many": 1, "list_many": 1, "read": 1, "create": 1}
    assert storage.touched == [
        ("read_many", "d/a"),
        ("read_many", "d/b"),
        ("list_many", "d"),
        ("list_many", "e"),
        ("list_many", "f"),
        ("read", "d/a"),
        ("create", "d/a"),
    ]
    storage.reset()
    assert (storage.calls, storage.touched) == ({}, [])


def test_every_method_is_counted_once() -> None:
    for method, call in WITH_A_PATH.items():
        storage = CountingStorage(MemoryStorage.fresh({"d/a": b"1"}))
        call(storage, "d/b" if method in ("create", "open_output") else "d/a")
        assert storage.calls == ({} if method == "url" else {method: 1})


def test_a_wrapped_storage_has_versions_only_if_the_one_behind_has() -> None:
    assert CountingStorage(MemoryStorage.fresh()).replace_if("a", b"1", None)
    plain = cast(Storage, SimpleNamespace(root="plain://"))
    with pytest.raises(UnsupportedError):
        CountingStorage(plain).replace_if("a", b"1", None)
