# ruff: noqa: D102 - the name of a test is its sentence.
"""The contract of storages as tests: subclass `StorageContract` and define a `storage` fixture.

class TestMyStorage(StorageContract):
    @pytest.fixture
    def storage(self) -> Storage:
        return MyStorage(...)          # empty, a new one for each test
"""

from __future__ import annotations

import pickle
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lakewright.errors import ConflictError, InvalidError
from lakewright.storage.base import MissingFileError, Storage, VersionedStorage, map_in_threads

ODD_NAMES = [
    "a b.txt",
    "a%20b.txt",
    "a+b.txt",
    "city=São Paulo/k=v.parquet",
    "東京/データ",
    "q?#[]{}^`|<>\"*\\'~",
    "$@!&(),;",
    "12:30:00",
    "..double",
    "trailing.",
    ".hidden_20240101000000000.log.1_0-1-0",
    "-dash",
]

BAD_PATHS = {
    "an absolute path": "/a",
    "the parent folder": "..",
    "a way out of the table": "a/../../b",
    "a dot segment": "a/./b",
    "an empty segment": "a//b",
    "a trailing slash": "a/",
    "a control character": "a\nb",
    "a zero byte": "a\0b",
    "half a character": "a\ud800b",
}

RANGES = {
    "the beginning": (0, 4, b"0123"),
    "the middle": (3, 4, b"3456"),
    "the end exactly": (6, 4, b"6789"),
    "beyond the end": (8, 100, b"89"),
    "at the end": (10, 5, b""),
    "after the end": (50, 5, b""),
    "nothing": (3, 0, b""),
}

BAD_RANGES = {"a negative offset": (-1, 1), "a negative length": (0, -1)}

WITH_A_PATH: dict[str, Callable[[Storage, str], object]] = {
    "status": lambda storage, path: storage.status(path),
    "exists": lambda storage, path: storage.exists(path),
    "url": lambda storage, path: storage.url(path),
    "read": lambda storage, path: storage.read(path),
    "read_range": lambda storage, path: storage.read_range(path, 0, 1),
    "read_many": lambda storage, path: storage.read_many([path]),
    "open_input": lambda storage, path: storage.open_input(path),
    "create": lambda storage, path: storage.create(path, b""),
    "open_output": lambda storage, path: storage.open_output(path).__enter__(),
    "replace": lambda storage, path: storage.replace(path, b""),
    "delete": lambda storage, path: storage.delete(path),
    "delete_many": lambda storage, path: storage.delete_many([path]),
    "delete_folder": lambda storage, path: storage.delete_folder(path),
    "list_files": lambda storage, path: storage.list_files(path),
    "list_folders": lambda storage, path: storage.list_folders(path),
    "list_tree": lambda storage, path: list(storage.list_tree(path)),
    "list_many": lambda storage, path: storage.list_many([path]),
}

NOT_THE_ROOT = set(WITH_A_PATH) - {"list_files", "list_folders", "list_tree", "list_many"}


class NamingContract:
    """The part of `StorageContract` about file names, URLs and pickling."""

    refused_characters = ""
    """Characters that no file name of this store may contain: a write raises InvalidError."""

    def test_a_created_file_is_read_back(self, storage: Storage) -> None:
        storage.create("a/b/file", b"bytes")
        assert storage.read("a/b/file") == b"bytes"

    def test_an_empty_file_is_a_file(self, storage: Storage) -> None:
        storage.create("t/1.commit.requested", b"")
        assert storage.read("t/1.commit.requested") == b""
        assert [file.size for file in storage.list_files("t")] == [0]
        assert [file.path for file in storage.list_tree("t")] == ["t/1.commit.requested"]

    def test_a_large_file_is_kept_whole(self, storage: Storage) -> None:
        data = bytes(range(256)) * (20 * 4096)
        storage.create("large", data)
        status = storage.status("large")
        assert status is not None
        assert status.size == len(data) == 20 * 1024 * 1024
        assert storage.read("large") == data
        assert storage.read_range("large", len(data) - 3, 10) == data[-3:]

    @pytest.mark.parametrize("name", ODD_NAMES)
    def test_a_name_is_taken_literally(self, storage: Storage, name: str) -> None:
        if set(self.refused_characters) & set(name):
            self.check_refused(storage, f"x/{name}")
            return
        storage.create(f"x/{name}", name.encode())
        assert storage.read(f"x/{name}") == name.encode()
        assert [file.path for file in storage.list_tree("x")] == [f"x/{name}"]
        storage.delete(f"x/{name}")
        assert not storage.exists(f"x/{name}")

    def check_refused(self, storage: Storage, path: str) -> None:
        for write in ("create", "replace"):
            with pytest.raises(InvalidError):
                WITH_A_PATH[write](storage, path)
        with pytest.raises(InvalidError), storage.open_output(path) as output:
            output.write(b"1")
        storage.delete(path)
        assert not storage.exists(path)
        assert list(storage.list_tree("")) == storage.list_temporary() == []

    @pytest.mark.parametrize("path", BAD_PATHS.values(), ids=list(BAD_PATHS))
    def test_a_bad_path_is_refused_by_every_method(self, storage: Storage, path: str) -> None:
        for call in WITH_A_PATH.values():
            with pytest.raises(InvalidError):
                call(storage, path)

    def test_the_root_is_no_file_and_cannot_be_deleted(self, storage: Storage) -> None:
        storage.create("kept", b"")
        for method in sorted(NOT_THE_ROOT):
            with pytest.raises(InvalidError):
                WITH_A_PATH[method](storage, "")
        assert storage.exists("kept")

    def test_a_url_is_the_root_and_the_path(self, storage: Storage) -> None:
        assert storage.url("day=1/a b.parquet") == f"{storage.root}/day=1/a b.parquet"
        assert not storage.root.endswith("/")

    def test_a_copy_that_travelled_sees_the_same_files(self, storage: Storage) -> None:
        storage.create("a", b"1")
        copy = pickle.loads(pickle.dumps(storage))
        assert copy.read("a") == b"1"
        copy.create("b", b"2")
        assert storage.read("b") == b"2"
        assert (copy, copy.root) == (storage, storage.root)


