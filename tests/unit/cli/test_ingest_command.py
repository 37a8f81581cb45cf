"""`lakewright ingest`: what it prints, how it ends, and what it asks of an ingestion."""

from __future__ import annotations

import io
import json
import os
import signal
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner, Result

from lakewright.cli import ingest
from lakewright.cli.ingest import IngestRequest, RoundPrinter, round_text
from lakewright.cli.main import app
from lakewright.errors import ConflictError, CorruptError, UnavailableError
from lakewright.ingestion.checkpoints import Checkpoint
from lakewright.ingestion.ingester import IngestResult
from lakewright.ingestion.loop import Ingestion
from lakewright.model.plans import Skip
from lakewright.services.maintenance_loop import ServiceOutcome
from lakewright.storage.memory import MemoryStorage
from lakewright.testing.clock import ManualClock
from lakewright.write.writer import Commit
from support.ingestion import CountingSource, first_keys, ingester, stored_keys


@dataclass
class IngestHarness:
    """An ingestion in memory that the command line starts, and the requests it received."""

    storage: MemoryStorage = field(default_factory=MemoryStorage.fresh)
    source: CountingSource = field(default_factory=CountingSource)
    requests: list[IngestRequest] = field(default_factory=list)
    sessions: list[tuple[str, dict[str, str]]] = field(default_factory=list)
    ended: int = 0

    def start_session(self, master: str, configs: dict[str, str]) -> Any:
        self.sessions.append((master, configs))
        return SimpleNamespace(stop=self.end)

    def end(self) -> None:
        self.ended += 1

    def prepared(self, request: IngestRequest, spark: object) -> Ingestion:
        self.requests.append(request)
        made = ingester(self.storage, self.source, ManualClock(), override=request.checkpoint)
        return Ingestion(made)

    def call(self, *arguments: str) -> Result:
        whole = ["ingest", self.storage.root, "--source", "counting", *arguments]
        return CliRunner().invoke(app, whole, catch_exceptions=False)


@pytest.fixture
def harness(monkeypatch: pytest.MonkeyPatch) -> IngestHarness:
    made = IngestHarness()
    monkeypatch.setattr(ingest, "start_session", made.start_session)
    monkeypatch.setattr(ingest, "create_ingestion", made.prepared)
    return made


def lines(result: Result) -> list[dict[str, Any]]:
    assert result.exit_code == 0, result.output
    return [json.loads(line) for line in result.stdout.splitlines()]


def test_a_round_is_a_line_of_json(harness: IngestHarness) -> None:
    (line,) = lines(harness.call("--json"))
    expected = {
        "table": harness.storage.root,
        "round": 1,
        "source": "counting",
        "result": "done",
        "rows": 4,
        "inserted": 4,
        "updated": 0,
        "deleted": 0,
        "bytes": 40,
        "lag_ms": 7,
        "objects_waiting": 6,
        "checkpoint_before": None,
        "checkpoint_after": "4",
        "troubles": [],
        "services": [],
    }
    assert {key: line[key] for key in expected} == expected
    assert line["commit"]["operation"] == "INSERT"
    assert line["at"].endswith("+00:00")
    assert line["took_ms"] >= 0
    assert harness.ended == 1
    (line,) = lines(harness.call("--json"))
    assert (line["checkpoint_before"], line["checkpoint_after"]) == ("4", "8")


def test_a_round_without_new_rows_is_reported(harness: IngestHarness) -> None:
    harness.source.total = 0
    (line,) = lines(harness.call("--json"))
    assert (line["result"], line["rows"]) == ("skipped", 0)


def test_people_read_a_line(harness: IngestHarness) -> None:
    result = harness.call()
    assert result.exit_code == 0
    (line,) = result.stdout.splitlines()
    assert line.startswith("round 1: 4 rows (4 new); commit 2026")
    assert line.endswith("40 bytes; 0.0 s behind; 6 waiting")


def test_a_signal_ends_it_after_the_round(harness: IngestHarness) -> None:
    def interrupt() -> None:
        if len(harness.source.asked) == 2:
            os.kill(os.getpid(), signal.SIGINT)

    harness.source.on_read = interrupt
    rounds = lines(harness.call("--continuous", "--min-interval", "1", "--json"))
    assert [line["checkpoint_after"] for line in rounds] == ["4", "8"]
    assert stored_keys(harness.storage) == first_keys(8)
    assert harness.ended == 1


ERRORS: dict[str, tuple[Exception, int]] = {
    "a conflict": (ConflictError("lost"), 3),
    "storage that does not answer": (UnavailableError("away"), 4),
    "damage": (CorruptError("torn"), 5),
}


