"""The same reads and writes on Spark Connect, and on a standalone cluster.

All else here runs on a classic session in one process.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyspark
import pytest
from golden_tables import GoldenTables

from lakewright.testing.ports import free_port, wait_for_port

HOME = Path(pyspark.__file__).parent
CHECK = Path(__file__).with_name("session_check.py")
TABLES = ("cow_hive_complex", "mor_avro", "mor_parquet")


def run_check(kind: str, folder: Path, *more: str) -> None:
    environment = {**os.environ, "PYTHONPATH": str(CHECK.parents[1]), "SPARK_LOCAL_IP": "127.0.0.1"}
    done = subprocess.run(
        [sys.executable, str(CHECK), kind, str(folder), *more],
        capture_output=True,
        text=True,
        env=environment,
        cwd=folder,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-6000:]
    assert done.stdout.endswith("OK\n")


@pytest.fixture(scope="module")
def folder(golden: GoldenTables) -> Path:
    for name in TABLES:
        assert golden[name].is_dir()
    return golden.folder


def test_on_connect(folder: Path) -> None:
    run_check("connect", folder)


def test_on_a_standalone_cluster_with_two_workers(folder: Path, tmp_path: Path) -> None:
    with standalone_cluster(tmp_path) as master:
        run_check("cluster", folder, master)


@contextmanager
def standalone_cluster(folder: Path) -> Iterator[str]:
    """A master and two workers of one core each, from the pip package, on loopback."""
    port = free_port()
    master = f"spark://127.0.0.1:{port}"
    environment = {**os.environ, "SPARK_LOCAL_IP": "127.0.0.1", "SPARK_HOME": str(HOME)}
    spark_class = str(HOME / "bin" / "spark-class")
    host = ["--host", "127.0.0.1"]
    commands = [
        ["deploy.master.Master", *host, "--port", str(port), "--webui-port", str(free_port())]
    ]
    for number in (1, 2):
        work = str(folder / f"worker-{number}")
        size = ["--cores", "1", "--memory", "1g", "--webui-port", str(free_port())]
        commands.append(["deploy.worker.Worker", *host, *size, "--work-dir", work, master])
    started: list[subprocess.Popen[bytes]] = []
    try:
        for number, (name, *arguments) in enumerate(commands):
            with (folder / f"process-{number}.log").open("wb") as log:
                command = [spark_class, f"org.apache.spark.{name}", *arguments]
                started.append(subprocess.Popen(command, env=environment, stdout=log, stderr=log))
            if number == 0:
                wait_for_port(port, seconds=60)
        yield master
    finally:
        for process in reversed(started):
            process.terminate()
        for process in started:
            process.wait(30)
