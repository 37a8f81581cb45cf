"""A real HDFS keeps the contract of a storage, each promise by one step of the NameNode."""

from __future__ import annotations

import secrets
import subprocess
import sys
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest

from lakewright.clock import SystemClock
from lakewright.errors import ConflictError, InvalidError, UnavailableError, UnsupportedError
from lakewright.storage.base import VersionedStorage
from lakewright.storage.hdfs import HdfsStorage
from lakewright.table.locks.base import Lock, acquired, lock_for
from lakewright.table.locks.file_lock import FileLock
from lakewright.table.options import LockSettings
from lakewright.testing.hdfs import HdfsServer
from lakewright.testing.storage_contract import StorageContract

pytestmark = pytest.mark.interop


@pytest.fixture
def storage(hdfs: HdfsServer) -> HdfsStorage:
    return HdfsStorage.at(hdfs.uri(f"{secrets.token_hex(4)}/a table%20=é"))


class TestHdfs(StorageContract):
    page_size = 100
    refused_characters = ":"


CREATOR = """
import sys
from lakewright.errors import ConflictError
from lakewright.storage.hdfs import HdfsStorage

storage = HdfsStorage.at(sys.argv[1])
storage.exists("connected")
print("ready", flush=True)
for name in sys.stdin:
    try:
        storage.create(f"race/{name.strip()}", sys.argv[2].encode())
        print("won", flush=True)
    except ConflictError:
        print("lost", flush=True)
"""


def test_of_processes_that_create_one_name_exactly_one_wins(storage: HdfsStorage) -> None:
    creators, names = 3, 20
    with ExitStack() as running:
        processes = [
            running.enter_context(
                subprocess.Popen(
                    [sys.executable, "-c", CREATOR, storage.root, str(creator)],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                )
            )
            for creator in range(creators)
        ]
        assert answers(processes) == ["ready"] * creators
        for name in range(names):
            for process in processes:
                send_line(process, str(name))
            results = answers(processes)
            assert sorted(results) == ["lost"] * (creators - 1) + ["won"]
            assert storage.read(f"race/{name}") == str(results.index("won")).encode()
    assert storage.list_temporary() == []


def send_line(process: subprocess.Popen[str], line: str) -> None:
    assert process.stdin is not None
    process.stdin.write(f"{line}\n")
    process.stdin.flush()


def answers(processes: Sequence[subprocess.Popen[str]]) -> list[str]:
    return [process.stdout.readline().strip() for process in processes if process.stdout]


def test_of_many_threads_that_create_one_name_exactly_one_wins(storage: HdfsStorage) -> None:
    creators = 24
    barrier = threading.Barrier(creators)

    def create(creator: int) -> bool:
        barrier.wait()
        try:
            storage.create("name", b"%d" % creator * 1000)
        except ConflictError:
            return False
        return True

    with ThreadPoolExecutor(creators) as threads:
        won = list(threads.map(create, range(creators)))
    assert won.count(True) == 1
    assert storage.read("name") == b"%d" % won.index(True) * 1000
    assert storage.list_temporary() == []


WRITER = """
import sys, time
from lakewright.storage.hdfs import HdfsStorage

with HdfsStorage.at(sys.argv[1]).open_output("p/file") as output:
    output.write(bytes(3_000_000))
    print("begun", flush=True)
    time.sleep(600)
"""


def test_a_killed_writer_leaves_nothing_but_a_temporary_file(storage: HdfsStorage) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", WRITER, storage.root], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n"
        process.kill()
    assert not storage.exists("p/file")
    assert list(storage.list_tree("")) == []
    (temporary,) = storage.list_temporary()
    assert temporary.path.startswith("p/.")
    storage.create("p/file", b"another's")
    storage.delete_many([temporary.path])
    assert storage.list_temporary() == []
    assert storage.read("p/file") == b"another's"


def test_a_failed_output_deletes_its_temporary_file(storage: HdfsStorage) -> None:
    def fail() -> None:
        with storage.open_output("p/file") as output:
            output.write(bytes(3_000_000))
            assert len(storage.list_temporary()) == 1
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert storage.list_temporary() == []


