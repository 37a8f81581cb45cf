"""An ingestion that is killed again and again brings every row once."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path

import pytest
from ingest_process import MODES, ingest
from pyspark.sql import SparkSession

import lakewright as lw
from lakewright.storage.local import LocalStorage
from support.processes import killed_process, read_line, wait_while_running
from support.soak import sized
from support.tables import WrittenTable

PROGRAM = Path(__file__).with_name("ingest_process.py")
FILES = 6
ROWS = 5
KILLS = sized(1, soak=15)


def arrive(folder: Path, life: int) -> list[str]:
    """Some new files, and the keys of their rows; two of them are of one second."""
    all_keys = []
    for number in range(life * FILES, (life + 1) * FILES):
        keys = [f"k{number:04}-{n}" for n in range(ROWS)]
        rows = [{"id": key, "day": f"d{number % 3}", "ts": 1, "note": "x"} for key in keys]
        file = folder / f"{number:04}.json"
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))
        os.utime(file, (1_000_000 + number // 2, 1_000_000 + number // 2))
        all_keys += keys
    return all_keys


def traces(tables: Path) -> int:
    """How many files the timelines of the tables have."""
    return len(list(tables.glob("*/.hoodie/timeline/[0-9]*")))


def go_on_until_idle(spark: SparkSession, source: Path, table: Path, services: str) -> None:
    rounds: list[lw.IngestResult] = []

    def idle() -> bool:
        last = rounds[-1]
        return last.error is None and last.commit is None and not last.waiting

    ingest(spark, source, table, services, report=rounds.append, stop=idle)


@pytest.mark.slow
def test_every_row_comes_once(spark: SparkSession, tmp_path: Path) -> None:
    source, tables, errors = (tmp_path / name for name in ("in", "tables", "errors.log"))
    source.mkdir()
    chance, keys = random.Random(7), []
    for life in range(KILLS):
        keys += arrive(source, life)
        moment = traces(tables) + chance.randint(1, 16)
        with killed_process(PROGRAM, str(source), str(tables), errors=errors) as process:
            assert read_line(process) == "READY", errors.read_text()[-4000:]
            wait_while_running(
                lambda moment=moment: traces(tables) >= moment, process, errors=errors
            )
        # A lock file outlives its writer for an hour unless an operator deletes it.
        (tables / "async" / ".hoodie" / "lock").unlink(missing_ok=True)
    for mode in MODES:
        go_on_until_idle(spark, source, tables / mode, mode)
        rows = WrittenTable(LocalStorage(str(tables / mode))).rows()
        assert sorted(row["id"] for row in rows) == keys
