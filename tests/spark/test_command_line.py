"""The command line starts Spark by itself when a command needs it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from lakewright.storage.local import LocalStorage
from support.cli import invoke_json
from support.golden import GoldenTables
from support.tables import WrittenTable, row

PROGRAM = Path(__file__).with_name("commands_process.py")
INGESTED = (
    "hoodie.table.name=t",
    "hoodie.datasource.write.recordkey.field=id",
    "lakewright.source.files.format=json",
)


def with_logs(folder: Path) -> WrittenTable:
    """A table whose compaction is due."""
    storage = LocalStorage.at(str(folder), {})
    table = WrittenTable(storage=storage, options={"hoodie.compact.inline": "false"})
    table.create("MERGE_ON_READ")
    for ts in range(1, 7):
        table.upsert([row(f"k{n}", ts, f"v{ts}", f"2026-01-0{n + 1}") for n in range(3)])
    return table


def test_commands_start_spark_by_themselves(golden: GoldenTables, tmp_path: Path) -> None:
    """One process for all: each starts a session and stops it."""
    compacted, source = with_logs(tmp_path / "compacted"), tmp_path / "in"
    before = compacted.rows()
    source.mkdir()
    (source / "1").write_text("".join(json.dumps(row(f"k{n}")) + "\n" for n in range(2)))
    os.utime(source / "1", (1_000_000, 1_000_000))
    options = [*INGESTED, f"hoodie.streamer.source.dfs.root={source}"]
    read = ["read", str(golden["mor_avro"])]
    query = ["--transform", "SELECT *, 1 AS one FROM <SRC>"]
    commands = [
        ["services", "run", compacted.storage.root, "--service", "compaction"],
        [*read, "--filter", "id like 'k0000%'"],
        ["ingest", str(tmp_path / "table"), "--source", "files", *query]
        + [f"--option={option}" for option in options],
    ]
    arguments = json.dumps([[*command, "--master", "local[1]"] for command in commands])
    result = subprocess.run(
        [sys.executable, str(PROGRAM), arguments],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(PROGRAM.parents[1])},
        text=True,
        check=True,
    )
    served, by_spark, ingested = json.loads(result.stdout.splitlines()[-1])
    (step,) = served["steps"]
    assert (step["result"], step["commit"]["files"]) == ("done", 3)
    assert compacted.rows(optimized=True) == compacted.rows() == before
    every = sorted(invoke_json(*read)["rows"], key=str)
    assert sorted(by_spark["rows"], key=str) == [
        record for record in every if record["id"].startswith("k0000")
    ]
    assert by_spark["rows"]
    assert (ingested["result"], ingested["rows"], ingested["inserted"]) == ("done", 2, 2)
