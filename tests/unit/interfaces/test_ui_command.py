"""`lakewright ui` and the services that it runs in processes of their own."""

from __future__ import annotations

import socket
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from typer.testing import CliRunner, Result
from waiting import until
from written import WrittenTable, row

from lakewright.clock import SystemClock
from lakewright.errors import ConflictError
from lakewright.interfaces.cli.app import app
from lakewright.interfaces.ui.app import STATIC
from lakewright.interfaces.ui.served import NotFoundError, ServedTable
from lakewright.interfaces.ui.work import Jobs
from lakewright.storage.local import LocalStorage


@pytest.fixture
def path(tmp_path: Path) -> str:
    table = WrittenTable(LocalStorage(str(tmp_path / "table"))).create()
    table.upsert([row("a")])
    return str(tmp_path / "table")


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What the command would serve, if it served."""
    found: list[Any] = []
    monkeypatch.setattr(
        uvicorn.Server, "run", lambda self, sockets: found.extend([self.config, *sockets])
    )
    return found


def ui(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["ui", "--port", "0", *arguments])


def test_it_tells_where_it_is(path: str, served: list[Any]) -> None:
    result = ui(path)
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith("written: http://127.0.0.1:")
    assert "token" not in result.stdout
    assert served


def test_the_link_for_writing_has_a_token_that_no_request_carries(
    path: str, served: list[Any]
) -> None:
    first, second = (ui(path, "--allow-writes").stdout for _ in range(2))
    assert "/#token=" in first
    assert len(first.partition("#token=")[2].split()[0]) >= 32
    assert first.partition("#token=")[2] != second.partition("#token=")[2]
    assert "keep it to yourself" in first


def test_others_than_this_machine_are_warned_of(path: str, served: list[Any]) -> None:
    result = ui(path, "--host", "0.0.0.0")
    assert "warning: bound to 0.0.0.0" in result.stderr
    assert "warning" not in ui(path, "--host", "localhost").stderr


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["/no/such/table"], 2, "/no/such/table"),
        ([], 2, "Missing argument"),
        (["--option", "hoodie.clean.polcy=x"], 2, "did_you_mean"),
        (["--option", "nonsense"], 2, "key=value"),
        (["--host", "no.such.host.invalid"], 2, "no such address"),
        (["--port", "70000"], 2, "65535"),
    ],
)
def test_bad_input_ends_it_with_a_sentence(
    path: str, served: list[Any], arguments: list[str], code: int, says: str
) -> None:
    named = [] if arguments in ([], ["/no/such/table"]) else [path]
    result = ui(*named, *arguments)
    assert (result.exit_code, says in result.output) == (code, True), result.output
    assert served == []


def test_a_port_that_is_taken_is_told_of(path: str, served: list[Any]) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as other:
        result = ui(path, "--port", str(other.getsockname()[1]))
    assert (result.exit_code, "--port 0" in result.output) == (4, True), result.output


def test_what_the_browser_gets_is_all_there_and_from_here() -> None:
    names = {str(each.relative_to(STATIC)) for each in STATIC.rglob("*") if each.is_file()}
    assert {"index.html", "style.css", "icon.svg", "js/app.js"} <= names
    for name in names:
        text = (STATIC / name).read_text("utf-8")
        text = text.replace("http://www.w3.org/2000/svg", "")
        bad = [word for word in ("http://", "https://", "innerHTML", "eval(") if word in text]
        assert bad == [], name


def jobs() -> Jobs:
    return Jobs(SystemClock(), master="local[1]")


def test_a_job_runs_the_command_line_and_brings_its_result(path: str) -> None:
    running = jobs()
    table = ServedTable.at(path, {})
    first = running.run(0, table, "archive")
    assert (first["job"], first["service"], first["state"]) == (1, "archive", "running")
    with pytest.raises(ConflictError, match="another service runs"):
        running.run(0, table, "clean")
    until(lambda: running.of(0)[0]["state"] != "running")
    (done,) = running.of(0)
    assert (done["state"], done["error"]) == ("done", None)
    assert [(s["service"], s["result"]) for s in done["steps"]] == [("archive", "skipped")]
    assert running.of(1) == []
    assert running.stop(0, 1)["state"] == "done"
    running.close()


def test_a_job_that_fails_says_why() -> None:
    gone = WrittenTable().create()
    running = jobs()
    # Another process does not see what is in the memory of this one.
    running.run(0, ServedTable.at(gone.storage.root, {}), "clean")
    until(lambda: running.of(0)[0]["state"] != "running")
    (done,) = running.of(0)
    assert done["state"] == "failed"
    assert "error: " in done["error"]


def test_jobs_end_with_the_server(path: str) -> None:
    running = jobs()
    running.run(0, ServedTable.at(path, {}), "clean")
    running.close()
    until(lambda: running.of(0)[0]["state"] != "running")


def test_unknown_services_and_jobs_are_not_there(path: str) -> None:
    with pytest.raises(NotFoundError, match="no such service"):
        jobs().run(0, ServedTable.at(path, {}), "vacuum")
    with pytest.raises(NotFoundError, match="no such job"):
        jobs().stop(0, 3)