def test_a_file_that_is_replaced_under_its_reader_is_read_anew(storage: HdfsStorage) -> None:
    storage.replace("file", b"old")
    with storage.open_input("file") as source:
        storage.delete("file")
        storage.create("file", b"new")
        assert source.read() in (b"old", b"new")


NO_FILES = {
    "below a file": "file/x",
    "at a folder": "folder",
}


@pytest.mark.parametrize("path", NO_FILES.values(), ids=list(NO_FILES))
def test_where_no_file_can_be_nothing_is_written(storage: HdfsStorage, path: str) -> None:
    storage.create("file", b"1")
    storage.create("folder/file", b"2")
    for write in (storage.create, storage.replace):
        with pytest.raises(InvalidError):
            write(path, b"3")
    storage.delete(path)
    assert not storage.exists(path)
    assert {file.path for file in storage.list_tree("")} == {"file", "folder/file"}
    assert storage.list_files("file") == storage.list_temporary() == []
    storage.delete_folder("file")
    assert storage.exists("file")


def test_settings_of_a_nameservice_lead_to_the_same_files(
    hdfs: HdfsServer, storage: HdfsStorage
) -> None:
    storage.create("file", b"1")
    settings = {f"spark.hadoop.{key}": value for key, value in hdfs.nameservice("lake").items()}
    path = storage.root.removeprefix(hdfs.address)
    by_name = HdfsStorage.at(f"hdfs://lake{path}", settings)
    assert by_name.read("file") == b"1"
    assert by_name.root == f"hdfs://lake{path}"
    by_default = HdfsStorage.at(f"hdfs://{path}", {"fs.defaultFS": hdfs.address})
    assert by_default == HdfsStorage.at(storage.root, {"fs.defaultFS": hdfs.address})
    assert by_default.read("file") == b"1"


def test_new_files_are_as_hadoops_settings_say(hdfs: HdfsServer, storage: HdfsStorage) -> None:
    options = {"dfs.replication": "1", "fs.permissions.umask-mode": "027"}
    HdfsStorage.at(storage.root, options).create("mine", b"1")
    storage.create("usual", b"1")
    client = storage._client
    mine, usual = (
        client.get_file_info(f"{storage.location.folder}/{name}") for name in ("mine", "usual")
    )
    assert (mine.replication, oct(mine.permission)) == (1, "0o640")
    assert (usual.replication, oct(usual.permission)) == (2, "0o644")


def new_lock(storage: HdfsStorage, **settings: object) -> Lock:
    lock_settings = LockSettings(**{"wait_ms": 600_000, "retry_ms": 5, **settings})  # type: ignore[arg-type]
    return lock_for(storage, lock_settings, SystemClock(), several_writers=True)


def test_a_lock_file_excludes_other_writers_of_a_table(storage: HdfsStorage) -> None:
    lock = new_lock(storage)
    assert isinstance(lock, FileLock)
    with acquired(lock):
        assert storage.exists(".hoodie/lock")
        lock.verify()
        with pytest.raises(UnavailableError):
            new_lock(storage, wait_ms=20).acquire()
    assert not storage.exists(".hoodie/lock")


def test_threads_exclude_each_other(storage: HdfsStorage) -> None:
    inside: list[str] = []
    crowds: list[int] = []

    def work(_: int) -> None:
        lock = new_lock(storage)
        for _ in range(3):
            with acquired(lock):
                inside.append("one")
                lock.verify()
                crowds.append(len(inside))
                inside.pop()

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(work, range(4)))
    assert crowds == [1] * 12


CONDITIONAL = {
    "a lock of conditional writes": {"provider": "storage"},
    "a lock file that expires": {"file_expire_minutes": 1},
}


@pytest.mark.parametrize("settings", CONDITIONAL.values(), ids=list(CONDITIONAL))
def test_what_needs_conditional_writes_is_refused(
    storage: HdfsStorage, settings: dict[str, object]
) -> None:
    assert not isinstance(storage, VersionedStorage)
    with pytest.raises(UnsupportedError):
        new_lock(storage, **settings)
