"""Options of every command: they arrive at storage, unknown ones are refused, files hold them."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
import typer

from lakewright.cli import ingest as ingest_command
from lakewright.cli import services
from lakewright.cli.main import app
from lakewright.storage.local import LocalStorage
from lakewright.table.snapshot import load_snapshot
from lakewright.ui.table_view import TableView
from support.cli import (
    CLI_COMMAND,
    STORAGE_OPTIONS,
    LocalSpark,
    OpenedStorages,
    all_have_options,
    invoke,
    invoke_json,
    local_table,
    read_tree,
)

pytestmark = pytest.mark.sampled(3)

POLICY = '{"spec": "*", "level": "PARTITION", "units": "DAYS", "value": 3000}'
# How each command is called, after the table; INSTANT is the newest write.
CALLS: dict[str, tuple[str, ...]] = {
    "info": (),
    "timeline": (),
    "files": (),
    "debt": (),
    "freshness": (),
    "read": (),
    "changes": (),
    "compact": (),
    "cluster": (),
    "clean": (),
    "archive": (),
    "plan": ("compaction",),
    "cancel": ("INSTANT",),
    "rollback": ("INSTANT", "--yes"),
    "savepoint": ("INSTANT",),
    "restore": ("INSTANT", "--yes"),
    "doctor": (),
    "sync": ("--metastore-uris", "thrift://127.0.0.1:9"),
    "services run": (),
    "ttl on": (),
    "ttl off": (),
    "ttl settings": ("--trigger-value", "5"),
    "ttl show": (),
    "ttl save": ("--json", POLICY),
    "ttl delete": ("--spec", "*"),
    "ttl empty": (),
    "ttl run": (),
    "ttl explain": (),
    "ttl update": (),
}
# Those that need a new table, Spark or a server, and have tests of their own below.
OTHERS = {"create", "ingest", "ui"}


@pytest.fixture(autouse=True)
def no_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(services, "LazySpark", LocalSpark)


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> OpenedStorages:
    return OpenedStorages(monkeypatch)


def arguments(name: str, folder: Path) -> list[str]:
    instants = [i.requested_at for i in load_snapshot(local_table(folder).storage).timeline]
    rest = [instants[-1] if argument == "INSTANT" else argument for argument in CALLS[name]]
    return [*name.split(), str(folder / "table"), *rest]


def taking(option: str) -> set[str]:
    """The commands that take an option."""
    names = set()

    def look(command: Any, name: str) -> None:
        for subcommand in command.list_commands(None) if hasattr(command, "list_commands") else ():
            look(command.get_command(None, subcommand), f"{name} {subcommand}".strip())
        if any(option in parameter.opts for parameter in getattr(command, "params", ())):
            names.add(name)

    look(typer.main.get_command(app), "")
    return names


def test_every_command_with_options_is_looked_at_here_and_takes_a_file_of_them() -> None:
    assert taking("--option") == {*CALLS, *OTHERS}
    assert taking("--options-file") == taking("--option")


@pytest.mark.parametrize("name", CALLS)
def test_options_of_storage_arrive(name: str, tmp_path: Path, opened: OpenedStorages) -> None:
    call = arguments(name, tmp_path)
    opened.all.clear()
    file = tmp_path / "options.properties"
    file.write_text(
        f"# of storage\nverify_sidecars = {STORAGE_OPTIONS['verify_sidecars']}\ndurable=x\n"
    )
    invoke(*call, "--options-file", str(file), "-o", f"durable={STORAGE_OPTIONS['durable']}")
    assert all_have_options(opened.of(tmp_path / "table"))


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize(
    ("typo", "meant"),
    [
        ("duable", "durable"),
        ("hoodie.clean.comits.retained", "hoodie.clean.commits.retained"),
        ("lakewright.metrics.reportr", "lakewright.metrics.reporter"),
    ],
)
def test_an_unknown_option_is_refused_and_changes_nothing(
    name: str, typo: str, meant: str, tmp_path: Path
) -> None:
    call = arguments(name, tmp_path)
    before = read_tree(tmp_path)
    result = invoke(*call, "-o", f"{typo}=true")
    assert (result.exit_code, read_tree(tmp_path)) == (2, before)
    lines = [line.strip() for line in result.stderr.splitlines()]
    assert lines[-3:] == [
        "error: there is no such option",
        f"option: {typo}",
        f"did_you_mean: {meant}",
    ]


def test_what_hudi_and_others_know_is_accepted_by_every_look(tmp_path: Path) -> None:
    local_table(tmp_path)
    options = (
        "hoodie.clean.commits.retained=3",
        "hoodie.metrics.jmx.port=1",
        "hoodie.streamer.source.dfs.root=/x",
        "lakewright.metrics.reporter=none",
        "fs.s3a.endpoint=http://127.0.0.1:9",
        "dfs.replication=2",
        "access_key_id=k",
        "spark.ui.enabled=false",
        "spark.hadoop.fs.s3a.access.key=k",
    )
    flags = [part for option in options for part in ("-o", option)]
    for name in ("info", "timeline", "files", "read"):
        result = invoke(name, str(tmp_path / "table"), *flags)
        assert result.exit_code == 0, result.output


def test_create_passes_options_on_and_refuses_unknown_ones(
    tmp_path: Path, opened: OpenedStorages
) -> None:
    place = tmp_path / "new"
    flags = [part for key, value in STORAGE_OPTIONS.items() for part in ("-o", f"{key}={value}")]
    result = invoke("create", str(place), "--key", "id", "-o", "hoodie.tabel.cdc.enabled=true")
    assert (result.exit_code, place.exists()) == (2, False)
    assert "did_you_mean: hoodie.table.cdc.enabled" in result.stderr
    opened.all.clear()
    invoke_json(
        "create", str(place), "--key", "id", *flags, "-o", "lakewright.partition.done.mark=x"
    )
    assert all_have_options(opened.of(place))
    config = load_snapshot(LocalStorage(str(place))).config
    assert not config.properties.keys() & STORAGE_OPTIONS.keys()
    assert config.properties["lakewright.partition.done.mark"] == "x"


def test_the_page_opens_its_tables_with_options_of_storage(
    tmp_path: Path, opened: OpenedStorages
) -> None:
    local_table(tmp_path)
    opened.all.clear()
    TableView.at(str(tmp_path / "table"), STORAGE_OPTIONS).summary()
    assert all_have_options(opened.of(tmp_path / "table"))


def test_the_command_of_the_page_refuses_unknown_options_before_it_listens(tmp_path: Path) -> None:
    local_table(tmp_path)
    result = invoke("ui", str(tmp_path / "table"), "--port", "0", "-o", "duable=true")
    assert result.exit_code == 2
    assert "did_you_mean: durable" in result.stderr


def test_ingestion_gets_all_options_but_those_of_the_session() -> None:
    options = {
        **STORAGE_OPTIONS,
        "spark.ui.enabled": "false",
        "spark.hadoop.fs.x": "1",
        "hoodie.table.name": "t",
    }
    assert ingest_command.ingestion_options(options) == {
        **STORAGE_OPTIONS,
        "spark.hadoop.fs.x": "1",
        "hoodie.table.name": "t",
    }


def test_secrets_in_a_file_are_in_no_argument_and_reach_the_process(tmp_path: Path) -> None:
    table = local_table(tmp_path).storage.root
    file = tmp_path / "options.properties"
    file.write_text("! a comment\nhoodie.table.name: \\\n  other\nno.such.option=hush\n")
    command = [*CLI_COMMAND, "info", table, "--options-file", str(file), "--json"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (result.returncode, "option: no.such.option" in result.stderr) == (2, True)
    assert "hush" not in result.stderr
    file.write_text("hoodie.table.name=other\n")
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    assert json.loads(result.stdout)["table"] == table


@pytest.mark.parametrize("wrong", ["missing", "a folder", "no properties"])
def test_a_file_of_options_that_cannot_be_read_is_refused(wrong: str, tmp_path: Path) -> None:
    table = local_table(tmp_path).storage.root
    file = tmp_path / "options.properties"
    if wrong == "a folder":
        file.mkdir()
    elif wrong == "no properties":
        file.write_bytes(b"a=\\u12")
    result = invoke("info", table, "--options-file", str(file))
    assert result.exit_code == 2
    assert f"file: {file}" in result.stderr
