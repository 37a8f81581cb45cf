"""Tables on HDFS, tested without one: addresses, settings, and what errors mean."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest

from lakewright.errors import (
    ConflictError,
    CorruptError,
    InvalidError,
    LakewrightError,
    UnavailableError,
    UnsupportedError,
)
from lakewright.storage.base import MissingFileError, Storage
from lakewright.storage.factory import storage_for, storage_options
from lakewright.storage.hdfs import HdfsStorage, client_for, write_options
from lakewright.testing.processes import free_port

PROVIDER = "dfs.client.failover.proxy.provider"
OBSERVER = "org.apache.hadoop.hdfs.server.namenode.ha.ObserverReadProxyProvider"
ACTIVE = "org.apache.hadoop.hdfs.server.namenode.ha.ConfiguredFailoverProxyProvider"


@pytest.fixture(autouse=True)
def forget_clients() -> Iterator[None]:
    yield
    client_for.cache_clear()
    write_options.cache_clear()


ADDRESSES: dict[str, tuple[str, dict[str, str], str]] = {
    "a NameNode": ("hdfs://nn:8020/lake/t/", {}, "hdfs://nn:8020/lake/t"),
    "a host in capitals of a scheme in capitals": ("HDFS://NN:8020/t", {}, "hdfs://NN:8020/t"),
    "a host without a port": ("hdfs://nn/t", {}, "hdfs://nn/t"),
    "nothing is escaped": ("hdfs://nn:1/a b%20/é", {}, "hdfs://nn:1/a b%20/é"),
    "all of an HDFS": ("hdfs://nn:1/", {}, "hdfs://nn:1"),
    "the default file system": ("hdfs:///t", {"fs.defaultFS": "hdfs://nn:1/"}, "hdfs://nn:1/t"),
    "the same with one slash": ("hdfs:/t", {"fs.defaultFS": "hdfs://nn:1"}, "hdfs://nn:1/t"),
}


@pytest.mark.parametrize(("address", "settings", "root"), ADDRESSES.values(), ids=list(ADDRESSES))
def test_an_address_is_as_spark_takes_it(address: str, settings: dict[str, str], root: str) -> None:
    storage = storage_for(address, settings)
    assert isinstance(storage, HdfsStorage)
    assert storage.root == root
    assert storage.url("p/a b") == f"{root}/p/a b"
    assert pickle.loads(pickle.dumps(storage)) == storage


WRONG: dict[str, tuple[str, dict[str, str]]] = {
    "no host, and no default": ("hdfs:///t", {}),
    "no host, and another default": ("hdfs:///t", {"fs.defaultFS": "file:///"}),
    "a way out": ("hdfs://nn:1/a/../b", {}),
    "an option of no storage": ("hdfs://nn:1/t", {"endpiont": "x"}),
    "a replication that is no number": ("hdfs://nn:1/t", {"dfs.replication": "two"}),
    "a mask that is no number": ("hdfs://nn:1/t", {"fs.permissions.umask-mode": "u=rwx"}),
    "a port that is no number": ("hdfs://nn:port/t", {}),
}


@pytest.mark.parametrize(("address", "settings"), WRONG.values(), ids=list(WRONG))
def test_a_wrong_address_or_setting_is_refused_at_once(
    address: str, settings: dict[str, str]
) -> None:
    with pytest.raises(InvalidError):
        storage_for(address, settings)


def test_a_missing_package_is_reported_with_the_way_to_install_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "hdfs_native", None)
    with pytest.raises(InvalidError, match=r"pip install 'lakewright\[hdfs\]'"):
        storage_for("hdfs://nn:8020/t")


def test_hadoops_settings_are_options_of_storages_with_or_without_sparks_prefix() -> None:
    options = {
        "dfs.nameservices": "lake",
        "spark.hadoop.dfs.replication": "2",
        "spark.hadoop.hadoop.security.authentication": "kerberos",
        "fs.defaultFS": "hdfs://lake",
        "spark.sql.shuffle.partitions": "2",
        "hoodie.table.name": "t",
    }
    assert storage_options(options) == {
        "dfs.nameservices": "lake",
        "dfs.replication": "2",
        "hadoop.security.authentication": "kerberos",
        "fs.defaultFS": "hdfs://lake",
    }


@pytest.mark.parametrize("address", ["/t", "memory://hdfs-settings", "s3://bucket/t"])
def test_settings_of_hdfs_do_not_disturb_other_storages(address: str) -> None:
    settings = {"dfs.replication": "2", "spark.hadoop.hadoop.rpc.protection": "privacy"}
    assert storage_for(address, settings) == storage_for(address)


class FakeNative:
    """The package, of which the tests only make clients."""

    def __init__(self, nameservices: tuple[str, ...] = ()) -> None:
        self.made: list[tuple[str, dict[str, str]]] = []
        self._nameservices = nameservices
        self.WriteOptions = SimpleNamespace

    def Client(self, url: str, config: dict[str, str]) -> object:
        if ":" not in url.removeprefix("hdfs://") and url[7:] not in self._nameservices:
            raise RuntimeError('InvalidArgument("No NameNode hosts found")')
        self.made.append((url, config))
        return object()


def test_a_host_that_is_no_nameservice_is_a_namenode_at_the_usual_port(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "hdfs_native", native := FakeNative())
    storage_for("hdfs://lake/t")
    assert [url for url, _ in native.made] == ["hdfs://lake:8020"]


def test_observers_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "hdfs_native", native := FakeNative(("lake",)))
    storage_for("hdfs://lake/t", {f"{PROVIDER}.lake": OBSERVER, "dfs.x": "1"})
    assert native.made == [("hdfs://lake", {f"{PROVIDER}.lake": ACTIVE, "dfs.x": "1"})]


def test_a_server_that_does_not_answer_is_unavailable() -> None:
    storage = storage_for(
        f"hdfs://127.0.0.1:{free_port()}/t", {"dfs.client.failover.max.attempts": "0"}
    )
    for call in (
        lambda: storage.read("f"),
        lambda: storage.list_files(""),
        lambda: storage.status("f"),
        lambda: storage.create("f", b""),
        lambda: storage.delete("f"),
    ):
        with pytest.raises(UnavailableError):
            call()


class FakeClient:
    """A client whose every call fails in one way."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    def __getattr__(self, name: str) -> Any:
        def fail(*_: object, **__: object) -> NoReturn:
            raise self.error

        return fail


