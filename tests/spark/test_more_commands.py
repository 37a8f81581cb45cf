"""More commands that start Spark by themselves; a soak run, as `test_command_line.py` shows it."""

from __future__ import annotations

from pathlib import Path

from test_command_line import run

from lakewright.storage.local import LocalStorage
from support.cli import invoke_json
from support.golden import GoldenTables
from support.tables import WrittenTable, row


def with_logs(folder: Path) -> WrittenTable:
    """A table whose compaction is due."""
    storage = LocalStorage.at(str(folder), {})
    table = WrittenTable(storage=storage, options={"hoodie.compact.inline": "false"})
    table.create("MERGE_ON_READ")
    for ts in range(1, 7):
        table.upsert([row(f"k{n}", ts, f"v{ts}", f"2026-01-0{n + 1}") for n in range(3)])
    return table


def test_services_and_reads_start_spark_by_themselves(golden: GoldenTables, tmp_path: Path) -> None:
    compacted = with_logs(tmp_path / "compacted")
    before = compacted.rows()
    read = ["read", str(golden["mor_avro"])]
    served, by_spark = run(
        ["services", "run", compacted.storage.root, "--service", "compaction"],
        [*read, "--filter", "id like 'k0000%'"],
    )
    (step,) = served["steps"]
    assert (step["result"], step["commit"]["files"]) == ("done", 3)
    assert compacted.rows(optimized=True) == compacted.rows() == before
    every = sorted(invoke_json(*read)["rows"], key=str)
    assert sorted(by_spark["rows"], key=str) == [
        record for record in every if record["id"].startswith("k0000")
    ]
    assert by_spark["rows"]
