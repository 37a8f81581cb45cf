from __future__ import annotations

import errno
import os
import stat
import zipfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from lakewright.errors import (
    ConflictError,
    CorruptError,
    InvalidError,
    LakewrightError,
    UnavailableError,
)
from lakewright.storage.durable_disk import Disk, sidecar_name
from lakewright.storage.local import LocalStorage
from lakewright.testing.checksums import sidecar_of
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
    options = {"verify_sidecars": "false", "durable": "TRUE", "fs.s3a.access.key": "k"}
    assert LocalStorage.at("/t", options) == LocalStorage("/t", verify_sidecars=False)
    assert LocalStorage("/t").durable
    assert LocalStorage.at("/t", {}) == LocalStorage("/t")
    assert LocalStorage.at("/t", {"durable": "false"}) == LocalStorage("/t", durable=False)
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


class DeadAt(Disk):
    """The process dies at a call that changes the name `f`."""

    def __init__(self, call: str) -> None:
        super().__init__()
        self.call = call

    def rename(self, folder: int, source: str, target: str) -> None:
        self._pass("rename", target)
        super().rename(folder, source, target)

    def unlink(self, folder: int, name: str) -> None:
        self._pass("unlink", name)
        super().unlink(folder, name)

    def _pass(self, call: str, name: str) -> None:
        if (call, name) == (self.call, "f"):
            raise Crash


@pytest.mark.parametrize("step", ["rename", "unlink"])
def test_the_sidecar_is_deleted_before_its_file(tmp_path: Path, step: str) -> None:
    storage = LocalStorage(str(tmp_path), disk=DeadAt(step))
    put_with_sidecar(storage, "f", b"old", sidecar_of(b"old"))
    with pytest.raises(Crash):
        CHANGES["replace" if step == "rename" else "delete"](storage)
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


class Killed(Disk):
    """The process dies before a file gets its name, and cleans up nothing."""

    def link(self, folder: int, source: str, target: str) -> None:
        raise Crash

    def unlink(self, folder: int, name: str) -> None:
        return


def test_a_killed_writer_leaves_no_half_file(storage: LocalStorage) -> None:
    with pytest.raises(Crash):
        replace(storage, disk=Killed()).create("p/f", b"bytes")
    (name,) = os.listdir(f"{storage.folder}/p")
    assert name.startswith(".")
    assert ".log" not in name
    assert not name.endswith((".parquet", ".orc", ".hfile", ".lance"))
    assert list(storage.list_tree("")) == []
    storage.create("p/f", b"again")
    storage.delete_folder("p")
    assert on_disk(storage) == []


def test_live_processes_leave_nothing_behind(storage: LocalStorage) -> None:
    storage.create("f", b"1")
    storage.replace("f", b"2")
    with pytest.raises(ConflictError):
        storage.create("f", b"3")
    assert on_disk(storage) == ["f"]


class AnsweredTwice(Disk):
    """A file system that repeats a call whose answer was lost."""

    def link(self, folder: int, source: str, target: str) -> None:
        super().link(folder, source, target)
        super().link(folder, source, target)


def test_a_link_whose_answer_was_lost_is_recognized_as_the_own_one(tmp_path: Path) -> None:
    storage = LocalStorage(str(tmp_path), disk=AnsweredTwice())
    storage.create("f", b"mine")
    assert storage.read("f") == b"mine"
    with pytest.raises(ConflictError):
        storage.create("f", b"again")
    assert on_disk(storage) == ["f"]


class NoLinks(Disk):
    """A file system without hard links."""

    def link(self, folder: int, source: str, target: str) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")


class NoLinksNoFlags(NoLinks):
    """One that knows no rename which replaces nothing either."""

    def rename_new(self, folder: int, source: str, target: str) -> None:
        raise OSError(errno.EINVAL, "Invalid argument")


