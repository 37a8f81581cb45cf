"""The command line starts Spark by itself when there are rows to rewrite."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from written import WrittenTable, row

from lakewright.storage.local import LocalStorage


def test_a_compaction_that_is_due_is_done_on_a_session_of_its_own(tmp_path: Path) -> None:
    storage = LocalStorage.at(str(tmp_path / "table"), {})
    table = WrittenTable(storage=storage, options={"hoodie.compact.inline": "false"})
    table.create("MERGE_ON_READ")
    for ts in range(1, 7):
        table.upsert([row(f"k{n}", ts, f"v{ts}", f"2026-01-0{n + 1}") for n in range(3)])
    before = table.rows()
    module = ["-m", "lakewright.interfaces.cli.app"]
    run = ["services", "run", storage.root, "--service", "compaction"]
    told = [sys.executable, *module, *run, "--master", "local[1]", "--json"]
    done = subprocess.run(told, stdout=subprocess.PIPE, text=True, timeout=300, check=True)
    (step,) = json.loads(done.stdout)["steps"]
    assert (step["result"], step["commit"]["files"]) == ("done", 3)
    assert table.rows(optimized=True) == table.rows() == before
