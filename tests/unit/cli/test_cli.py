"""The command line: what it prints, how it ends, and what it does not start."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

import pytest

from lakewright.cli import services
from lakewright.cli.main import exit_code
from lakewright.errors import (
    ConflictError,
    CorruptError,
    InvalidError,
    LakewrightError,
    UnavailableError,
    UnsupportedError,
)
from lakewright.model.instant import Instant
from lakewright.table.snapshot import load_snapshot
from support import event_times
from support.cli import (
    CLI_COMMAND,
    DAYS,
    NO_INLINE_COMPACTION,
    ROOT,
    LocalSpark,
    fill_table,
    invoke,
    invoke_json,
    local_table,
    option_flags,
)
from support.tables import WrittenTable, row

AT_ONCE = "hoodie.compact.inline.max.delta.commits=1"
ONLY_FIRST = (
    "hoodie.compaction.strategy=partition_regex",
    f"hoodie.compaction.partition.path.regex={DAYS[0]}",
)


@pytest.fixture(autouse=True)
def no_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(services, "LazySpark", LocalSpark)


@pytest.fixture
def table() -> WrittenTable:
    return fill_table(WrittenTable(options=NO_INLINE_COMPACTION))


def test_the_timeline_is_listed_oldest_first(table: WrittenTable) -> None:
    answer = invoke_json("timeline", table.storage.root)
    expected = [i.requested_at for i in load_snapshot(table.storage).timeline]
    assert [entry["requested_at"] for entry in answer["instants"]] == expected
    assert {(e["action"], e["state"]) for e in answer["instants"]} == {("deltacommit", "COMPLETED")}


def test_debt_is_reported_with_its_reasons(table: WrittenTable) -> None:
    answer = invoke_json("debt", table.storage.root)
    assert (answer["log_files"], [p["partition"] for p in answer["partitions"]]) == (2, list(DAYS))
    assert {p["reason"] for p in answer["partitions"]} == {"no compaction was planned yet"}


def test_a_plan_is_shown_with_the_reason_for_each_skipped_partition(table: WrittenTable) -> None:
    answer = invoke_json(
        "plan", table.storage.root, "compaction", *option_flags(AT_ONCE, *ONLY_FIRST)
    )
    assert answer["planned"]
    assert [(o["partition"], len(o["logs"])) for o in answer["operations"]] == [(DAYS[0], 1)]
    assert answer["missing"] == [{"partition": DAYS[1], "reason": "filtered by partition_regex"}]
    assert not load_snapshot(table.storage).timeline.pending()


def test_a_plan_by_event_time_shows_its_threshold_and_instant() -> None:
    table = WrittenTable(options=NO_INLINE_COMPACTION).create("MERGE_ON_READ", event_time="ts")
    table.upsert([event_times.event_row("a", 1)])
    table.upsert([event_times.event_row("a", 2)])
    table.clock.sleep(1)
    last = table.upsert([event_times.event_row("a", 9)])
    by_time = [f"{key}={value}" for key, value in event_times.compact_before(4).items()]
    answer = invoke_json("plan", table.storage.root, "compaction", *option_flags(*by_time))
    assert (answer["threshold"], answer["widened"]) == ("20251231040000000", None)
    assert answer["stands_at"] < last.instant


def test_no_plan_is_reported_with_its_reason(table: WrittenTable) -> None:
    answer = invoke_json("plan", table.storage.root, "logcompaction")
    assert not answer["planned"]
    assert "fewer than 5 new log files" in answer["reason"]


def test_the_services_are_reported_with_their_options() -> None:
    named = {service["name"]: service for service in invoke_json("services", "list")["services"]}
    assert {"compaction", "logcompaction", "clustering", "clean", "archive", "ttl"} <= named.keys()
    assert "hoodie.compaction.strategy" in named["compaction"]["options"]
    assert all(service["does"] for service in named.values())


def test_a_run_does_what_is_due(table: WrittenTable) -> None:
    before = table.rows()
    answer = invoke_json("services", "run", table.storage.root, *option_flags(AT_ONCE))
    results = {step["service"]: step["result"] for step in answer["steps"]}
    assert results == {"compaction": "done", "clean": "skipped", "archive": "skipped"}
    assert answer["steps"][0]["commit"]["operation"] == "COMPACT"
    assert table.rows(optimized=True) == table.rows() == before


def test_a_run_executes_what_others_have_scheduled(table: WrittenTable) -> None:
    instant = table.services({"hoodie.compact.inline.max.delta.commits": "1"}).schedule(
        "compaction"
    )
    assert isinstance(instant, Instant)
    answer = invoke_json("services", "run", table.storage.root, "--service", "compaction")
    executed, skipped = answer["steps"]
    assert executed["commit"]["instant"] == instant.requested_at
    assert skipped["result"] == "skipped"


def test_a_copy_on_write_table_runs_no_service_of_log_files() -> None:
    table = WrittenTable().create("COPY_ON_WRITE")
    table.upsert([row("k0")])
    answer = invoke_json("services", "run", table.storage.root)
    assert [step["service"] for step in answer["steps"]] == ["clean", "archive"]


TEXTS: dict[str, tuple[list[str], list[str]]] = {
    "timeline": (["timeline"], ["deltacommit", "COMPLETED"]),
    "debt": (["debt"], ["log files: 2", DAYS[0], "no compaction was planned yet"]),
    "plan": (["plan"], ["filtered by partition_regex", DAYS[1]]),
    "run": (["services", "run"], ["done", "COMPACT", "skipped"]),
}


@pytest.mark.parametrize(("command", "texts"), TEXTS.values(), ids=list(TEXTS))
def test_text_has_the_facts_of_json(
    command: list[str], texts: list[str], table: WrittenTable
) -> None:
    more = ["compaction"] if command == ["plan"] else []
    flags = option_flags(AT_ONCE, *ONLY_FIRST) if command[0] in ("plan", "services") else []
    result = invoke(*command, table.storage.root, *more, *flags)
    assert result.exit_code == 0
    assert [text for text in texts if text not in result.stdout] == []


def test_names_with_brackets_and_colons_are_printed_as_they_are() -> None:
    table = WrittenTable(options=NO_INLINE_COMPACTION).create("MERGE_ON_READ")
    for ts in (1, 2):
        table.upsert([row("k0", ts, day="[bold]:smile:")])
    assert "[bold]:smile:" in invoke("debt", table.storage.root).stdout


@dataclass(frozen=True)
class Bad:
    """A call that fails: with which code, and what stands on stderr."""

    code: int
    message: str
    arguments: Callable[[WrittenTable], list[str]]


BAD = {
    "a table that is not there": Bad(2, "no table", lambda _: ["timeline", "memory://nowhere"]),
    "a service that there is not": Bad(
        2, "known: ['archive'", lambda t: ["plan", t.storage.root, "tidying"]
    ),
    "an option that there is not": Bad(
        2,
        "did_you_mean: hoodie.compaction.strategy",
        lambda t: [
            "plan",
            t.storage.root,
            "compaction",
            *option_flags("hoodie.compaction.strateg=x"),
        ],
    ),
    "an option without a value": Bad(
        2,
        "key=value",
        lambda t: ["debt", t.storage.root, *option_flags("hoodie.compaction.strategy")],
    ),
    "an address of no known kind": Bad(6, "gopher", lambda _: ["debt", "gopher://x/y"]),
    "a pause of no length": Bad(
        2, "above 0", lambda t: ["services", "run", t.storage.root, "--continuous", "--interval=0"]
    ),
    "a module that is not there": Bad(
        2, "no_such_module", lambda _: ["--load", "no_such_module", "services", "list"]
    ),
    "a damaged table": Bad(5, "hoodie.properties", lambda t: _damaged(t)),
    "an argument too few": Bad(2, "SERVICE", lambda t: ["plan", t.storage.root]),
}


def _damaged(table: WrittenTable) -> list[str]:
    table.storage.replace(".hoodie/hoodie.properties", b"hoodie.table.version=nine\n")
    return ["timeline", table.storage.root]


@pytest.mark.parametrize("case", BAD.values(), ids=list(BAD))
def test_a_failure_ends_with_its_code_and_no_traceback(case: Bad, table: WrittenTable) -> None:
    result = invoke(*case.arguments(table))
    assert (result.exit_code, result.stdout) == (case.code, "")
    assert case.message in result.stderr
    assert "Traceback" not in result.stderr


CODES = {
    InvalidError: 2,
    ConflictError: 3,
    UnavailableError: 4,
    CorruptError: 5,
    UnsupportedError: 6,
    LakewrightError: 1,
}


@pytest.mark.parametrize(("kind", "code"), CODES.items(), ids=lambda kind: str(kind))
def test_every_kind_of_error_has_its_code(kind: type[LakewrightError], code: int) -> None:
    assert exit_code(kind("something")) == code


def test_a_failed_service_is_in_the_document_and_decides_the_code(table: WrittenTable) -> None:
    at = table.services({"hoodie.compact.inline.max.delta.commits": "1"}).schedule("compaction")
    assert isinstance(at, Instant)
    table.storage.replace(f".hoodie/timeline/{at.requested_at}.compaction.requested", b"no plan")
    result = invoke("services", "run", table.storage.root, "--json")
    assert result.exit_code == 5
    steps = json.loads(result.stdout)["steps"]
    assert [(s["service"], s["result"]) for s in steps][:2] == [
        ("compaction", "failed"),
        ("clean", "skipped"),
    ]
    assert steps[0]["error"]["kind"] == "CorruptError"


def test_the_script_of_the_package_is_this_one() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    module, _, name = project["scripts"]["lakewright"].partition(":")
    assert callable(getattr(import_module(module), name))


WITHOUT_SPARK: dict[str, Callable[[str], list[str]]] = {
    "debt": lambda path: ["debt", path],
    "timeline": lambda path: ["timeline", path],
    "plan": lambda path: ["plan", path, "compaction", *option_flags(AT_ONCE)],
    "services list": lambda path: ["services", "list"],
    "a clean": lambda path: ["services", "run", path, "--service", "clean"],
    "a compaction that is not due": lambda path: ["services", "run", path],
    "ttl show": lambda path: ["ttl", "show", path],
    "ttl on": lambda path: ["ttl", "on", path],
    "ttl explain": lambda path: ["ttl", "explain", path],
    "ttl run": lambda path: ["ttl", "run", path],
}
_LOOK = """
import json, sys
from lakewright.cli.main import app
for name, arguments in json.loads(sys.argv[1]).items():
    try:
        app(arguments)
    except SystemExit as end:
        print(name, end.code, "pyspark" in sys.modules, sep=": ", file=sys.stderr)
