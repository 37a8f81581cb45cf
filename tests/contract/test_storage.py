from __future__ import annotations

import secrets
from pathlib import Path

import pytest

from lakewright.errors import ConflictError, InvalidError
from lakewright.storage.factory import storage_for
from lakewright.storage.local import LocalStorage
from lakewright.storage.memory import MemoryStorage
from lakewright.storage.object_store import ObjectStorage
from lakewright.testing.s3 import S3Server
from lakewright.testing.storage_contract import ODD_NAMES, VersionedStorageContract


class TestLocalStorage(VersionedStorageContract):
    # A disk answers a listing at once, and every file is synced.
    page_size = 100

    @pytest.fixture
    def storage(self, tmp_path: Path) -> LocalStorage:
        return LocalStorage(f"{tmp_path}/a table")


class TestMemoryStorage(VersionedStorageContract):
    @pytest.fixture
    def storage(self) -> MemoryStorage:
        return MemoryStorage.fresh()


class TestS3Storage(VersionedStorageContract):
    page_size = 100

    @pytest.fixture
    def storage(self, moto: S3Server) -> ObjectStorage:
        uri = f"s3://lake/{secrets.token_hex(4)}/a table%20=é"
        storage = storage_for(uri, moto.options())
        assert isinstance(storage, ObjectStorage)
        return storage

    def test_keys_are_what_other_clients_see(self, storage: ObjectStorage, moto: S3Server) -> None:
        for name in ODD_NAMES:
            storage.create(name, b"1")
        listing = moto.client().list_objects_v2(Bucket="lake", Prefix=storage.location.prefix)
        keys = {entry["Key"] for entry in listing["Contents"]}
        assert keys == {f"{storage.location.prefix}/{name}" for name in ODD_NAMES}

    def test_folders_that_hadoop_marks_are_no_files(
        self, storage: ObjectStorage, moto: S3Server
    ) -> None:
        for key in ("", "d/", "d/empty/", "d/sub/", "d/sub/deep/", "d/sub/file", "d/zero"):
            moto.client().put_object(
                Bucket="lake", Key=f"{storage.location.prefix}/{key}", Body=b""
            )
        assert [file.path for file in storage.list_files("")] == []
        assert [file.path for file in storage.list_files("d")] == ["d/zero"]
        assert storage.list_folders("d") == ["d/empty", "d/sub"]
        for folder in ("", "d"):
            assert {file.path for file in storage.list_tree(folder)} == {"d/sub/file", "d/zero"}
        storage.delete_folder("d")
        assert list(storage.list_tree("")) == []

    def test_a_key_that_is_no_path_is_named(self, storage: ObjectStorage, moto: S3Server) -> None:
        """The client refuses the whole listing: what can be done is to say which key it is."""
        for key in ("p/f", "p/a\x7fb"):
            moto.client().put_object(
                Bucket="lake", Key=f"{storage.location.prefix}/{key}", Body=b"1"
            )
        assert storage.list_folders("") == ["p"]
        with pytest.raises(InvalidError, match="no path of a table: remove it") as refused:
            storage.list_files("p")
        assert "a\x7fb" in str(refused.value.facts["reason"])
        assert storage.read("p/f") == b"1"

    def test_a_large_output_goes_up_in_parts(
        self, storage: ObjectStorage, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("lakewright.storage.object_store._LARGEST_SINGLE_PUT", 1024)
        monkeypatch.setattr("lakewright.storage.object_store._IN_MEMORY", 1024)
        data = bytes(range(256)) * 25_000
        with storage.open_output("large") as output:
            output.write(data)
        assert storage.read("large") == data
        with pytest.raises(ConflictError), storage.open_output("large") as output:
            output.write(data)

    def test_a_missing_bucket_is_no_empty_table(self, moto: S3Server) -> None:
        storage = ObjectStorage.at("s3://no-such-bucket/t", moto.options())
        with pytest.raises(InvalidError):
            storage.list_files("")
        with pytest.raises(InvalidError):
            storage.read("f")
        with pytest.raises(InvalidError):
            storage.create("f", b"")

    def test_settings_of_hadoop_reach_the_same_files(
        self, storage: ObjectStorage, moto: S3Server
    ) -> None:
        storage.create("f", b"1")
        assert ObjectStorage.at(storage.root, moto.hadoop_options()) == storage
