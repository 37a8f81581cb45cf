"""One Spark session for all tests of this process."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import lakewright as lw
from support.soak import SOAK
from support.spark import lean_hadoop, quick_session, speed_up_java

# What another test shows on the same machinery, or what is no part of the product.
collect_ignore = (
    []
    if SOAK
    else [
        "test_bench.py",
        "test_command_line.py",
        "test_killed_cloud.py",
        "test_killed_ingest.py",
        "test_more_commands.py",
    ]
)


# Tests of sessions that differ from the shared one, and end it: they come last, in this order (the
# first begins with the shared one).
OWN_SESSIONS = (
    "test_metastore.py",
    "test_lost_attempts.py",
    "test_retried_tasks.py",
    "test_other_pythons.py",
    "test_secrets.py",
    "test_sessions.py",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.spark)
    places = {name: place for place, name in enumerate(OWN_SESSIONS, 1)}
    items.sort(key=lambda item: places.get(item.path.name, 0))


@pytest.fixture(scope="session", autouse=True)
def quick_java() -> None:
    speed_up_java()


@pytest.fixture(autouse=True)
def own_environment() -> Iterator[None]:
    """Commands that run in this process set up its environment for themselves alone."""
    before = dict(os.environ)
    yield
    for name in os.environ.keys() - before.keys():
        del os.environ[name]
    os.environ.update(before)


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A local session with the library installed."""
    session = quick_session(
        {
            "spark.driver.memory": "2g",
            # A heap of full size needs no growing, which takes a full collection each time.
            "spark.driver.extraJavaOptions": "-Xms2g -Xmn1200m",
            "spark.driver.extraClassPath": lean_hadoop(tmp_path_factory.mktemp("hadoop") / "lean"),
            "spark.sql.warehouse.dir": str(tmp_path_factory.mktemp("warehouse")),
        }
    )
    lw.install(session)
    yield session
    session.stop()
