"""Credentials are in no plan, option, catalog, footer, page or log."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from secrets_check import shown_in

from lakewright.testing.s3 import moto_server

CHECK = Path(__file__).with_name("secrets_check.py")


def test_credentials_show_nowhere(tmp_path: Path) -> None:
    with moto_server() as server:
        server.create_bucket("lake")
        result = subprocess.run(
            [sys.executable, str(CHECK), server.endpoint, str(tmp_path)],
            capture_output=True,
            text=True,
            env={**os.environ, "PYTHONPATH": str(CHECK.parents[1])},
            cwd=tmp_path,
            timeout=900,
            check=False,
        )
    assert result.returncode == 0, result.stderr[-6000:]
    report = json.loads(result.stdout.splitlines()[-1])
    assert report["shown"] == {}
    assert report["texts"] > 50
    # Spark logs what it does there.
    assert "INFO" in result.stderr
    assert shown_in(result.stdout + result.stderr) == []