"""


def test_what_needs_no_spark_does_not_even_import_it(tmp_path: Path) -> None:
    path = local_table(tmp_path).storage.root
    calls = {name: arguments(path) for name, arguments in WITHOUT_SPARK.items()}
    command = [sys.executable, "-c", _LOOK, json.dumps(calls)]
    process = subprocess.run(command, capture_output=True, text=True, check=True)
    assert process.stderr.splitlines() == [f"{name}: 0: False" for name in calls]


def test_the_help_comes_without_loading_what_commands_need() -> None:
    command = [sys.executable, "-X", "importtime", *CLI_COMMAND[1:], "--help"]
    process = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "services" in process.stdout
    loaded = {line.rpartition("|")[2].strip() for line in process.stderr.splitlines()}
    assert {"typer", "lakewright.errors"} <= loaded
    assert not loaded & {"pyspark", "pyarrow", "numpy", "pandas", "fastavro", "obstore"}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda n: n.name)
def test_a_signal_ends_the_loop_between_two_steps(number: signal.Signals, tmp_path: Path) -> None:
    path = local_table(tmp_path).storage.root
    run = ("services", "run", path, "--service", "compaction", "--continuous")
    command = [*CLI_COMMAND, *run, "--interval", "0.1", "--json"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True) as loop:
        try:
            assert loop.stdout is not None
            rounds = [json.loads(loop.stdout.readline())["round"] for _ in range(2)]
            os.kill(loop.pid, number)
            rest, errors = loop.communicate()
        finally:
            loop.kill()
    assert rounds == [1, 2]
    assert [json.loads(line)["round"] for line in rest.splitlines()] == list(
        range(3, 3 + len(rest.splitlines()))
    )
    assert (loop.returncode, errors) == (0, "stopping after this step; once more to stop at once\n")
