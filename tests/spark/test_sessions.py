"""The same reads and writes on Spark Connect.

All else here runs on a classic session in one process; tests/interop has a cluster.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from support import session_check
from support.golden import GoldenTables


def test_on_connect(golden: GoldenTables) -> None:
    for name in session_check.TABLES:
        assert golden[name].is_dir()
    tests = str(Path(session_check.__file__).parents[1])
    result = subprocess.run(
        [sys.executable, session_check.__file__, str(golden.folder)],
        capture_output=True,
        text=True,
        env={**os.environ, "SPARK_LOCAL_IP": "127.0.0.1", "PYTHONPATH": tests},
        cwd=golden.folder,
        check=False,
    )
    assert result.returncode == 0, result.stderr[-6000:]
    assert result.stdout.endswith("OK\n")
