from __future__ import annotations

from collections.abc import Iterator

import pytest
from crew import Crew, mustered

from lakewright.testing.s3 import S3Server, moto_server


@pytest.fixture(scope="session")
def crew(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Crew]:
    """Processes that write."""
    with mustered(tmp_path_factory.mktemp("journals")) as writers:
        yield writers


@pytest.fixture(scope="session")
def moto() -> Iterator[S3Server]:
    with moto_server() as server:
        server.create_bucket("lake")
        yield server
