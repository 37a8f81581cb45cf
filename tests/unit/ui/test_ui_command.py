"""`lakewright ui` and the services that it runs in processes of their own."""

from __future__ import annotations

import json
import os
import signal
import socket
import stat
import subprocess
import sys
import webbrowser
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import url2pathname

import pytest
import uvicorn
from typer.testing import CliRunner, Result

from lakewright.cli.main import app
from lakewright.clock import SystemClock
from lakewright.errors import ConflictError
from lakewright.storage.local import LocalStorage
from lakewright.ui import jobs as work
from lakewright.ui.jobs import Jobs
from lakewright.ui.server import STATIC
from lakewright.ui.table_view import NotFoundError, TableView
from support.cli import CLI_COMMAND
from support.processes import wait_until
from support.tables import WrittenTable, row


@pytest.fixture
def path(tmp_path: Path) -> str:
    table = WrittenTable(LocalStorage(str(tmp_path / "table"))).create()
    table.upsert([row("a")])
    return str(tmp_path / "table")


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What the command would serve, if it served."""
    configs: list[Any] = []
    monkeypatch.setattr(
        uvicorn.Server, "run", lambda self, sockets: configs.extend([self.config, *sockets])
    )
    return configs


def ui(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["ui", "--port", "0", *arguments])


def test_it_prints_its_address(path: str, served: list[Any]) -> None:
    result = ui(path)
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith("written: http://127.0.0.1:")
    assert "may read these tables: do not share it" in result.stdout
    assert served


@pytest.mark.parametrize("more", [[], ["--allow-writes"]])
def test_the_link_has_a_token_that_no_request_carries(
    path: str, served: list[Any], more: list[str]
) -> None:
    first, second = (ui(path, *more).stdout for _ in range(2))
    assert "/#token=" in first
    assert len(first.partition("#token=")[2].split()[0]) >= 32
    assert first.partition("#token=")[2] != second.partition("#token=")[2]
    assert ("cancel plans: do not share it" in first) is bool(more)


@pytest.fixture
def browser(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int, int, str]]:
    """What a browser would open: its address, the rights on it, and what it holds."""
    opened: list[tuple[str, int, int, str]] = []

    def open_it(address: str) -> bool:
        file = Path(url2pathname(urlsplit(address).path))
        folder, rights = (stat.S_IMODE(target.stat().st_mode) for target in (file.parent, file))
        opened.append((address, folder, rights, file.read_text("utf-8")))
        return True

    monkeypatch.setattr(webbrowser, "open", open_it)
    return opened


def test_the_browser_finds_the_token_in_a_file_that_others_cannot_read(
    path: str, served: list[Any], browser: list[tuple[str, int, int, str]]
) -> None:
    result = ui(path, "--open", "--json")
    url = json.loads(result.stdout)["url"]
    ((address, folder, file, text),) = browser
    assert address.startswith("file://")
    assert url.partition("#token=")[2] not in address
    assert (folder, file) == (0o700, 0o600)
    assert f'content="0; url={url}"' in text
    assert not Path(url2pathname(urlsplit(address).path)).parent.exists()


def test_a_page_that_is_not_opened_leaves_no_file(
    path: str, served: list[Any], browser: list[tuple[str, int, int, str]]
) -> None:
    assert ui(path).exit_code == 0
    assert browser == []


@pytest.mark.parametrize("then", ["", "kill -TERM $PPID"], ids=["served", "not yet served"])
def test_the_file_is_deleted_when_a_signal_ends_the_server(
    path: str, tmp_path: Path, then: str
) -> None:
    """A browser that only stores its arguments, and a server of its own process."""
    browser = tmp_path / "browser"
    keep = 'printf "%s" "$*" > told.part; cp "${1#file://}" page; mv told.part told'
    browser.write_text(f'#!/bin/sh\ncd "{tmp_path}"\n{keep}\n{then}\n')
    browser.chmod(0o755)
    home = tmp_path / "temporary"
    home.mkdir()
    options = {**os.environ, "BROWSER": str(browser), "TMPDIR": str(home)}
    words = [*CLI_COMMAND, "ui", path, "--port", "0", "--json", "--open"]
    with subprocess.Popen(words, env=options, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        token = json.loads(process.stdout.readline())["url"].partition("#token=")[2]
        wait_until((tmp_path / "told").exists)
        assert token not in (tmp_path / "told").read_text("utf-8")
        assert token in (tmp_path / "page").read_text("utf-8")
        if not then:
            process.terminate()
    assert process.returncode == -signal.SIGTERM
    assert list(home.iterdir()) == []


def test_others_than_this_machine_are_warned_of(path: str, served: list[Any]) -> None:
    result = ui(path, "--host", "0.0.0.0")
    assert "warning: bound to 0.0.0.0" in result.stderr
    assert "warning" not in ui(path, "--host", "localhost").stderr


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
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
    path: str, served: list[Any], arguments: list[str], code: int, message: str
) -> None:
    named = [] if arguments in ([], ["/no/such/table"]) else [path]
    result = ui(*named, *arguments)
    assert (result.exit_code, message in result.output) == (code, True), result.output
    assert served == []


def test_a_port_in_use_is_reported(path: str, served: list[Any]) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as other:
        result = ui(path, "--port", str(other.getsockname()[1]))
    assert (result.exit_code, "--port 0" in result.output) == (4, True), result.output


def test_what_the_browser_gets_is_all_there_and_from_here() -> None:
    names = {str(file.relative_to(STATIC)) for file in STATIC.rglob("*") if file.is_file()}
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
    table = TableView.at(path, {})
    first = running.run(0, table, "archive")
    assert (first["job"], first["service"], first["state"]) == (1, "archive", "running")
    with pytest.raises(ConflictError, match="another service runs"):
        running.run(0, table, "clean")
    wait_until(lambda: running.jobs_of(0)[0]["state"] != "running")
    (job,) = running.jobs_of(0)
    assert (job["state"], job["error"]) == ("done", None)
    assert [(s["service"], s["result"]) for s in job["steps"]] == [("archive", "skipped")]
    assert running.jobs_of(1) == []
    assert running.stop(0, 1)["state"] == "done"
    running.close()


def test_a_job_that_fails_reports_the_reason() -> None:
    table = WrittenTable().create()
    running = jobs()
    # Another process does not see what is in the memory of this one.
    running.run(0, TableView.at(table.storage.root, {}), "clean")
    wait_until(lambda: running.jobs_of(0)[0]["state"] != "running")
    (job,) = running.jobs_of(0)
    assert job["state"] == "failed"
    assert "error: " in job["error"]


SECRETS = {"fs.s3a.access.key": "AKIAHIDDEN", "fs.s3a.secret.key": "SUPERSECRET"}


def ended(running: Jobs) -> dict[str, Any]:
    wait_until(lambda: running.jobs_of(0)[0]["state"] != "running")
    running.close()
    return running.jobs_of(0)[0]


def test_a_job_imports_nothing_from_the_folder_of_the_server(
    path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "downloads"
    folder.mkdir()
    for name in ("typer", "pyarrow", "lakewright", "sitecustomize", "json"):
        (folder / f"{name}.py").write_text(
            f"open({str(tmp_path / 'RUN')!r}, 'w')\nraise SystemExit(3)"
        )
    monkeypatch.chdir(folder)
    running = jobs()
    running.run(0, TableView.at(path, {}), "archive")
    job = ended(running)
    assert (job["state"], job["error"]) == ("done", None)
    assert not (tmp_path / "RUN").exists()


def test_options_of_a_job_are_in_no_argument(
    path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Run a program that records how it was called, and then continues."""
    recorded = tmp_path / "seen.json"
    spy = tmp_path / "spy"
    spy.write_text(
        f"#!{sys.executable} -I\nimport json, os, sys\n"
        f"open({str(recorded)!r}, 'w').write(json.dumps([sys.argv, dict(os.environ)]))\n"
        f"os.execv({sys.executable!r}, [{sys.executable!r}, *sys.argv[1:]])\n"
    )
    spy.chmod(0o755)
    monkeypatch.setattr(work, "_COMMAND", (str(spy), *work._COMMAND[1:]))
    running = jobs()
    running.run(0, TableView.at(path, SECRETS), "archive")
    assert ended(running)["state"] == "done"
    text = recorded.read_text("utf-8")
    assert "lakewright.cli.job_process" in text
    assert [value for value in SECRETS.values() if value in text] == []


