"""An ingestion that is killed again and again brings every row once."""

from __future__ import annotations

import json
import os
import random
import time
from pathlib import Path

import pytest
from sizes import sized
from victims import doomed, said
from written import WrittenTable

from lakewright.storage.local import LocalStorage

PROGRAM = Path(__file__).with_name("ingest_process.py")
FILES = 24
ROWS = 5
KILLS = sized(1, soak=15)


@pytest.mark.parametrize("services", ["inline", "async"])
def test_every_row_comes_once(tmp_path: Path, services: str) -> None:
    folder, table = tmp_path / "in", tmp_path / "table"
    folder.mkdir()
    chance = random.Random(7)
    keys = [f"k{number:04}" for number in range(FILES * ROWS)]
    for number in range(FILES):
        some = keys[number * ROWS : (number + 1) * ROWS]
        rows = [{"id": key, "day": f"d{number % 3}", "ts": 1, "note": "x"} for key in some]
        file = folder / f"{number:03}.json"
        file.write_text("".join(json.dumps(each) + "\n" for each in rows))
        os.utime(file, (1_000_000 + number // 4, 1_000_000 + number // 4))
    arguments = (str(folder), str(table), services)
    for life in range(KILLS):
        with doomed(PROGRAM, *arguments, errors=tmp_path / "errors.log") as process:
            assert said(process) == "begin"
            # Every other time in the first round, which takes long, else in one of the next.
            rounds = chance.randint(1, 3) if life % 2 else 0
            assert all(said(process) for _ in range(rounds))
            time.sleep(chance.uniform(0, 1.5 if rounds else 8))
    with doomed(PROGRAM, *arguments, errors=tmp_path / "errors.log") as process:
        assert process.stdout is not None
        assert any(line == "idle\n" for line in process.stdout)
    rows = WrittenTable(LocalStorage.at(str(table), {})).rows()
    assert sorted(each["id"] for each in rows) == keys