def failing(error: Exception) -> Callable[[], None]:
    def fail() -> None:
        raise error

    return fail


@pytest.mark.parametrize(("error", "code"), ERRORS.values(), ids=list(ERRORS))
def test_an_error_has_an_exit_code(harness: IngestHarness, error: Exception, code: int) -> None:
    harness.source.on_read = failing(error)
    result = harness.call()
    assert result.exit_code == code
    assert str(error) in result.stderr
    assert harness.ended == 1


def test_a_continuous_one_ends_with_what_will_not_pass(harness: IngestHarness) -> None:
    moods = [UnavailableError("away"), CorruptError("torn")]

    def fail() -> None:
        raise moods.pop(0)

    harness.source.on_read = fail
    result = harness.call("--continuous", "--json")
    assert result.exit_code == 5
    rounds = [json.loads(line) for line in result.stdout.splitlines()]
    assert [(round_["result"], round_["error"]["kind"]) for round_ in rounds] == [
        ("failed", "UnavailableError"),
        ("failed", "CorruptError"),
    ]


def test_all_arguments_arrive(harness: IngestHarness) -> None:
    harness.call(
        "--transform", "SELECT * FROM <SRC>", "--operation", "insert", "--services", "off",
        "--checkpoint", "8", "-o", "hoodie.table.name=t", "-o", "spark.x=y", "--master", "local[1]",
    )  # fmt: skip
    options = {"hoodie.table.name": "t", "spark.x": "y"}
    root = harness.storage.root
    request = IngestRequest(root, "counting", options, "SELECT * FROM <SRC>", "insert", "off", "8")
    assert harness.requests == [request]
    assert harness.sessions == [("local[1]", {"spark.x": "y"})]
    assert harness.source.asked == ["8"]


def test_options_are_shared_out() -> None:
    spark = SimpleNamespace(conf=SimpleNamespace(getAll={}))
    options = {
        "hoodie.streamer.source.dfs.root": "/some/folder",
        "hoodie.clean.automatic": "false",
        "spark.x": "y",
        "spark.hadoop.fs.s3a.endpoint": "there",
    }
    made = ingest.create_ingestion(IngestRequest("/some/table", "files", options), spark)
    assert made.ingester.source.name == "files"
    assert made.ingester.writer.options == {
        "hoodie.clean.automatic": "false",
        "hoodie.datasource.write.operation": "upsert",
    }


def test_a_terminal_shows_idle_rounds_in_one_line() -> None:
    shown = io.StringIO()
    console = Console(file=shown, force_terminal=True, width=100, highlight=False)
    with RoundPrinter("t", as_json=False, console=console) as report:
        report(IngestResult(1, "s", Commit("20260101000000000", "", "commit", "INSERT"), rows=7))
        for number in (2, 3, 4):
            report(IngestResult(number, "s", Skip("[x]")))
    lines = shown.getvalue().split("\n")
    assert sum("round 1: 7 rows; commit 20260101000000000" in line for line in lines) == 1
    # What remains when the line that changes is erased.
    assert lines[-2].endswith("round 4: nothing, [x]")
    assert not any(line.startswith("round 2") for line in lines)


def test_a_file_of_lines_is_not_filled_by_idle_rounds(capsys: pytest.CaptureFixture[str]) -> None:
    shown = io.StringIO()
    skip = IngestResult(2, "s", Skip("the source has nothing new"))
    with RoundPrinter("t", as_json=False, console=Console(file=shown, width=100)) as report:
        for result in (skip, skip, IngestResult(3, "s", UnavailableError("away")), skip):
            report(result)
        steps = (
            ServiceOutcome("clean", CorruptError("torn")),
            ServiceOutcome("archive", Skip("not due")),
        )
        report(IngestResult(4, "s", Skip("x"), troubles=("the queue is away",), services=steps))
    assert shown.getvalue().splitlines() == [
        "round 2: nothing, the source has nothing new",
        "round 3: failed, away",
        "round 2: nothing, the source has nothing new",
        "round 4: nothing, x",
    ]
    assert capsys.readouterr().err == "warning: the queue is away\nwarning: clean: torn\n"


def test_unknown_metrics_are_not_reported() -> None:
    commit = Commit("20260101000000000", "", "commit", "UPSERT", inserted=1, updated=2, deleted=3)
    result = IngestResult(5, "s", commit, after=Checkpoint("x"), rows=9, took_ms=1260)
    assert round_text(result) == (
        "round 5: 9 rows (1 new, 2 updated, 3 deleted); commit 20260101000000000; 1.3 s"
    )
