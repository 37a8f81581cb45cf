from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
from obstore.exceptions import BaseError, UnknownConfigurationKeyError
from obstore.store import AzureStore, GCSStore, S3Store

from lakewright.errors import InvalidError, UnsupportedError
from lakewright.storage.base import Storage
from lakewright.storage.factory import (
    STORAGES,
    StorageKind,
    other_options,
    storage_for,
    storage_options,
)
from lakewright.storage.hdfs import HdfsStorage
from lakewright.storage.local import LocalStorage
from lakewright.storage.memory import MemoryStorage
from lakewright.storage.object_store import ObjectStorage, option_names

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
    opened: list[dict[str, str]] = []

    def open_mine(uri: str, options: Mapping[str, str]) -> MemoryStorage:
        opened.append(dict(options))
        return MemoryStorage(uri[7:])

    monkeypatch.setitem(STORAGES, "mine", StorageKind(open_mine, frozenset({"speed"})))
    assert storage_for("mine://here").root == "memory://here"
    # What it declares is an option of storage for every interface, and reaches it alone.
    settings = {
        "Speed": "11",
        "durable": "false",
        "spark.hadoop.fs.x": "1",
        "hoodie.table.name": "t",
    }
    assert other_options(settings) == {"hoodie.table.name": "t"}
    storage_for("mine://here", storage_options(settings))
    assert opened[-1] == {"speed": "11", "fs.x": "1"}
    with pytest.raises(InvalidError) as raised:
        storage_for("mine://here", {"sped": "1"})
    assert raised.value.facts == {"option": "sped", "did_you_mean": "speed"}


def test_options_of_other_storages_are_left_out() -> None:
    options = {"durable": "false", "verify_sidecars": "false", "endpoint": "x", "fs.s3a.x": "1"}
    assert storage_for("/t", options) == LocalStorage("/t", verify_sidecars=False, durable=False)
    assert storage_for("memory://here", options) == MemoryStorage("here")


@pytest.mark.parametrize("key", ["durable", "DURABLE", "spark.hadoop.durable"])
def test_a_plain_option_is_found_in_any_case_and_behind_the_prefix_of_spark(key: str) -> None:
    assert storage_options({key: "false"}) == {"durable": "false"}


@pytest.mark.parametrize("kind", ["s3", "gcs", "azure"])
def test_the_client_knows_every_option_that_is_declared_for_it(kind: str) -> None:
    makes = {"s3": S3Store, "gcs": GCSStore, "azure": AzureStore}
    own = {"max_retries", "retry_timeout", "ssl", "path_style", "credentials_provider"}
    unknown = []
    for name in sorted(option_names(kind) - own):
        try:
            makes[kind]("bucket", config={name: "1"})
        except UnknownConfigurationKeyError:
            unknown.append(name)
        except (BaseError, ValueError):
            continue  # known, but 1 is no value of it
    assert unknown == []
