"""The same reads and writes on Spark Connect.

All else here runs on a classic session in one process; tests/interop has a cluster.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from lakewright.testing.processes import free_port
from support import session_check
from support.golden import GoldenTables
from support.spark import next_session


def test_on_connect(golden: GoldenTables) -> None:
    for name in session_check.TABLES:
        assert golden[name].is_dir()
    tests = str(Path(session_check.__file__).parents[1])
    port = free_port()
    server = {
        "spark.plugins": "org.apache.spark.sql.connect.SparkConnectPlugin",
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": str(port),
        "spark.sql.warehouse.dir": str(golden.folder / "warehouse-connect"),
    }
    with next_session(server):
        result = subprocess.run(
            [sys.executable, session_check.__file__, f"sc://127.0.0.1:{port}", str(golden.folder)],
            capture_output=True,
            text=True,
            env={**os.environ, "PYTHONPATH": tests},
            cwd=golden.folder,
            check=False,
        )
    assert result.returncode == 0, result.stderr[-6000:]
    assert result.stdout.endswith("OK\n")
