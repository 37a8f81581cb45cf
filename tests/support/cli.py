"""Calls of the command line, tables for it, and the storages that it opens."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from lakewright.cli import services
from lakewright.cli.main import app
from lakewright.engine.local import LocalEngine
from lakewright.storage.factory import STORAGES, StorageKind
from lakewright.storage.local import LocalStorage
from support.tables import WrittenTable, row

ROOT = Path(__file__).resolve().parents[2]
DAYS = ("2026-01-01", "2026-01-02")
NO_INLINE_COMPACTION = {"hoodie.compact.inline": "false"}
CLI_COMMAND = (sys.executable, "-m", "lakewright.cli.main")


class LocalSpark(services.LazySpark):
    """The engine of commands without Spark."""

    def __call__(self) -> LocalEngine:
        return LocalEngine()


def fill_table(table: WrittenTable) -> WrittenTable:
    table.create("MERGE_ON_READ")
    table.upsert([row(f"k{n}", 1, "first", DAYS[n % 2]) for n in range(4)])
    table.upsert([row("k0", 2, "second", DAYS[0]), row("k1", 2, "second", DAYS[1])])
    return table


def local_table(folder: Path) -> WrittenTable:
    storage = LocalStorage.at(str(folder / "table"), {"durable": "false"})
    return fill_table(WrittenTable(storage=storage, options=NO_INLINE_COMPACTION))


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments), catch_exceptions=False)


def option_flags(*options: str) -> list[str]:
    return [part for option in options for part in ("--option", option)]


def invoke_json(*arguments: str) -> Any:
    result = invoke(*arguments, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


# The opposite of the default, so that a test sees whether the option arrives.
DURABLE = not LocalStorage("/").durable
STORAGE_OPTIONS = {"durable": str(DURABLE).lower(), "verify_sidecars": "false"}


class OpenedStorages:
    """Records each local storage that is opened by its address."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.all: list[LocalStorage] = []
        local = STORAGES["file"]

        def opened(uri: str, options: Mapping[str, str]) -> LocalStorage:
            storage = LocalStorage.at(uri, options)
            self.all.append(storage)
            return storage

        monkeypatch.setitem(STORAGES, "file", StorageKind(opened, local.option_names))

    def of(self, table: Path) -> list[tuple[bool, bool]]:
        """The options of the storages opened for a table since the last call."""
        opened = [(s.durable, s.verify_sidecars) for s in self.all if s.folder == str(table)]
        self.all.clear()
        return opened


def all_have_options(opened: list[tuple[bool, bool]]) -> bool:
    """Whether a storage was opened, and each with `STORAGE_OPTIONS`."""
    return bool(opened) and set(opened) == {(DURABLE, False)}


def read_tree(folder: Path) -> dict[str, bytes]:
    """All files below a folder with their bytes."""
    return {
        str(file.relative_to(folder)): file.read_bytes()
        for file in folder.rglob("*")
        if file.is_file()
    }
