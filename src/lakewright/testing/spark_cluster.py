"""A Spark cluster on the loopback address, for tests: a master and workers of the pip package.

with spark_cluster(folder) as cluster:
    builder = SparkSession.builder
    for key, value in cluster.settings().items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()              # its executors are processes of their own
    ...
    spark.stop()                               # before the block ends

Logs and the workers' files are in `folder`.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.request import urlopen

from lakewright.testing.processes import Servers, free_port, spark_home

_MASTER = "org.apache.spark.deploy.master.Master"
_WORKER = "org.apache.spark.deploy.worker.Worker"
_HOST = "127.0.0.1"
_START_SECONDS = 600.0  # only what hangs takes that long


@dataclass(frozen=True, slots=True)
class SparkCluster:
    """A running cluster: one executor on each worker, with `memory` for its Java."""

    master: str
    memory: str
    master_id: int
    worker_ids: tuple[int, ...]

    def settings(self) -> dict[str, str]:
        """Return what a session has to be told to run here; Python is that of this process."""
        return {
            "spark.master": self.master,
            "spark.driver.host": _HOST,
            "spark.driver.bindAddress": _HOST,
            "spark.executor.memory": self.memory,
            "spark.pyspark.python": sys.executable,
            "spark.pyspark.driver.python": sys.executable,
        }


@contextmanager
def spark_cluster(
    folder: str | os.PathLike[str], *, workers: int = 2, cores: int = 1, memory: str = "1g"
) -> Iterator[SparkCluster]:
    """Run a master and workers of some cores each until the block ends.

    The workers, and so the executors, have the environment of this process: its PYTHONPATH too.
    """
    place = Path(folder).resolve()
    place.mkdir(parents=True, exist_ok=True)
    port, page = free_port(), free_port()
    address = f"spark://{_HOST}:{port}"
    program = f"{spark_home()}/bin/spark-class"
    environment = _environment(place)
    with Servers(place) as servers:
        where = ["--host", _HOST, "--port", str(port), "--webui-port", str(page)]
        master = servers.start("master", [program, _MASTER, *where], environment)
        size = ["--host", _HOST, "--webui-port", "0", "--cores", str(cores), "--memory", memory]
        members = [
            servers.start(
                f"worker-{number}",
                [program, _WORKER, *size, "--work-dir", f"{place}/work-{number}", address],
                environment,
            )
            for number in range(workers)
        ]
        servers.wait_until(lambda: _workers_at(page) == workers, seconds=_START_SECONDS)
        yield SparkCluster(address, memory, master, tuple(members))


def _environment(place: Path) -> dict[str, str]:
    return {
        **os.environ,
        "SPARK_HOME": str(spark_home()),
        "SPARK_LOCAL_IP": _HOST,
        "SPARK_DAEMON_MEMORY": "512m",
        # Of the master and the workers, which have little to do; not of executors.
        "SPARK_DAEMON_JAVA_OPTS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        "SPARK_LOCAL_DIRS": f"{place}/local",
        "PYSPARK_PYTHON": sys.executable,
    }


def _workers_at(page: int) -> int:
    """How many workers the master has, by its own page; none while that does not answer."""
    try:
        with urlopen(f"http://{_HOST}:{page}/json/", timeout=5) as answer:
            alive: int = json.load(answer)["aliveworkers"]
            return alive
    except (OSError, ValueError):
        return 0