class CreateContract:
    """The part of `StorageContract` about creating, replacing and deleting files."""

    @pytest.mark.parametrize("first", [b"first", b""], ids=["bytes", "nothing"])
    def test_creating_what_exists_changes_nothing(self, storage: Storage, first: bytes) -> None:
        storage.create("a", first)
        for data in (b"second", b"first", b""):
            with pytest.raises(ConflictError):
                storage.create("a", data)
        assert storage.read("a") == first
        assert [file.path for file in storage.list_files("")] == ["a"]

    def test_a_deleted_name_can_be_created_again(self, storage: Storage) -> None:
        storage.create("a", b"1")
        storage.delete("a")
        storage.create("a", b"2")
        assert storage.read("a") == b"2"

    def test_of_racing_creators_exactly_one_wins(self, storage: Storage) -> None:
        creators, names = 8, 20
        barrier = threading.Barrier(creators)

        def create_all(creator: int) -> list[int]:
            copy = pickle.loads(pickle.dumps(storage))
            created = []
            for name in range(names):
                barrier.wait()
                try:
                    copy.create(f"race/{name}", b"%d" % creator)
                    created.append(name)
                except ConflictError:
                    continue
            return created

        with ThreadPoolExecutor(creators) as threads:
            created_by = list(threads.map(create_all, range(creators)))
        winners = {name: creator for creator, created in enumerate(created_by) for name in created}
        assert sorted(name for created in created_by for name in created) == list(range(names))
        for name, creator in winners.items():
            assert storage.read(f"race/{name}") == b"%d" % creator

    def test_replace_writes_over_and_writes_new(self, storage: Storage) -> None:
        storage.replace("a", b"long first")
        storage.replace("a", b"2")
        assert storage.read("a") == b"2"
        storage.replace("a", b"")
        assert storage.read("a") == b""

    def test_a_reader_sees_the_old_bytes_or_the_new(self, storage: Storage) -> None:
        versions = [bytes([digit]) * 50_000 for digit in b"0123456789"]
        storage.replace("a", versions[0])
        stop = threading.Event()

        def read_until_stopped() -> set[bytes]:
            contents = set()
            while not stop.is_set():
                contents.add(storage.read("a"))
            return contents

        with ThreadPoolExecutor(1) as threads:
            contents = threads.submit(read_until_stopped)
            for version in versions * 3:
                storage.replace("a", version)
            stop.set()
        assert contents.result() <= set(versions)

    def test_an_output_appears_whole_when_its_block_ends(self, storage: Storage) -> None:
        with storage.open_output("p/a") as output:
            for chunk in (b"one ", b"two ", b"three"):
                output.write(chunk)
            assert storage.list_files("p") == []
        assert storage.read("p/a") == b"one two three"

    def test_an_output_that_fails_leaves_nothing(self, storage: Storage) -> None:
        def fail() -> None:
            with storage.open_output("p/a") as output:
                output.write(b"half")
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            fail()
        assert not storage.exists("p/a")
        assert list(storage.list_tree("")) == []

    def test_an_output_does_not_overwrite(self, storage: Storage) -> None:
        storage.create("a", b"first")
        with pytest.raises(ConflictError), storage.open_output("a") as output:
            output.write(b"second")
        assert storage.read("a") == b"first"

    def test_deleting_is_idempotent(self, storage: Storage) -> None:
        storage.create("d/a", b"1")
        storage.create("d/b", b"2")
        for _ in range(2):
            storage.delete("d/a")
            assert [file.path for file in storage.list_files("d")] == ["d/b"]
        storage.delete("never/was")

    def test_many_are_deleted_whether_they_exist_or_not(self, storage: Storage) -> None:
        for name in "abc":
            storage.create(f"d/{name}", b"")
        storage.delete_many(["d/a", "d/missing", "d/c"])
        storage.delete_many([])
        assert [file.name for file in storage.list_files("d")] == ["b"]

    def test_a_folder_is_deleted_with_all_below_and_nothing_else(self, storage: Storage) -> None:
        for path in ("p/a", "p/q/b", "p/q/r/c", "p2/a", "p.txt"):
            storage.create(path, b"1")
        for _ in range(2):
            storage.delete_folder("p")
            assert {file.path for file in storage.list_tree("")} == {"p2/a", "p.txt"}
        assert storage.list_folders("") == ["p2"]

    def test_folders_without_files_are_pruned_and_no_file_is(self, storage: Storage) -> None:
        for path in ("p/a", "p/q/b", "p/q/r/c", "p/s/t/d"):
            storage.create(path, b"1")
        storage.delete_many(["p/q/r/c", "p/s/t/d"])
        storage.prune_folders("p")
        assert {file.path for file in storage.list_tree("")} == {"p/a", "p/q/b"}
        assert storage.list_folders("p") == ["p/q"]
        assert storage.list_folders("p/q") == []
        storage.delete_many(["p/a", "p/q/b"])
        storage.prune_folders("p")
        storage.prune_folders("never/was")
        assert storage.list_folders("") == []