def java(name: str, message: str = "") -> RuntimeError:
    return RuntimeError(f'RPCError("{name}", "{message}\\n\\tat x.y.Z(Z.java:1)")')


READING: dict[str, tuple[Exception, type[LakewrightError]]] = {
    "a missing file": (FileNotFoundError("/t/f"), MissingFileError),
    "below a file": (
        java("org.apache.hadoop.security.AccessControlException", "/t (is not a directory)"),
        MissingFileError,
    ),
    "denied": (
        java("org.apache.hadoop.security.AccessControlException", "Permission denied"),
        InvalidError,
    ),
    "no ticket": (RuntimeError('GSSAPIError(GSS_S_FAILURE, 0, "no credentials")'), InvalidError),
    "a lost connection": (OSError("RPC listener disconnected"), UnavailableError),
    "a NameNode that is starting": (
        java("org.apache.hadoop.hdfs.server.namenode.SafeModeException"),
        UnavailableError,
    ),
    "a standby": (java("org.apache.hadoop.ipc.StandbyException"), UnavailableError),
    "no DataNode": (RuntimeError('BlocksNotFound("f")'), UnavailableError),
    "damaged blocks": (RuntimeError("ChecksumError"), CorruptError),
    "a feature of HDFS that the client lacks": (NotImplementedError("zone"), UnsupportedError),
    "an unknown code": (
        RuntimeError('UnsupportedErasureCodingPolicy("XOR")'), UnsupportedError),
}  # fmt: skip


@pytest.fixture
def storage() -> Storage:
    return storage_for("hdfs://nn:8020/t")


def use(monkeypatch: pytest.MonkeyPatch, client: object) -> None:
    monkeypatch.setattr("lakewright.storage.hdfs.client_for", lambda *_: client)


@pytest.mark.parametrize(("error", "kind"), READING.values(), ids=list(READING))
def test_a_failed_read_is_an_error_of_the_library(
    storage: Storage,
    monkeypatch: pytest.MonkeyPatch,
    error: Exception,
    kind: type[LakewrightError],
) -> None:
    use(monkeypatch, FakeClient(error))
    with pytest.raises(kind) as caught:
        storage.read("f")
    assert type(caught.value) is kind
    assert caught.value.facts["path"] == "f"
    assert "Z.java" not in str(caught.value)


