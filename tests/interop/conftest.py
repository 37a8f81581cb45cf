from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from real_hudi import RealHudi, running

import lakewright as lw
from lakewright.testing.hdfs import HdfsServer, hdfs_server
from lakewright.testing.s3 import S3Server, versitygw_server
from lakewright.testing.spark_cluster import spark_cluster
from support.soak import SOAK
from support.spark import quick_session, speed_up_java

NEEDED = (
    "LAKEWRIGHT_INTEROP_PYTHON",
    "LAKEWRIGHT_INTEROP_JAVA_HOME",
    "LAKEWRIGHT_HUDI_JAR",
    "LAKEWRIGHT_HDFS_JAR",
    "LAKEWRIGHT_VERSITYGW",
)

# A race of real Hudi takes as long as all tests of a file here; `./dev bench` is one.
collect_ignore = [] if SOAK else ["test_bench.py", "test_cluster.py"]

# On SIGTERM a run stops the processes that it has started, as after an interrupt.
signal.signal(signal.SIGTERM, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.interop)


@pytest.fixture(scope="session", autouse=True)
def judges_are_there() -> None:
    missing = [name for name in NEEDED if not Path(os.environ.get(name, "missing")).exists()]
    if missing:
        pytest.exit(f"./dev interop makes what these tests need; not set: {missing}", returncode=1)


@pytest.fixture(scope="session", autouse=True)
def quick_java() -> None:
    speed_up_java()


@pytest.fixture(scope="session")
def real_hudi(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealHudi]:
    with running(tmp_path_factory.mktemp("real_hudi")) as hudi:
        yield hudi


@pytest.fixture(scope="session")
def versitygw(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    folder = str(tmp_path_factory.mktemp("versitygw"))
    with versitygw_server(os.environ["LAKEWRIGHT_VERSITYGW"], folder) as server:
        yield server


@pytest.fixture(scope="session")
def hdfs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HdfsServer]:
    # Small pages: what takes two pages of a thousand elsewhere takes two of a hundred here.
    folder = tmp_path_factory.mktemp("hdfs")
    with hdfs_server(os.environ["LAKEWRIGHT_HDFS_JAR"], folder, {"dfs.ls.limit": "100"}) as server:
        yield server


@pytest.fixture(scope="session")
def spark(hdfs: HdfsServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A session with the library installed that resolves `hdfs://lake` by its settings alone.

    In a soak run it is on a cluster of two executors in their own processes.
    """
    settings = {f"spark.hadoop.{key}": value for key, value in hdfs.nameservice("lake").items()}
    folder = tmp_path_factory.mktemp("session")
    settings["spark.sql.warehouse.dir"] = str(folder / "warehouse")
    with ExitStack() as stack:
        if SOAK:
            cluster = stack.enter_context(spark_cluster(folder, workers=2, cores=1))
            settings.update(cluster.settings())
        session = quick_session(settings)
        lw.install(session)
        yield session
        session.stop()
