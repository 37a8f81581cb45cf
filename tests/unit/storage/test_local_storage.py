from __future__ import annotations

import errno
import os
import zipfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from lakewright.errors import (
    ConflictError,
    CorruptError,
    InvalidError,
    LakewrightError,
    UnavailableError,
)
from lakewright.storage.local import LocalStorage
from lakewright.storage.sidecars import sidecar_name, sidecar_of
from lakewright.testing.storage import Crash

GOLDEN = Path(__file__).parents[2] / "golden"


@pytest.fixture
def storage(tmp_path: Path) -> LocalStorage:
    return LocalStorage(str(tmp_path))


def put_with_sidecar(storage: LocalStorage, name: str, data: bytes, sidecar: bytes) -> None:
    Path(storage.folder, name).write_bytes(data)
    Path(storage.folder, f".{name}.crc").write_bytes(sidecar)


def on_disk(storage: LocalStorage) -> list[str]:
    return sorted(os.listdir(storage.folder))


ADDRESSES = {
    "an absolute path": ("/data/t", "/data/t"),
    "a trailing slash": ("/data/t/", "/data/t"),
    "a file URI with an empty host": ("file:///data/t", "/data/t"),
    "a file URI as Hadoop prints it": ("file:/data/t", "/data/t"),
    "a name with a blank and a per cent": ("file:///data/a b%20c", "/data/a b%20c"),
    "a way up": ("/data/x/../t", "/data/t"),
}


@pytest.mark.parametrize(("address", "folder"), ADDRESSES.values(), ids=list(ADDRESSES))
def test_an_address_is_a_folder(address: str, folder: str) -> None:
    assert LocalStorage(address).folder == folder
    assert LocalStorage(address).root == f"file://{folder}"


def test_a_relative_path_is_made_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert LocalStorage("t") == LocalStorage(f"{tmp_path}/t")


def test_a_file_on_another_host_is_refused() -> None:
    with pytest.raises(InvalidError):
        LocalStorage("file://host/data/t")


def test_options_are_read_and_checked() -> None:
    given = {"verify_sidecars": "false", "durable": "TRUE", "fs.s3a.access.key": "k"}
    assert LocalStorage.at("/t", given) == LocalStorage("/t", verify_sidecars=False, durable=True)
    for bad in ({"durable": "yes"}, {"speed": "11"}):
        with pytest.raises(InvalidError):
            LocalStorage.at("/t", bad)


def test_real_tables_are_read_with_their_checksums(tmp_path: Path) -> None:
    with zipfile.ZipFile(GOLDEN / "mor_avro.zip") as archive:
        archive.extractall(tmp_path)
    storage = LocalStorage(str(tmp_path))
    files = list(storage.list_tree(""))
    assert len(files) > 20
    assert not [file for file in files if file.name.endswith(".crc")]
    assert [len(storage.read(file.path)) for file in files] == [file.size for file in files]


def test_a_file_that_does_not_match_its_sidecar_is_corrupt(storage: LocalStorage) -> None:
    put_with_sidecar(storage, "f", b"new bytes", sidecar_of(b"old bytes"))
    with pytest.raises(CorruptError) as caught:
        storage.read("f")
    assert caught.value.facts == {
        "file": f"{storage.folder}/f",
        "sidecar": f"{storage.folder}/.f.crc",
    }
    assert LocalStorage(storage.folder, verify_sidecars=False).read("f") == b"new bytes"
    assert storage.read_range("f", 0, 3) == b"new"