def test_output_of_a_job_is_shown_without_the_secrets_of_its_options(
    path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = Jobs(SystemClock(), master="local[1]", load=[str(tmp_path / "talks.py")])
    (tmp_path / "talks.py").write_text(
        "import lakewright.errors\n"
        "raise lakewright.errors.InvalidError('no', key='AKIAHIDDEN', reason='of SUPERSECRET')"
    )
    running.run(0, TableView.at(path, SECRETS), "clean")
    job = ended(running)
    assert (job["state"], "reason: of ***" in job["error"]) == ("failed", True)
    assert [value for value in SECRETS.values() if value in json.dumps(job)] == []


def test_bytes_that_are_no_text_do_not_keep_a_job_running(path: str, tmp_path: Path) -> None:
    talks = tmp_path / "talks.py"
    talks.write_text("import sys\nsys.stderr.buffer.write(b'caf\\xe9\\n')\nraise SystemExit(1)")
    running = Jobs(SystemClock(), master="local[1]", load=[str(talks)])
    running.run(0, TableView.at(path, {}), "clean")
    job = ended(running)
    assert (job["state"], job["error"]) == ("failed", "caf\ufffd")


def test_jobs_end_with_the_server(path: str) -> None:
    running = jobs()
    running.run(0, TableView.at(path, {}), "clean")
    running.close()
    wait_until(lambda: running.jobs_of(0)[0]["state"] != "running")


def test_unknown_services_and_jobs_are_not_there(path: str) -> None:
    with pytest.raises(NotFoundError, match="no such service"):
        jobs().run(0, TableView.at(path, {}), "vacuum")
    with pytest.raises(NotFoundError, match="no such job"):
        jobs().stop(0, 3)