@pytest.fixture(params=[NoLinks, NoLinksNoFlags])
def without_links(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> LocalStorage:
    """A folder where flock excludes no process, as between two machines."""
    monkeypatch.setattr("fcntl.flock", lambda *_: None)
    return LocalStorage(str(tmp_path), disk=request.param())


def test_without_hard_links_exactly_one_creator_wins(without_links: LocalStorage) -> None:
    storage = without_links

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


class RacingCreate(NoLinks):
    """Another machine creates the same name between the look at it and the rename."""

    def __init__(self, other: LocalStorage, won: list[bytes]) -> None:
        super().__init__()
        self.other: LocalStorage | None = other
        self.won = won

    def rename(self, folder: int, source: str, target: str) -> None:
        self._other_creates(target)
        super().rename(folder, source, target)

    def rename_new(self, folder: int, source: str, target: str) -> None:
        self._other_creates(target)
        super().rename_new(folder, source, target)

    def _other_creates(self, target: str) -> None:
        other, self.other = self.other, None
        if other is not None:
            creates(other, target, b"another machine", self.won)


class RacingCreateNoFlags(RacingCreate):
    """The same where there is no rename that replaces nothing."""

    def rename_new(self, folder: int, source: str, target: str) -> None:
        raise OSError(errno.EINVAL, "Invalid argument")


def creates(storage: LocalStorage, path: str, data: bytes, won: list[bytes]) -> None:
    with suppress(ConflictError, UnavailableError):
        storage.create(path, data)
        won.append(data)


@pytest.mark.parametrize(
    ("first", "second"), [(RacingCreate, NoLinks), (RacingCreateNoFlags, NoLinksNoFlags)]
)
def test_two_machines_without_hard_links_cannot_both_create_a_name(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    first: type[RacingCreate],
    second: type[Disk],
) -> None:
    monkeypatch.setattr("fcntl.flock", lambda *_: None)
    monkeypatch.setattr("lakewright.storage.durable_disk._CLAIM_PAUSE_S", 0.0)
    won: list[bytes] = []
    other = LocalStorage(str(tmp_path), disk=second())
    storage = LocalStorage(str(tmp_path), disk=first(other, won))
    creates(storage, "lock", b"one machine", won)
    assert [storage.read("lock")] == won
    assert on_disk(storage) == ["lock"]


def test_a_claim_that_a_dead_process_left_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lakewright.storage.durable_disk._CLAIM_PAUSE_S", 0.0)

    class DeadWithClaim(NoLinksNoFlags):
        def rename(self, folder: int, source: str, target: str) -> None:
            raise Crash

        def unlink(self, folder: int, name: str) -> None:
            return

    with pytest.raises(Crash):
        LocalStorage(str(tmp_path), disk=DeadWithClaim()).create("f", b"1")
    storage = LocalStorage(str(tmp_path), disk=NoLinksNoFlags())
    with pytest.raises(UnavailableError, match=r"left \.lw-"):
        storage.create("f", b"2")
    assert list(storage.list_tree("")) == []
    for file in storage.list_temporary():
        storage.delete(file.path)
    storage.create("f", b"2")
    assert storage.read("f") == b"2"


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


class Full(Disk):
    """A disk that has no room for another name."""

    def link(self, folder: int, source: str, target: str) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    def rename(self, folder: int, source: str, target: str) -> None:
        self.link(folder, source, target)


@pytest.mark.parametrize("change", ["create", "replace"])
def test_a_full_disk_is_unavailable_and_leaves_nothing(tmp_path: Path, change: str) -> None:
    storage = LocalStorage(str(tmp_path), disk=Full())
    with pytest.raises(UnavailableError):
        getattr(storage, change)("f", b"bytes")
    assert on_disk(storage) == []


def test_an_error_of_the_block_that_fills_an_output_is_no_conflict(storage: LocalStorage) -> None:
    def fill() -> None:
        with storage.open_output("f"):
            raise FileExistsError(errno.EEXIST, "something else")

    with pytest.raises(UnavailableError):
        fill()
    assert on_disk(storage) == []


class Noted(Disk):
    """Notes what is synced, and what gets its name, in order."""

    def __init__(self, root: Path) -> None:
        super().__init__()
        self.root = root
        self.notes: list[str] = []

    def sync_file(self, descriptor: int) -> None:
        self.notes.append("content")
        super().sync_file(descriptor)

    def sync_folder(self, folder: int) -> None:
        path = os.readlink(f"/proc/self/fd/{folder}")
        self.notes.append("folder " + os.path.relpath(path, self.root))
        super().sync_folder(folder)

    def link(self, folder: int, source: str, target: str) -> None:
        self.notes.append(f"name {target}")
        super().link(folder, source, target)

    def rename(self, folder: int, source: str, target: str) -> None:
        self.notes.append(f"name {target}")
        super().rename(folder, source, target)

    def unlink(self, folder: int, name: str) -> None:
        super().unlink(folder, name)
        if not name.startswith(".lw-"):
            self.notes.append(f"gone {name}")

    def taken(self) -> list[str]:
        notes, self.notes = self.notes, []
        return notes


def test_what_has_returned_is_on_the_disk(tmp_path: Path) -> None:
    disk = Noted(tmp_path)
    storage = LocalStorage(f"{tmp_path}/t", disk=disk)
    storage.create("y/z/f", b"1")
    made = ["folder .", "folder t", "folder t/y"]
    assert disk.taken() == [*made, "content", "name f", "folder t/y/z"]
    storage.create("y/z/g", b"")
    assert disk.taken() == ["name g", "folder t/y/z"]
    storage.replace("y/z/f", b"2")
    assert disk.taken() == ["content", "name f", "folder t/y/z"]
    with pytest.raises(ConflictError):
        storage.create("y/z/f", b"3")
    assert disk.taken() == ["content", "name f", "folder t/y/z"]
    storage.delete_many(["y/z/f", "y/z/g"])
    assert disk.taken() == ["gone f", "gone g", "folder t/y/z"]
    storage.delete("y/z/f")
    assert disk.taken() == ["folder t/y/z"]
    storage.delete_folder("y")
    assert disk.taken() == ["folder t"]


def test_folders_that_another_process_has_made_are_synced_once(tmp_path: Path) -> None:
    (tmp_path / "t/y/z").mkdir(parents=True)
    disk = Noted(tmp_path)
    storage = LocalStorage(f"{tmp_path}/t", disk=disk)
    storage.create("y/z/f", b"")
    assert disk.taken() == ["folder t", "folder t/y", "name f", "folder t/y/z"]
    storage.create("y/z/g", b"")
    assert disk.taken() == ["name g", "folder t/y/z"]
    storage.delete_folder("y")
    disk.taken()
    storage.create("y/z/f", b"")
    assert disk.taken() == ["folder t", "folder t/y", "name f", "folder t/y/z"]


def test_what_is_written_unsynced_is_synced_together(tmp_path: Path) -> None:
    disk = Noted(tmp_path)
    disk.threads = 1
    storage = LocalStorage(str(tmp_path), disk=disk)
    for path in ("p/a", "p/b", "q/c"):
        storage.unsynced().create(path, b"1")
    storage.unsynced().delete("p/gone")
    assert disk.taken() == ["name a", "name b", "name c"]
    storage.sync(["p/a", "p/b", "q/c", "p/missing", "no/such"])
    assert on_disk(storage) == ["p", "q"]
    folders = ["folder .", "folder p", "folder .", "folder q"]
    assert disk.taken() == ["content"] * 3 + folders


def test_without_durable_nothing_is_synced(tmp_path: Path) -> None:
    disk = Noted(tmp_path)
    storage = LocalStorage(str(tmp_path), durable=False, disk=disk)
    storage.create("p/f", b"1")
    storage.replace("p/f", b"2")
    storage.sync(["p/f"])
    storage.delete("p/f")
    storage.delete_folder("p")
    assert disk.taken() == ["name f", "name f", "gone f"]
    assert storage.unsynced() is storage


def test_a_name_that_cannot_be_synced_does_not_stay(tmp_path: Path) -> None:
    class Broken(Disk):
        def sync_folder(self, folder: int) -> None:
            if "f" in os.listdir(folder):
                raise OSError(errno.EIO, "Input/output error")

    storage = LocalStorage(str(tmp_path), disk=Broken())
    with pytest.raises(UnavailableError):
        storage.create("f", b"1")
    assert on_disk(storage) == []


def test_a_file_system_without_sync_of_folders_is_fit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fsync = os.fsync

    def refuse_folders(descriptor: int) -> None:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "Invalid argument")
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", refuse_folders)
    storage = LocalStorage(str(tmp_path))
    storage.create("p/f", b"1")
    assert storage.read("p/f") == b"1"


