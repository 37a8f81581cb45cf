"""Every command of the command line: what it does, and what it refuses without changing a byte."""

from __future__ import annotations

import csv
import io
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import typer

from lakewright.cli import main, rows, services
from lakewright.cli.common import EXIT_CODES, EXIT_CODES_TEXT, UNWELL
from lakewright.cli.main import app
from lakewright.scan.planner import plan_snapshot
from lakewright.storage.factory import storage_for
from lakewright.storage.local import LocalStorage
from lakewright.table.snapshot import load_snapshot
from support.cli import ROOT, LocalSpark, invoke, invoke_json, local_table, option_flags
from support.golden import GoldenTables
from support.tables import WrittenTable

AT_ONCE = "hoodie.compact.inline.max.delta.commits=1"
NOWHERE = "20200101000000000"


@pytest.fixture(autouse=True)
def no_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(services, "LazySpark", LocalSpark)


@pytest.fixture
def table(tmp_path: Path) -> WrittenTable:
    return local_table(tmp_path)


def root(table: WrittenTable) -> str:
    return table.storage.root


def leaves(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    if hasattr(command, "list_commands"):
        for name in command.list_commands(None):
            yield from leaves(command.get_command(None, name), (*path, name))
    else:
        yield path, command


COMMANDS = dict(leaves(typer.main.get_command(app)))


def test_all_commands_are_there() -> None:
    assert {
        "create", "info", "timeline", "files", "read", "changes", "ingest", "compact", "cluster",
        "clean", "archive", "rollback", "savepoint", "restore", "plan", "cancel", "debt",
        "freshness", "doctor",
    } <= {path[0] for path in COMMANDS if len(path) == 1}  # fmt: skip
    assert ("services", "run") in COMMANDS


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_help_has_an_example_that_parses(path: tuple[str, ...]) -> None:
    command = COMMANDS[path]
    shown = invoke(*path, "--help")
    _usage, _, rest = shown.stdout.partition("\n")
    assert f"lakewright {' '.join(path)}" in " ".join(rest.split())
    flags = {flag for parameter in command.params for flag in getattr(parameter, "opts", ())}
    assert "--as-json" in flags or "--json" in flags
    assert shown.exit_code == 0


def test_the_help_has_the_first_line_of_each_command() -> None:
    group = typer.main.get_command(app)
    texts = {name: group.get_command(None, name).get_short_help_str(100) for name in main.COMMANDS}  # type: ignore[attr-defined]
    assert texts == {name: text for name, (_, text) in main.COMMANDS.items()}


def test_the_page_shows_every_command() -> None:
    page = (ROOT / "docs" / "cli.md").read_text("utf-8")
    missing = [
        path for path in COMMANDS if path[0] != "ttl" and f"lakewright {path[0]}" not in page
    ]
    assert missing == []
    assert "lakewright ttl" in page


def test_the_page_and_the_help_know_all_exit_codes() -> None:
    page = (ROOT / "docs" / "cli.md").read_text("utf-8")
    for code in (0, 1, *EXIT_CODES.values(), UNWELL):
        assert f"\n| {code} |" in page
        assert f"\n  {code} " in EXIT_CODES_TEXT


def test_a_created_table_is_reported(tmp_path: Path) -> None:
    place = str(tmp_path / "trips")
    created = invoke_json(
        "create", place, "--key", "id", "--partition-by", "day", "--ordering", "ts",
        "--type", "mor", "--schema", "id string not null, day date, ts bigint, fare decimal(9,2)",
    )  # fmt: skip
    assert (created["name"], created["type"], created["record_key"]) == (
        "trips",
        "MERGE_ON_READ",
        "id",
    )
    assert [(column["column"], column["type"]) for column in created["columns"]] == [
        ("id", "string"),
        ("day", "date32[day]"),
        ("ts", "int64"),
        ("fare", "decimal128(9, 2)"),
    ]
    again = invoke("create", place, "--key", "id")
    assert again.exit_code in (2, 3)
    assert "error:" in again.stderr


def test_a_compaction_is_scheduled_and_executed_by_two_calls(table: WrittenTable) -> None:
    before = table.rows()
    planned = invoke_json("compact", root(table), "--schedule", *option_flags(AT_ONCE))
    assert planned["result"] == "scheduled"
    refused = invoke("cluster", root(table), "--execute", planned["instant"])
    assert (refused.exit_code, "another service" in refused.stderr) == (2, True)
    executed = invoke_json("compact", root(table), "--execute", planned["instant"])
    assert (executed["result"], executed["commit"]["instant"]) == ("done", planned["instant"])
    assert table.rows(optimized=True) == table.rows() == before


def test_a_service_without_plan_reports_it(table: WrittenTable) -> None:
    answer = invoke_json("archive", root(table), "--schedule")
    assert (answer["result"], "no plan" in answer["detail"]) == ("skipped", True)


@pytest.mark.parametrize("name", ["compact", "cluster", "clean", "archive"])
def test_services_run_by_their_command(name: str, table: WrittenTable) -> None:
    before = table.rows()
    assert invoke_json(name, root(table))["result"] in ("done", "skipped")
    assert table.rows() == before


def test_a_write_is_rolled_back_after_a_question(table: WrittenTable) -> None:
    first, last = load_snapshot(table.storage).timeline
    refused = invoke("rollback", root(table), last.requested_at)  # no answer to the question
    assert refused.exit_code == 1
    assert len(load_snapshot(table.storage).timeline.completed_writes) == 2
    answer = invoke_json("rollback", root(table), last.requested_at, "--yes")
    assert (answer["taken_back"], answer["action"]) == (last.requested_at, "rollback")
    assert load_snapshot(table.storage).timeline.completed_writes == (first,)


def test_a_write_with_an_empty_file_is_rolled_back_by_force(table: WrittenTable) -> None:
    first, last = load_snapshot(table.storage).timeline
    before = {row["note"] for row in table.rows()}
    table.storage.replace(f".hoodie/timeline/{last.file_name}", b"")
    command = f"lakewright rollback TABLE {last.requested_at} --force"
    assert command in invoke("doctor", root(table)).stdout
    refused = invoke("rollback", root(table), last.requested_at, "--yes")
    assert (refused.exit_code, "force the rollback" in refused.stderr) == (5, True)
    answer = invoke_json("rollback", root(table), last.requested_at, "--force", "--yes")
    assert (answer["taken_back"], answer["action"]) == (last.requested_at, "rollback")
    assert load_snapshot(table.storage).timeline.completed_writes == (first,)
    assert {row["note"] for row in table.rows()} < before
    assert invoke("doctor", root(table)).exit_code == 0


def test_a_table_goes_back_to_a_savepoint(table: WrittenTable) -> None:
    first, last = load_snapshot(table.storage).timeline
    answer = invoke_json("savepoint", root(table), first.requested_at, "--comment", "before")
    assert answer["saved"] == first.requested_at
    assert invoke_json("info", root(table))["savepoints"] == first.requested_at
    answer = invoke_json("restore", root(table), first.requested_at, "--yes")
    assert answer["action"] == "restore"
    assert {row["note"] for row in table.rows()} == {"first"}
    assert invoke_json("savepoint", root(table), first.requested_at, "--delete")["given_up"]
    assert invoke_json("info", root(table))["savepoints"] is None
    assert last.requested_at not in load_snapshot(table.storage).timeline.by_time


def test_rows_are_the_same_in_every_format(table: WrittenTable, tmp_path: Path) -> None:
    expected = sorted(table.rows(), key=str)
    as_json = invoke_json("read", root(table))["rows"]
    lines = invoke("read", root(table), "-f", "jsonl").stdout.splitlines()
    out = tmp_path / "rows.parquet"
    assert invoke("read", root(table), "-f", "parquet", "--out", str(out)).exit_code == 0
    parquet = pq.read_table(out).to_pylist()
    text = list(csv.DictReader(io.StringIO(invoke("read", root(table), "-f", "csv").stdout)))
    assert sorted(as_json, key=str) == expected
    assert sorted(map(json.loads, lines), key=str) == expected
    assert sorted(parquet, key=str) == expected
    from_csv = sorted(({**row, "ts": int(row["ts"])} for row in text), key=str)
    assert from_csv == expected


def test_a_file_that_is_there_is_not_replaced(table: WrittenTable, tmp_path: Path) -> None:
    out = tmp_path / "rows.csv"
    out.write_text("mine")
    result = invoke("read", root(table), "-f", "csv", "--out", str(out))
    assert (result.exit_code, out.read_text()) == (2, "mine")
    assert list(tmp_path.glob("*.part")) == []


def test_a_query_that_is_refused_leaves_no_file(table: WrittenTable, tmp_path: Path) -> None:
    out = tmp_path / "rows.csv"
    arguments = ("read", root(table), "-f", "csv", "--out", str(out), "--columns", "nope")
    assert invoke(*arguments).exit_code == 2
    assert not out.exists()


def test_changes_go_on_from_the_checkpoint(table: WrittenTable) -> None:
    first = invoke_json("changes", root(table), "--limit", "1")
    assert {row["note"] for row in first["rows"]} == {"first"}
    second = invoke_json("changes", root(table), "--since", first["checkpoint"])
    assert {row["note"] for row in second["rows"]} == {"second"}
    last = invoke_json("changes", root(table), "--since", second["checkpoint"])
    assert (last["rows"], last["checkpoint"]) == ([], second["checkpoint"])


def test_a_table_shows_the_first_rows_and_a_note_on_the_rest(
    table: WrittenTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rows, "_SHOWN_ROWS", 3)
    result = invoke("read", root(table))
    assert len(result.stdout.splitlines()) == 4
    assert "the first 3 rows; --limit shows more" in result.stderr


def test_control_characters_of_rows_do_not_reach_the_terminal(tmp_path: Path) -> None:
    storage = LocalStorage.at(str(tmp_path / "t"), {})
    made = WrittenTable(storage=storage).create("COPY_ON_WRITE")
    made.upsert([{"id": "k", "day": "d", "ts": 1, "note": "\x1b[31mred\n"}])
    assert "\x1b" not in invoke("read", root(made)).stdout


def test_the_doctor_repairs_after_a_question(table: WrittenTable) -> None:
    table.storage.delete("2026-01-01/.hoodie_partition_metadata")
    result = invoke("doctor", root(table), "--json")
    assert result.exit_code == 10
    assert [finding["kind"] for finding in json.loads(result.stdout)["findings"]] == [
        "partition metadata"
    ]
    assert invoke("doctor", root(table), "--repair").exit_code == 1  # no answer to the question
    assert not table.storage.exists("2026-01-01/.hoodie_partition_metadata")
    answer = invoke_json("doctor", root(table), "--repair", "--yes")
    assert answer["healthy"]
    assert [repair["target"] for repair in answer["repaired"]] == ["2026-01-01"]


BAD: dict[str, tuple[list[str], int, str]] = {
    "an unknown command": (["compactify"], 2, "No such command"),
    "an unknown option": (["info", "TABLE", "--sizes"], 2, "No such option"),
    "no table at all": (["info", "NOWHERE"], 2, "no table"),
    "no table to read": (["read", "NOWHERE"], 2, "no table"),
    "no table to repair": (["doctor", "NOWHERE", "--repair", "--yes"], 2, "no table"),
    "force without a repair": (["doctor", "TABLE", "--force"], 2, "--repair as well"),
    "no table to roll back": (["rollback", "NOWHERE", NOWHERE, "--yes"], 2, "no table"),
    "an instant that is not there": (["rollback", "TABLE", NOWHERE, "-y"], 2, "no such instant"),
    "an instant that is no time": (["rollback", "TABLE", "../../etc", "-y"], 2, "no such instant"),
    "a savepoint of nothing": (["savepoint", "TABLE", NOWHERE], 2, "no such write"),
    "a savepoint to give up that is none": (
        ["savepoint", "TABLE", NOWHERE, "--delete"], 2, "no savepoint"),
    "a restore to no savepoint": (["restore", "TABLE", NOWHERE, "-y"], 2, "no savepoint"),
    "a plan that is not there": (["compact", "TABLE", "--execute", NOWHERE], 2, "no plan"),
    "both halves of a service": (
        ["compact", "TABLE", "--schedule", "--execute", NOWHERE], 2, "one of the two"),
    "cancelling nothing": (["cancel", "TABLE", NOWHERE], 2, "error:"),
    "a column that is not there": (["read", "TABLE", "--columns", "idd"], 2, "idd"),
    "a filter that is none": (["read", "TABLE", "--filter", "drop table x"], 2, "not a condition"),
    "a filter with more": (["read", "TABLE", "--filter", "ts=1; select 2"], 2, "not a condition"),
    "a time that is none": (["read", "TABLE", "--as-of", "yesterday"], 2, "not a point in time"),
    "a range that is none": (["changes", "TABLE", "--since", "soon"], 2, "completion time"),
    "a format that is none": (["read", "TABLE", "-f", "xml"], 2, "no such format"),
    "parquet on a terminal": (["read", "TABLE", "-f", "parquet"], 2, "--out"),
    "a folder to write to that is not there": (
        ["read", "TABLE", "-f", "csv", "--out", "/nowhere/at/all.csv"], 4, "cannot be written"),
    "a limit below zero": (["read", "TABLE", "--limit", "-1"], 2, "--limit"),
    "a partition that is not there": (
        ["files", "TABLE", "--partition", "2030-01-01"], 2, "no such partition"),
    "a partition outside": (["files", "TABLE", "--partition", "../other"], 2, "path"),
    "a type that is none": (["create", "NEW", "--key", "id", "--type", "heap"], 2, "table type"),
    "columns that are none": (["create", "NEW", "--schema", "id"], 2, "name and a type"),
    "columns that are a query": (
        ["create", "NEW", "--schema", "id int) as select 1 --"], 2, "list of columns"),
    "a type of column that is none": (
        ["create", "NEW", "--schema", "id interval"], 2, "not known"),
    "an option that is none": (["clean", "TABLE", "-o", "hoodie.clean.comits.retained=1"], 2,
        "did_you_mean"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_refused_and_changes_nothing(
    name: str, table: WrittenTable, tmp_path: Path
) -> None:
    arguments, code, message = BAD[name]
    places = {
        "TABLE": root(table), "NOWHERE": str(tmp_path / "nowhere"), "NEW": str(tmp_path / "new"),
    }  # fmt: skip
    before = _files(tmp_path)
    result = invoke(*(places.get(argument, argument) for argument in arguments))
    assert result.exit_code == code, result.output
    assert result.stdout == ""
    assert message in result.stderr
    assert "Traceback" not in result.stderr
    assert _files(tmp_path) == before


def _files(folder: Path) -> dict[str, bytes]:
    paths = (path for path in folder.rglob("*") if path.is_file())
    return {str(path): path.read_bytes() for path in paths}


LIGHT = {
    "info": ["info", "--size"],
    "timeline": ["timeline"],
    "files": ["files"],
    "debt": ["debt"],
    "freshness": ["freshness"],
    "read": ["read"],
    "changes": ["changes", "--cdc"],
    "doctor": ["doctor"],
    "plan": ["plan", "TABLE", "compaction"],
    "clean": ["clean"],
}
# Each command in a process of its own, which starts with what tables need of other projects.
_LOADED = """
import json, os, sys
import fastavro, numpy, obstore, pyarrow.parquet, rich, typer
from lakewright.cli.main import app
for name, arguments in json.loads(sys.argv[1]).items():
    sys.stdout.flush()
    if os.fork() == 0:
        code = 1
        try:
            sys.stdout = open(os.devnull, "w")
            app(arguments)
        except SystemExit as end:
            code = end.code
        finally:
            print(json.dumps([name, code, sorted(sys.modules)]), file=sys.__stdout__, flush=True)
            os._exit(0)
    os.wait()
"""


def _light(name: str, path: str) -> list[str]:
    """A command on a table, which comes first if it has no place of its own."""
    command, *rest = [path if argument == "TABLE" else argument for argument in LIGHT[name]]
    return [command, *rest] if path in rest else [command, path, *rest]


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> dict[str, set[str]]:
    """The modules that each of the light commands has imported when it ends."""
    path = root(local_table(tmp_path_factory.mktemp("loaded")))
    calls = {name: _light(name, path) for name in LIGHT} | {"bare info": ["info", path]}
    command = [sys.executable, "-c", _LOADED, json.dumps(calls)]
    process = subprocess.run(command, capture_output=True, text=True, check=True)
    reports = [json.loads(line) for line in process.stdout.splitlines()]
    assert {name: code for name, code, _ in reports} == dict.fromkeys(calls, 0), process.stderr
    return {name: set(modules) for name, _, modules in reports}


@pytest.mark.parametrize("name", LIGHT)
def test_what_needs_no_spark_does_not_import_it(name: str, loaded: dict[str, set[str]]) -> None:
    """What is imported is most of what a command on a table takes."""
    modules = loaded[name]
    assert "lakewright.table.snapshot" in modules
    assert not modules & {"pyspark", "py4j", "pydantic", "starlette", "boto3"}
    assert name == "plan" or "sqlglot" not in modules
    # PyArrow imports it with the first rows that it makes of Python's values.
    assert name in ("read", "changes") or "pandas" not in modules


def test_info_imports_neither_services_nor_writers(loaded: dict[str, set[str]]) -> None:
    modules = loaded["bare info"]
    heavy = ("lakewright.services", "lakewright.write")
    assert [module for module in modules if module.startswith(heavy)] == []


def test_what_is_beyond_this_process_goes_to_spark(
    table: WrittenTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = rows.Reading(table.storage, _plan(table), ("id",))
    assert plan.fits_in_process()
    monkeypatch.setattr(rows, "MAX_LOCAL_BYTES", 1)
    assert not plan.fits_in_process()
    assert rows.Reading(table.storage, _plan(table), ("id",), limit=5).fits_in_process()


def _plan(table: WrittenTable) -> Any:
    return plan_snapshot(load_snapshot(table.storage))


@pytest.mark.parametrize("command", ["rollback", "savepoint", "restore"])
def test_a_refused_call_leaves_a_metadata_table_alone(
    command: str, golden: GoldenTables, tmp_path: Path
) -> None:
    place = tmp_path / "table"
    shutil.copytree(golden["cow_mdt"], place)
    before = _files(place)
    yes = [] if command == "savepoint" else ["--yes"]
    assert invoke(command, str(place), NOWHERE, *yes).exit_code == 2
    first = load_snapshot(storage_for(place)).timeline.completed_writes[0]
    if command == "rollback":  # later writes stand on it
        assert invoke(command, str(place), first.requested_at, *yes).exit_code == 2
    assert _files(place) == before


def test_the_version_is_reported() -> None:
    result = invoke("--version")
    assert (result.exit_code, result.stdout) == (0, f"lakewright {version('lakewright')}\n")
