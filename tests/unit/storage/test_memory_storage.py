from __future__ import annotations

import pytest

from lakewright.errors import InvalidError
from lakewright.storage.memory import MemoryStorage


def test_the_clock_of_the_constructor_stamps_every_write() -> None:
    times = iter((1000, 2000, 3000))
    storage = MemoryStorage.fresh({"a": b"1"}, now_ms=lambda: next(times))
    storage.create("b", b"2")
    storage.replace("a", b"")
    assert {file.path: file.modified_ms for file in storage.list_files("")} == {
        "a": 3000,
        "b": 2000,
    }


def test_a_fresh_storage_begins_with_the_files_of_another() -> None:
    first = MemoryStorage.fresh({"x/a": b"1", "b": b"2"})
    second = MemoryStorage.fresh(first.files())
    second.delete("b")
    assert first.files() == {"b": b"2", "x/a": b"1"}
    assert second.files() == {"x/a": b"1"}
    assert first != second


def test_storages_of_one_name_share_their_files() -> None:
    first, second = MemoryStorage("shared/name"), MemoryStorage.at("memory://shared/name/", {})
    first.create("a", b"1")
    assert second.read("a") == b"1"
    assert first == second


@pytest.mark.parametrize("label", ["", "a//b", "../a"])
def test_a_bad_name_is_refused(label: str) -> None:
    with pytest.raises(InvalidError):
        MemoryStorage(label)


def test_there_are_no_options() -> None:
    with pytest.raises(InvalidError):
        MemoryStorage.at("memory://t", {"endpoint": "x"})


def test_a_folder_is_deleted_with_its_last_file() -> None:
    storage = MemoryStorage.fresh({"a/b/c/1": b"", "a/b/2": b""})
    storage.delete("a/b/c/1")
    assert storage.list_folders("a/b") == []
    storage.delete("a/b/2")
    assert storage.list_folders("") == []
    storage.create("a/b/3", b"")
    assert storage.list_folders("a") == ["a/b"]