@pytest.fixture
def linked(tmp_path: Path) -> LocalStorage:
    """A table with a link to a folder next to it, and a dangling one."""
    storage = LocalStorage(f"{tmp_path}/table")
    storage.create("real/file", b"1")
    (tmp_path / "outside/sub").mkdir(parents=True)
    (tmp_path / "outside/file").write_bytes(b"2")
    (tmp_path / "outside/sub/file").write_bytes(b"3")
    os.symlink(tmp_path / "outside", f"{storage.folder}/linked")
    os.symlink(f"{storage.folder}/nowhere", f"{storage.folder}/dangling")
    return storage


def outside(tmp_path: Path) -> dict[str, bytes]:
    folder = tmp_path / "outside"
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else b""
        for path in folder.rglob("*")
    }


@pytest.mark.filterwarnings("ignore:.*symbolic link")
def test_listings_follow_no_link_to_a_folder(linked: LocalStorage) -> None:
    assert linked.list_folders("") == ["real"]
    assert linked.list_files("") == []
    assert [file.path for file in linked.list_tree("")] == ["real/file"]
    for folder in ("linked", "linked/sub"):
        assert linked.list_files(folder) == []
        assert linked.list_folders(folder) == []
        assert list(linked.list_tree(folder)) == []
        assert linked.list_many([folder]) == {folder: []}


