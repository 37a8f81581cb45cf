"""Which folders are listed to find partitions, where some are excluded."""

from __future__ import annotations

import pytest

from lakewright.model.file_group import PARTITION_METADATA, BaseFile
from lakewright.storage.memory import MemoryStorage
from lakewright.table.snapshot import list_partitions
from lakewright.testing.storage import CountingStorage

AT = "20260101000000000"
DEEP = [f"{country}/{day}" for country in "abc" for day in range(1, 5)]


def table(*partitions: str) -> CountingStorage:
    storage = MemoryStorage.fresh()
    storage.replace(".hoodie/hoodie.properties", b"")
    for partition in partitions:
        folder = f"{partition}/" if partition else ""
        storage.replace(f"{folder}{PARTITION_METADATA}", b"")
        storage.replace(f"{folder}{BaseFile('f', '0-0-0', AT).name}", b"x")
    return CountingStorage(storage)


def listed(storage: CountingStorage) -> set[str]:
    return {path for name, path in storage.touched if name == "list_tree"}


@pytest.mark.parametrize("exclude", [(), ("a",), ("a", "b", "c")])
def test_excluded_partitions_are_not_listed(exclude: tuple[str, ...]) -> None:
    storage = table("a", "b", "c")
    assert list(list_partitions(storage, exclude)) == sorted({"a", "b", "c"} - set(exclude))
    assert listed(storage) == {"a", "b", "c"} - set(exclude)


@pytest.mark.parametrize(
    ("exclude", "trees"),
    [
        pytest.param([], {"a", "b", "c"}, id="nothing is excluded"),
        pytest.param(DEEP, set(), id="all is excluded"),
        pytest.param([p for p in DEEP if p != "b/3"], {"b/3"}, id="all but one are excluded"),
        pytest.param(["a/1", "b/1", "b/2"], {"a", "b/3", "b/4", "c"}, id="most of one folder"),
    ],
)
def test_of_several_levels_only_folders_with_others_are_listed(
    exclude: list[str], trees: set[str]
) -> None:
    storage = table(*DEEP)
    partitions = list_partitions(storage, exclude)
    assert list(partitions) == sorted(set(DEEP) - set(exclude))
    assert listed(storage) == trees


def test_the_folder_of_the_table_is_a_partition_of_some() -> None:
    assert list(list_partitions(table(""))) == [""]
    assert list(list_partitions(table("", "a"))) == ["", "a"]
    assert list(list_partitions(table("", "a"), [""])) == ["a"]


def test_a_folder_without_the_metadata_file_is_none() -> None:
    storage = table("a")
    storage.inner.replace("b/c/f.txt", b"")
    assert list(list_partitions(storage)) == ["a"]
