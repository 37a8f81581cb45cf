"""A Spark cluster on the loopback address, for tests: a master and workers of the pip package.

with spark_cluster(folder) as cluster:
    builder = SparkSession.builder
    for key, value in cluster.settings().items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()              # its executors are separate processes
    ...
    spark.stop()                               # before the block ends

Logs and the files of the workers are in `folder`.
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
_START_SECONDS = 600.0  # only a server that hangs takes that long


@dataclass(frozen=True, slots=True)
class SparkCluster:
    """A running cluster: one executor on each worker, with `memory` for its JVM."""

    master: str
    memory: str
    master_id: int
    worker_ids: tuple[int, ...]

    def settings(self) -> dict[str, str]:
        """Return the session settings to use the cluster, with the Python of this process."""
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
    """Run a master and `workers` workers with `cores` cores each until the block ends.

    The workers, and so the executors, inherit the environment of this process with its PYTHONPATH.
    """
    root = Path(folder).resolve()
    root.mkdir(parents=True, exist_ok=True)
    port, ui_port = free_port(), free_port()
    address = f"spark://{_HOST}:{port}"
    program = f"{spark_home()}/bin/spark-class"
    environment = _environment(root)
    with Servers(root) as servers:
        listen = ["--host", _HOST, "--port", str(port), "--webui-port", str(ui_port)]
        master = servers.start("master", [program, _MASTER, *listen], environment)
        size = ["--host", _HOST, "--webui-port", "0", "--cores", str(cores), "--memory", memory]
        worker_ids = [
            servers.start(
                f"worker-{number}",
                [program, _WORKER, *size, "--work-dir", f"{root}/work-{number}", address],
                environment,
            )
            for number in range(workers)
        ]
        servers.wait_until(lambda: _live_workers(ui_port) == workers, seconds=_START_SECONDS)
        yield SparkCluster(address, memory, master, tuple(worker_ids))


def _environment(root: Path) -> dict[str, str]:
    return {
        **os.environ,
        "SPARK_HOME": str(spark_home()),
        "SPARK_LOCAL_IP": _HOST,
        "SPARK_DAEMON_MEMORY": "512m",
        # For the master and the workers, which have little to do; not for the executors.
        "SPARK_DAEMON_JAVA_OPTS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        "SPARK_LOCAL_DIRS": f"{root}/local",
        "PYSPARK_PYTHON": sys.executable,
    }


def _live_workers(ui_port: int) -> int:
    """The number of registered workers that the master reports; 0 while it does not answer."""
    try:
        with urlopen(f"http://{_HOST}:{ui_port}/json/", timeout=5) as response:
            live: int = json.load(response)["aliveworkers"]
            return live
    except (OSError, ValueError):
        return 0
