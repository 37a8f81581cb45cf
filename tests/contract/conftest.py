from __future__ import annotations

from collections.abc import Iterator

import pytest

from lakewright.testing.s3 import S3Server, moto_server


@pytest.fixture(scope="session")
def moto() -> Iterator[S3Server]:
    # Small pages: what takes two pages of a thousand on S3 takes two of a hundred here.
    with moto_server(page_size=100) as server:
        server.create_bucket("lake")
        yield server