class ReadContract:
    """The part of `StorageContract` about reading and listing files."""

    page_size = 1000
    """How many files the store returns in one response to a listing."""

    def test_a_missing_file_is_missing_to_every_reader(self, storage: Storage) -> None:
        storage.create("folder/file", b"1")
        for path in ("nothing", "folder", "folder/nothing", "no/such/folder/file"):
            for read in ("read", "read_range", "read_many", "open_input"):
                with pytest.raises(MissingFileError):
                    WITH_A_PATH[read](storage, path)
            assert storage.status(path) is None
            assert not storage.exists(path)

    def test_a_missing_folder_is_empty(self, storage: Storage) -> None:
        assert storage.list_files("no/such") == []
        assert storage.list_folders("no/such") == []
        assert list(storage.list_tree("no/such")) == []
        assert storage.list_many(["no", "such"]) == {"no": [], "such": []}

    @pytest.mark.parametrize(("offset", "length", "expected"), RANGES.values(), ids=list(RANGES))
    def test_a_range(self, storage: Storage, offset: int, length: int, expected: bytes) -> None:
        storage.create("a", b"0123456789")
        assert storage.read_range("a", offset, length) == expected

    @pytest.mark.parametrize(("offset", "length"), BAD_RANGES.values(), ids=list(BAD_RANGES))
    def test_a_bad_range_is_refused(self, storage: Storage, offset: int, length: int) -> None:
        storage.create("a", b"0123456789")
        with pytest.raises(InvalidError):
            storage.read_range("a", offset, length)

    def test_many_are_read_in_the_order_asked(self, storage: Storage) -> None:
        paths = [f"m/{number}" for number in range(12)]
        for path in paths:
            storage.create(path, path.encode())
        requested = [*reversed(paths), paths[3]]
        assert storage.read_many(requested) == [path.encode() for path in requested]
        assert storage.read_many([]) == []

    def test_parquet_is_written_and_read_by_columns(self, storage: Storage) -> None:
        table = pa.table({"id": list(range(5000)), "name": [f"n{n}" for n in range(5000)]})
        with storage.open_output("p/f.parquet") as output:
            pq.write_table(table, output, row_group_size=1000)
        with storage.open_input("p/f.parquet") as source:
            file = pq.ParquetFile(source)
            assert file.num_row_groups == 5
            assert file.read(columns=["name"]).equals(table.select(["name"]))

    def test_an_input_seeks_and_tells(self, storage: Storage) -> None:
        storage.create("a", b"0123456789")
        with storage.open_input("a") as source:
            assert source.size() == 10
            assert source.read(3) == b"012"
            source.seek(-2, 2)
            assert (source.tell(), source.read()) == (8, b"89")
            assert source.read() == b""

    def test_a_listing_is_one_level_sorted_with_sizes_and_times(self, storage: Storage) -> None:
        before = time.time_ns() // 1_000_000
        for path, size in (("f/b", 2), ("f/B", 1), ("f/é", 4), ("f/a.c", 3), ("f/sub/x", 9)):
            storage.create(path, b"x" * size)
        files = storage.list_files("f")
        assert [(file.name, file.size) for file in files] == [
            ("B", 1),
            ("a.c", 3),
            ("b", 2),
            ("é", 4),
        ]
        assert [file.path for file in files] == ["f/B", "f/a.c", "f/b", "f/é"]
        assert [storage.status(file.path) for file in files] == files
        # A store may record whole seconds only, by its own clock.
        assert all(abs(file.modified_ms - before) < 60_000 for file in files)

    def test_folders_are_listed_one_level_deep(self, storage: Storage) -> None:
        for path in ("f/x/y/z/file", "f/w/file", "f/file", "g/file", "top"):
            storage.create(path, b"1")
        assert storage.list_folders("f") == ["f/w", "f/x"]
        assert storage.list_folders("f/x") == ["f/x/y"]
        assert storage.list_folders("") == ["f", "g"]
        assert [file.path for file in storage.list_files("")] == ["top"]

    def test_a_tree_is_listed_with_all_below_and_nothing_beside(self, storage: Storage) -> None:
        inside = ["f/a", "f/x/b", "f/x/y/c"]
        for path in (*inside, "f2/a", "fa"):
            storage.create(path, b"12")
        assert sorted(file.path for file in storage.list_tree("f")) == inside
        assert len(list(storage.list_tree(""))) == 5

    def test_many_folders_are_listed_as_each_alone(self, storage: Storage) -> None:
        folders = [f"day={day}" for day in range(12)]
        for folder in folders:
            storage.create(f"{folder}/file", folder.encode())
        assert storage.list_many(folders) == {
            folder: storage.list_files(folder) for folder in folders
        }

    def test_a_listing_shows_every_create_that_returned(self, storage: Storage) -> None:
        for number in range(20):
            storage.create(f"t/{number:02}", b"")
            names = [file.name for file in storage.list_files("t")]
            assert names == [f"{listed:02}" for listed in range(number + 1)]

    def test_more_files_than_a_page_holds_are_all_listed(self, storage: Storage) -> None:
        paths = [f"many/{number:04}" for number in range(self.page_size + self.page_size // 10)]
        map_in_threads(lambda path: storage.create(path, b"1"), paths)
        assert [file.path for file in storage.list_files("many")] == paths
        assert sorted(file.path for file in storage.list_tree("")) == paths
        storage.delete_folder("many")
        assert storage.list_files("many") == []


class StorageContract(NamingContract, CreateContract, ReadContract):
    """The contract of `Storage`: a storage that passes can hold a table."""


class VersionedStorageContract(StorageContract):
    """The contract of `VersionedStorage`."""

    def test_a_file_of_the_known_version_is_replaced(self, storage: VersionedStorage) -> None:
        first = storage.replace_if("lock", b"1", None)
        assert storage.read_versioned("lock") == (b"1", first)
        second = storage.replace_if("lock", b"2", first)
        assert storage.read_versioned("lock") == (b"2", second)
        assert first != second

    def test_a_file_of_another_version_is_a_conflict(self, storage: VersionedStorage) -> None:
        first = storage.replace_if("lock", b"1", None)
        storage.replace_if("lock", b"2", first)
        for version in (first, None):
            with pytest.raises(ConflictError):
                storage.replace_if("lock", b"3", version)
        assert storage.read("lock") == b"2"

    def test_a_file_that_is_gone_is_a_conflict(self, storage: VersionedStorage) -> None:
        version = storage.replace_if("x/lock", b"1", None)
        storage.delete_folder("x")
        with pytest.raises(ConflictError):
            storage.replace_if("x/lock", b"2", version)
        assert not storage.exists("x/lock")
        with pytest.raises(MissingFileError):
            storage.read_versioned("x/lock")

    def test_of_racing_replacers_exactly_one_wins(self, storage: VersionedStorage) -> None:
        version = storage.replace_if("lock", b"start", None)

        def replace(number: int) -> bool:
            try:
                storage.replace_if("lock", b"%d" % number, version)
            except ConflictError:
                return False
            return True

        assert sorted(map_in_threads(replace, range(8))) == [False] * 7 + [True]