def test_a_file_rewritten_while_it_is_read_is_read_again(
    storage: LocalStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_with_sidecar(storage, "f", b"old", sidecar_of(b"new"))
    compared: list[bytes] = []

    def rewrite_after_the_first(data: bytes, sidecar: bytes) -> bool:
        compared.append(data)
        put_with_sidecar(storage, "f", b"new", sidecar_of(b"new"))
        return sidecar_of(data) == sidecar

    monkeypatch.setattr("lakewright.storage.local.matches", rewrite_after_the_first)
    assert storage.read("f") == b"new"
    assert compared == [b"old", b"new"]


CHANGES: dict[str, Callable[[LocalStorage], object]] = {
    "replace": lambda storage: storage.replace("f", b"new"),
    "replace_if": lambda storage: storage.replace_if("f", b"new", storage.read_versioned("f")[1]),
    "delete": lambda storage: storage.delete("f"),
    "delete_many": lambda storage: storage.delete_many(["f"]),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=list(CHANGES))
def test_a_change_removes_the_sidecar(
    storage: LocalStorage, change: Callable[[LocalStorage], object]
) -> None:
    put_with_sidecar(storage, "f", b"old", sidecar_of(b"old"))
    change(storage)
    assert ".f.crc" not in on_disk(storage)


@pytest.mark.parametrize("step", ["replace", "unlink"])
def test_the_sidecar_goes_before_its_file(
    storage: LocalStorage, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    put_with_sidecar(storage, "f", b"old", sidecar_of(b"old"))
    original = getattr(os, step)

    def die_at_the_file(path: str, *others: str) -> None:
        if f"{storage.folder}/f" in (path, *others):
            raise Crash
        original(path, *others)

    monkeypatch.setattr(os, step, die_at_the_file)
    with pytest.raises(Crash):
        CHANGES["replace" if step == "replace" else "delete"](storage)
    assert on_disk(storage) == ["f"]
    assert storage.read("f") == b"old"


def test_a_left_over_sidecar_does_not_condemn_a_new_file(storage: LocalStorage) -> None:
    Path(storage.folder, ".f.crc").write_bytes(sidecar_of(b"deleted long ago"))
    storage.create("f", b"new")
    assert on_disk(storage) == ["f"]
    assert storage.read("f") == b"new"


def test_a_conflict_leaves_the_sidecar_of_the_winner(storage: LocalStorage) -> None:
    put_with_sidecar(storage, "f", b"first", sidecar_of(b"first"))
    with pytest.raises(ConflictError):
        storage.create("f", b"second")
    assert on_disk(storage) == [".f.crc", "f"]


def test_a_killed_writer_leaves_no_half_file(
    storage: LocalStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(*_: object) -> None:
        raise Crash

    with monkeypatch.context() as killed:
        killed.setattr(os, "link", die)
        killed.setattr(os, "unlink", lambda path: None)
        with pytest.raises(Crash):
            storage.create("p/f", b"bytes")
    (left,) = os.listdir(f"{storage.folder}/p")
    assert left.startswith(".")
    assert ".log" not in left
    assert not left.endswith((".parquet", ".orc", ".hfile", ".lance"))
    assert list(storage.list_tree("")) == []
    storage.create("p/f", b"again")
    storage.delete_folder("p")
    assert on_disk(storage) == []


def test_nothing_is_left_behind_by_those_who_live(storage: LocalStorage) -> None:
    storage.create("f", b"1")
    storage.replace("f", b"2")
    with pytest.raises(ConflictError):
        storage.create("f", b"3")
    assert on_disk(storage) == ["f"]


def test_a_link_whose_answer_was_lost_is_known_as_ones_own(
    storage: LocalStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = os.link

    def link_twice(source: str, target: str) -> None:
        link(source, target)
        link(source, target)

    monkeypatch.setattr(os, "link", link_twice)
    storage.create("f", b"mine")
    assert storage.read("f") == b"mine"
    with pytest.raises(ConflictError):
        storage.create("f", b"again")
    assert on_disk(storage) == ["f"]


@pytest.fixture
def no_hard_links(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)


@pytest.mark.usefixtures("no_hard_links")
def test_without_hard_links_exactly_one_creator_wins(storage: LocalStorage) -> None:
    def create(number: int) -> int | None:
        try:
            storage.create(f"p/{number % 20}", b"%d" % number)
        except ConflictError:
            return None
        return number

    with ThreadPoolExecutor(8) as threads:
        won = [number for number in threads.map(create, range(160)) if number is not None]
    assert sorted(number % 20 for number in won) == list(range(20))
    for number in won:
        assert storage.read(f"p/{number % 20}") == b"%d" % number
    assert len(os.listdir(f"{storage.folder}/p")) == 20


REFUSALS: dict[str, tuple[Callable[[LocalStorage], object], type[LakewrightError]]] = {
    "a name that is too long": (lambda s: s.create("x" * 300, b""), InvalidError),
    "a file below a file": (lambda s: s.create("file/below", b""), InvalidError),
    "a folder cannot be replaced": (lambda s: s.replace("folder", b""), InvalidError),
    "a folder cannot be created over": (lambda s: s.create("folder", b""), ConflictError),
}


@pytest.mark.parametrize(("call", "kind"), REFUSALS.values(), ids=list(REFUSALS))
def test_what_the_file_system_refuses(
    storage: LocalStorage, call: Callable[[LocalStorage], object], kind: type[LakewrightError]
) -> None:
    storage.create("file", b"")
    storage.create("folder/file", b"")
    with pytest.raises(kind):
        call(storage)
    assert sorted(file.path for file in storage.list_tree("")) == ["file", "folder/file"]


@pytest.mark.parametrize("step", ["link", "replace"])
def test_a_full_disk_is_unavailable_and_leaves_nothing(
    storage: LocalStorage, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, step, full)
    with pytest.raises(UnavailableError):
        (storage.create if step == "link" else storage.replace)("f", b"bytes")
    assert on_disk(storage) == []


def test_an_error_of_the_block_that_fills_an_output_is_no_conflict(storage: LocalStorage) -> None:
    def fill() -> None:
        with storage.open_output("f"):
            raise FileExistsError(errno.EEXIST, "something else")

    with pytest.raises(UnavailableError):
        fill()
    assert on_disk(storage) == []


@pytest.mark.parametrize(("durable", "synced"), [(False, 0), (True, 2)])
def test_a_durable_write_settles_the_file_and_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, durable: bool, synced: int
) -> None:
    calls: list[int] = []
    monkeypatch.setattr(os, "fsync", calls.append)
    storage = LocalStorage(str(tmp_path), durable=durable)
    storage.create("f", b"1")
    assert len(calls) == synced
    storage.replace("f", b"2")
    assert len(calls) == 2 * synced


def test_links_are_followed_and_dangling_ones_are_no_files(storage: LocalStorage) -> None:
    storage.create("real/file", b"1")
    os.symlink(f"{storage.folder}/real", f"{storage.folder}/linked")
    os.symlink(f"{storage.folder}/nowhere", f"{storage.folder}/dangling")
    assert storage.list_folders("") == ["linked", "real"]
    assert storage.list_files("") == []
    assert storage.read("linked/file") == b"1"


def test_deleting_a_folder_does_not_follow_links(storage: LocalStorage) -> None:
    storage.create("kept/file", b"1")
    storage.create("gone/file", b"2")
    os.symlink(f"{storage.folder}/kept", f"{storage.folder}/gone/link")
    storage.delete_folder("gone")
    assert [file.path for file in storage.list_tree("")] == ["kept/file"]


@pytest.mark.parametrize("count", [3, 100])
def test_many_files_go_with_their_checksum_files(tmp_path: Path, count: int) -> None:
    storage = LocalStorage.at(str(tmp_path), {})
    for number in range(count):
        folder = tmp_path / f"p{number}"
        folder.mkdir()
        (folder / "a").write_bytes(b"1")
        (folder / sidecar_name("a")).write_bytes(sidecar_of(b"1"))
    storage.delete_many(f"p{number}/a" for number in (*range(count), count))
    assert [each for each in tmp_path.rglob("*") if each.is_file()] == []