def test_names_that_are_no_paths_are_passed_over(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert isinstance(storage, HdfsStorage)
    root = storage.location.folder

    def entry(name: str, *, isdir: bool) -> SimpleNamespace:
        return SimpleNamespace(path=f"{root}/{name}", isdir=isdir, length=1, modification_time=0)

    listed = [
        entry("p", isdir=True),
        entry("a\nb", isdir=True),
        entry("f", isdir=False),
        entry("\x7f", isdir=False),
    ]
    use(monkeypatch, SimpleNamespace(list_status=lambda _: listed))
    assert storage.list_folders("") == ["p"]
    assert [file.path for file in storage.list_files("")] == ["f"]


class LateBlock:
    """A client that learns of a file's only block after it was opened some times."""

    def __init__(self, data: bytes, opened_before: int) -> None:
        self.data = data
        self.opened_before = opened_before

    def read(self, _: str) -> Reader:
        self.opened_before -= 1
        return Reader(self.data if self.opened_before < 0 else b"")

    def get_file_info(self, _: str) -> SimpleNamespace:
        return SimpleNamespace(length=len(self.data))


class Reader(bytearray):
    def read_range(self, offset: int, length: int) -> bytes:
        return bytes(self[offset : offset + length])


CLOSED_EARLY = {"a file": b"123", "a file that ends with a block": bytes(1024 * 1024)}


@pytest.mark.parametrize("data", CLOSED_EARLY.values(), ids=list(CLOSED_EARLY))
def test_a_file_is_read_once_its_last_block_is_known(
    storage: Storage, monkeypatch: pytest.MonkeyPatch, data: bytes
) -> None:
    monkeypatch.setattr("lakewright.storage.hdfs._LENGTH_PAUSES_S", (0, 0))
    use(monkeypatch, LateBlock(data, opened_before=2))
    assert storage.read("f") == data
    use(monkeypatch, LateBlock(data, opened_before=2))
    assert storage.read_range("f", 1, 2) == data[1:3]
    use(monkeypatch, LateBlock(data, opened_before=2))
    with storage.open_input("f") as source:
        assert source.read() == data
    use(monkeypatch, LateBlock(data, opened_before=3))
    with pytest.raises(UnavailableError, match="last block"):
        storage.read("f")


class Namespace:
    """Names, as a NameNode has them; `fail_after` is raised when a rename is done."""

    def __init__(self, fail_after: Exception | None = None, **refusals: Exception) -> None:
        self.names: dict[str, bytes] = {}
        self.fail_after = fail_after
        self.refusals = refusals

    def create(self, name: str, _: object) -> Any:
        self._may_refuse("create")
        self.names[name] = b""
        return SimpleNamespace(
            write=lambda data: self._write(name, bytes(data)),
            close=lambda: self._may_refuse("close"),
        )

    def _write(self, name: str, data: bytes) -> None:
        self._may_refuse("write")
        self.names[name] += data

    def rename(self, source: str, target: str, *, overwrite: bool) -> None:
        self._may_refuse("rename")
        if target in self.names and not overwrite:
            raise FileExistsError(target)
        self.names[target] = self.names.pop(source)
        if self.fail_after is not None:
            raise self.fail_after

    def delete(self, name: str) -> bool:
        self._may_refuse("delete")
        return self.names.pop(name, None) is not None

    def _may_refuse(self, call: str) -> None:
        if call in self.refusals:
            raise self.refusals[call]


STEPS = ("create", "write", "close", "rename")


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("way", ["create", "replace", "open_output"])
def test_a_write_that_fails_on_its_way_leaves_nothing(
    storage: Storage, monkeypatch: pytest.MonkeyPatch, step: str, way: str
) -> None:
    use(monkeypatch, space := Namespace(**{step: OSError("connection reset")}))
    with pytest.raises(UnavailableError):
        write(storage, way)
    assert space.names == {}


def write(storage: Storage, way: str) -> None:
    if way == "open_output":
        with storage.open_output("p/f") as output:
            output.write(b"1")
    else:
        getattr(storage, way)("p/f", b"1")


@pytest.mark.parametrize("way", ["create", "replace", "open_output"])
def test_a_lost_answer_is_reported_as_such_and_may_be_of_the_own_file(
    storage: Storage, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    use(monkeypatch, space := Namespace(OSError("RPC listener disconnected")))
    with pytest.raises(UnavailableError):
        write(storage, way)
    assert space.names == {"/t/p/f": b"1"}


def test_a_taken_name_is_a_conflict_and_stays_unchanged(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(monkeypatch, space := Namespace())
    write(storage, "create")
    for way in ("create", "open_output"):
        with pytest.raises(ConflictError):
            write(storage, way)
    assert space.names == {"/t/p/f": b"1"}


def test_a_clean_up_that_fails_hides_no_error(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    error = OSError("connection reset")
    use(monkeypatch, Namespace(write=error, close=error, delete=error))
    with pytest.raises(UnavailableError) as caught:
        write(storage, "create")
    assert caught.value.__cause__ is error