def test_a_link_that_is_passed_over_is_named(linked: LocalStorage) -> None:
    with pytest.warns(RuntimeWarning, match="linked is a symbolic link"):
        linked.list_files("")
    assert [file.name for file in linked.list_ignored()] == ["linked"]


BEHIND_A_LINK: dict[str, Callable[[LocalStorage], object]] = {
    "create": lambda storage: storage.create("linked/new", b""),
    "create in a new folder": lambda storage: storage.create("linked/x/new", b""),
    "replace": lambda storage: storage.replace("linked/file", b""),
    "delete": lambda storage: storage.delete("linked/file"),
    "delete below": lambda storage: storage.delete("linked/sub/file"),
    "delete_many": lambda storage: storage.delete_many(["real/file", "linked/file"]),
    "delete_folder": lambda storage: storage.delete_folder("linked/sub"),
}


@pytest.mark.parametrize("change", BEHIND_A_LINK.values(), ids=list(BEHIND_A_LINK))
def test_nothing_is_changed_behind_a_link(
    linked: LocalStorage, tmp_path: Path, change: Callable[[LocalStorage], object]
) -> None:
    before = outside(tmp_path)
    with pytest.raises(InvalidError, match="symbolic link"):
        change(linked)
    assert outside(tmp_path) == before


def test_of_a_link_only_the_link_is_deleted(linked: LocalStorage, tmp_path: Path) -> None:
    before = outside(tmp_path)
    os.symlink(tmp_path / "outside", f"{linked.folder}/real/link")
    linked.delete_folder("real")
    linked.delete_folder("linked")
    linked.delete_folder("dangling")
    assert on_disk(linked) == []
    assert outside(tmp_path) == before


def test_the_root_may_be_a_link(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    os.symlink(tmp_path / "real", tmp_path / "table")
    storage = LocalStorage(f"{tmp_path}/table")
    storage.create("p/f", b"1")
    assert [file.path for file in storage.list_tree("")] == ["p/f"]
    storage.delete_folder("p")
    assert on_disk(storage) == []


def test_names_that_are_no_paths_are_passed_over(storage: LocalStorage) -> None:
    storage.create("p/f", b"1")
    for name in (b"\xff\xfe", b"p/a\nb", b"p/\x7f"):
        os.mkdir(os.path.join(os.fsencode(storage.folder), name))
        path = os.path.join(os.fsencode(storage.folder), name + b".file")
        with open(path, "wb"):
            pass
    assert storage.list_folders("") == ["p"]
    assert storage.list_folders("p") == []
    assert [file.path for file in storage.list_tree("")] == ["p/f"]
    assert [file.name for file in storage.list_ignored()] == [
        "\\xff\\xfe",
        "\\xff\\xfe.file",
        "p/\\x7f",
        "p/\\x7f.file",
        "p/a\\x0ab",
        "p/a\\x0ab.file",
    ]
    storage.delete_folder("p")
    assert storage.list_folders("") == []


@pytest.mark.parametrize("count", [3, 100])
def test_many_files_are_deleted_with_their_checksum_files(tmp_path: Path, count: int) -> None:
    storage = LocalStorage.at(str(tmp_path), {})
    for number in range(count):
        folder = tmp_path / f"p{number}"
        folder.mkdir()
        (folder / "a").write_bytes(b"1")
        (folder / sidecar_name("a")).write_bytes(sidecar_of(b"1"))
    storage.delete_many(f"p{number}/a" for number in (*range(count), count))
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []
