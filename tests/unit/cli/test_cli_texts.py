"""What the commands print, letter for letter; `UPDATE_GOLDEN=1` writes the texts anew."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from lakewright.cli.main import app
from support.golden import GoldenTables

TEXTS = Path(__file__).parent / "golden_cli"
UPDATE = os.environ.get("UPDATE_GOLDEN") == "1"
AT = "20261115212225273"

# By the name of the text: a table of real Hudi, and the arguments of the command line.
CASES: dict[str, tuple[str, list[str]]] = {
    "info": ("mor_avro", ["info", "TABLE"]),
    "info_size_json": ("cow_savepoint", ["info", "TABLE", "--size", "--json"]),
    "timeline": ("mor_pending_compaction", ["timeline", "TABLE"]),
    "timeline_archived": ("cow_archived", ["timeline", "TABLE", "--archived", "--limit", "4"]),
    "timeline_rolled_back_json": ("cow_rolled_back", ["timeline", "TABLE", "--json"]),
    "files": ("mor_compacted", ["files", "TABLE", "--partition", "2026-01-01"]),
    "files_all_json": (
        "mor_compacted",
        ["files", "TABLE", "--partition", "2026-01-01", "--all", "--json"],
    ),
    "debt": ("mor_avro", ["debt", "TABLE"]),
    "freshness": ("mor_event_time_stats", ["freshness", "TABLE", "--holding"]),
    "plan_compaction": ("mor_avro", ["plan", "TABLE", "compaction"]),
    "plan_clean": ("cow_basic", ["plan", "TABLE", "clean"]),
    "read_table": ("mor_avro", ["read", "TABLE", "--limit", "3", "--columns", "id,ts,amount,at"]),
    "read_csv": (
        "mor_avro",
        ["read", "TABLE", "-f", "csv", "--filter", "id in ('k00003', 'k00009') and ts > 0"],
    ),
    "read_json": (
        "cow_hive_complex",
        ["read", "TABLE", "--json", "--limit", "2", "--columns", "id,country,tags,info"],
    ),
    "read_jsonl_as_of": (
        "mor_avro",
        ["read", "TABLE", "-f", "jsonl", "--as-of", "20261115212222085", "--filter", "id='k00003'"],
    ),
    "changes": ("mor_avro", ["changes", "TABLE", "--since", AT, "--columns", "id,ts"]),
    "changes_json": (
        "mor_avro",
        ["changes", "TABLE", "--since", "20261115212225177", "--columns", "id,ts", "--json"],
    ),
    "changes_cdc": ("cow_cdc", ["changes", "TABLE", "--cdc", "--limit", "1", "-f", "jsonl"]),
    "compact_nothing": ("mor_compacted", ["compact", "TABLE"]),
    "archive_nothing": ("cow_basic", ["archive", "TABLE", "--json"]),
    "doctor": ("mor_avro", ["doctor", "TABLE"]),
    "doctor_json": ("cow_mdt", ["doctor", "TABLE", "--json"]),
    "doctor_found": ("mor_parquet", ["doctor", "TABLE"]),
    "doctor_found_json": ("mor_parquet", ["doctor", "TABLE", "--json"]),
    "doctor_repair": ("mor_parquet", ["doctor", "TABLE", "--repair", "--yes"]),
    "ttl_show": ("cow_basic", ["ttl", "show", "TABLE"]),
    "help": ("cow_basic", ["--help"]),
    "help_read": ("cow_basic", ["read", "--help"]),
    "help_doctor": ("cow_basic", ["doctor", "--help"]),
    "no_such_instant": ("cow_basic", ["rollback", "TABLE", "20200101000000000", "--yes"]),
    "no_such_column": ("cow_basic", ["read", "TABLE", "--filter", "amont > 3"]),
    "no_such_command": ("cow_basic", ["compactify", "TABLE"]),
}


def _damage(place: Path) -> None:
    for file in (place / "2026-01-01").glob("*hoodie_partition_metadata*"):
        file.unlink()
    min((place / "2026-01-02").glob("*.parquet")).unlink()


DAMAGES: dict[str, Callable[[Path], None]] = {
    "doctor_found": _damage,
    "doctor_found_json": _damage,
    "doctor_repair": _damage,
}


@pytest.mark.parametrize("name", CASES)
def test_it_prints(name: str, golden: GoldenTables, tmp_path: Path) -> None:
    table, arguments = CASES[name]
    # A copy at a place of its own: some commands may change it.
    place = tmp_path / table
    shutil.copytree(golden[table], place)
    if name in DAMAGES:
        DAMAGES[name](place)
    call = [str(place) if argument == "TABLE" else argument for argument in arguments]
    result = CliRunner(env={"COLUMNS": "100"}).invoke(app, call, catch_exceptions=False)
    parts = [f"$ lakewright {' '.join(arguments)}\n", result.stdout]
    parts += [f"--- stderr\n{result.stderr}"] * bool(result.stderr)
    parts += [f"--- exit code {result.exit_code}\n"] * bool(result.exit_code)
    text = "".join(parts).replace(f"file://{place}", "TABLE").replace(str(place), "TABLE")
    text = "".join(f"{line.rstrip()}\n" for line in text.splitlines())
    path = TEXTS / f"{name}.txt"
    if UPDATE:
        path.write_text(text, "utf-8")
    assert text == path.read_text("utf-8")


def test_every_text_is_of_a_case() -> None:
    assert {path.stem for path in TEXTS.glob("*.txt")} == set(CASES)
