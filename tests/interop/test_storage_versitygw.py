from __future__ import annotations

import os
import secrets
from collections.abc import Iterator

import pytest

from lakewright.storage.object_store import ObjectStorage
from lakewright.testing.s3 import S3Server, versitygw_server
from lakewright.testing.storage_contract import VersionedStorageContract

pytestmark = pytest.mark.interop


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    folder = str(tmp_path_factory.mktemp("versitygw"))
    with versitygw_server(os.environ["LAKEWRIGHT_VERSITYGW"], folder) as server:
        server.create_bucket("lake")
        yield server


class TestS3Gateway(VersionedStorageContract):
    @pytest.fixture
    def storage(self, gateway: S3Server) -> ObjectStorage:
        return ObjectStorage.at(
            f"s3a://lake/{secrets.token_hex(4)}/a table%20=é", gateway.hadoop_options()
        )
