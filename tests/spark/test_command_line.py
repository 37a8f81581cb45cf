"""The command line starts Spark by itself when a command needs it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from support.tables import row

PROGRAM = Path(__file__).with_name("commands_process.py")
INGESTED = (
    "hoodie.table.name=t",
    "hoodie.datasource.write.recordkey.field=id",
    "lakewright.source.files.format=json",
)


def run(*commands: list[str]) -> list[Any]:
    """What commands print, in one process: each starts a session and stops it."""
    arguments = json.dumps([[*command, "--master", "local[1]"] for command in commands])
    result = subprocess.run(
        [sys.executable, str(PROGRAM), arguments],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(PROGRAM.parents[1])},
        text=True,
        check=True,
    )
    printed: list[Any] = json.loads(result.stdout.splitlines()[-1])
    return printed


def test_ingestion_starts_spark_by_itself(tmp_path: Path) -> None:
    source = tmp_path / "in"
    source.mkdir()
    (source / "1").write_text("".join(json.dumps(row(f"k{n}")) + "\n" for n in range(2)))
    os.utime(source / "1", (1_000_000, 1_000_000))
    options = [*INGESTED, f"hoodie.streamer.source.dfs.root={source}"]
    query = ["--transform", "SELECT *, 1 AS one FROM <SRC>"]
    command = ["ingest", str(tmp_path / "table"), "--source", "files", *query]
    (ingested,) = run([*command, *(f"--option={option}" for option in options)])
    assert (ingested["result"], ingested["rows"], ingested["inserted"]) == ("done", 2, 2)
