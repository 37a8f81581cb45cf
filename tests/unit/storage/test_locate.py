from __future__ import annotations

from pathlib import Path

import pytest

from lakewright.errors import InvalidError, UnsupportedError
from lakewright.storage.base import Storage
from lakewright.storage.hdfs import HdfsStorage
from lakewright.storage.local import LocalStorage
from lakewright.storage.locate import STORAGES, storage_for
from lakewright.storage.memory import MemoryStorage
from lakewright.storage.objects import ObjectStorage

ADDRESSES: dict[str, tuple[str, type[Storage], str]] = {
    "a path": ("/data/t", LocalStorage, "file:///data/t"),
    "a path with a colon": ("/data/a:b", LocalStorage, "file:///data/a:b"),
    "a file URI": ("file:/data/t", LocalStorage, "file:///data/t"),
    "memory": ("memory://locate", MemoryStorage, "memory://locate"),
    "s3": ("s3://bucket/x/t/", ObjectStorage, "s3a://bucket/x/t"),
    "s3a in capitals": ("S3A://bucket/t", ObjectStorage, "s3a://bucket/t"),
    "gcs": ("gs://bucket/t", ObjectStorage, "gs://bucket/t"),
    "hdfs": ("hdfs://host:8020/x/t/", HdfsStorage, "hdfs://host:8020/x/t"),
}


@pytest.mark.parametrize(("address", "kind", "root"), ADDRESSES.values(), ids=list(ADDRESSES))
def test_the_scheme_chooses_the_storage(address: str, kind: type[Storage], root: str) -> None:
    storage = storage_for(address)
    assert type(storage) is kind
    assert storage.root == root


def test_a_path_object_is_an_address(tmp_path: Path) -> None:
    assert storage_for(tmp_path) == LocalStorage(str(tmp_path))


def test_a_relative_path_with_a_colon_is_a_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert storage_for("a:b/t") == LocalStorage(f"{tmp_path}/a:b/t")


def test_options_reach_the_storage() -> None:
    assert storage_for("/t", {"durable": "true"}) == LocalStorage("/t", durable=True)
    with pytest.raises(InvalidError):
        storage_for("s3://bucket/t", {"no_such_option": "1"})


def test_an_unknown_scheme_is_unsupported_and_names_the_known_ones() -> None:
    with pytest.raises(UnsupportedError) as caught:
        storage_for("ftp://host/t")
    assert caught.value.facts["known"] == sorted(STORAGES)
    assert "s3a" in STORAGES


def test_a_scheme_can_be_added(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(STORAGES, "mine", lambda uri, options: MemoryStorage(uri[7:]))
    assert storage_for("mine://here").root == "memory://here"
