"""The command line as tests call it, and tables for it."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from typer.testing import CliRunner, Result
from written import WrittenTable, row

from lakewright.cli import services
from lakewright.cli.main import app
from lakewright.engine.local import LocalEngine
from lakewright.storage.local import LocalStorage

ROOT = Path(__file__).resolve().parents[1]
DAYS = ("2026-01-01", "2026-01-02")
BY_HAND = {"hoodie.compact.inline": "false"}
APP = (sys.executable, "-m", "lakewright.cli.main")


class LocalSpark(services.LazySpark):
    """Work without Spark."""

    def __call__(self) -> LocalEngine:
        return LocalEngine()


def filled(table: WrittenTable) -> WrittenTable:
    table.create("MERGE_ON_READ")
    table.upsert([row(f"k{n}", 1, "first", DAYS[n % 2]) for n in range(4)])
    table.upsert([row("k0", 2, "second", DAYS[0]), row("k1", 2, "second", DAYS[1])])
    return table


def local_table(folder: Path) -> WrittenTable:
    storage = LocalStorage.at(str(folder / "table"), {"durable": "false"})
    return filled(WrittenTable(storage=storage, options=BY_HAND))


def call(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments), catch_exceptions=False)


def options(*told: str) -> list[str]:
    return [part for each in told for part in ("--option", each)]


def document(*arguments: str) -> Any:
    result = call(*arguments, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)
