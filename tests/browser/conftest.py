"""A real Chromium, tables worth looking at, and servers that show them."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import uvicorn
from playwright.sync_api import Browser, Page, expect, sync_playwright

from lakewright.clock import SystemClock
from lakewright.storage.local import LocalStorage
from lakewright.testing.sample_history import OPTIONS, sample_history
from lakewright.ui.connection_limits import server_config
from lakewright.ui.guards import Guard
from lakewright.ui.jobs import Jobs
from lakewright.ui.server import ui_app
from lakewright.ui.table_view import TableView
from support.golden import GoldenTables

FLAGS = [
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
]
CHROMIUM = os.environ.get("LAKEWRIGHT_CHROMIUM", "/usr/bin/chromium")
# Only what hangs takes so long, however busy the machine is.
PATIENCE_MS = 600_000
TOKEN = "browser-token"


@pytest.fixture(scope="session")
def chromium() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        expect.set_options(timeout=PATIENCE_MS)
        yield browser
        browser.close()


@pytest.fixture
def page(chromium: Browser) -> Iterator[Page]:
    """A page that fails the test if a script fails, or if it sends a request to another host."""
    context = chromium.new_context(viewport={"width": 1400, "height": 950}, timezone_id="UTC")
    page = context.new_page()
    page.set_default_timeout(PATIENCE_MS)
    wrong: list[str] = []
    hosts: set[str] = set()
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("request", lambda request: hosts.add(urlsplit(request.url).hostname or "here"))
    page.on("console", lambda message: wrong.extend(_violations(message.text)))
    yield page
    context.close()
    assert wrong == []
    # A file of this machine, such as the one that opens the page, is no server.
    assert hosts <= {"127.0.0.1", "here"}


def _violations(text: str) -> list[str]:
    return [text] if "Security Policy" in text else []


@pytest.fixture(scope="session")
def lively(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The table of the pictures; tests that change it take a copy."""
    path = tmp_path_factory.mktemp("tables") / "rides"
    sample_history(LocalStorage(str(path)), SystemClock().now_ms())
    return path


@pytest.fixture
def rides(lively: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(lively, tmp_path / "rides"))


@contextmanager
def serving(tables: Sequence[TableView], *, allow_writes: bool = False) -> Iterator[str]:
    """A server in a thread; yields the link to it."""
    jobs = Jobs(SystemClock(), master="local[1]")
    app = ui_app(tables, jobs, Guard(TOKEN, allow_writes=allow_writes))
    server = uvicorn.Server(server_config(app))
    with closing(socket.create_server(("127.0.0.1", 0))) as bound:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [bound]})
        thread.start()
        while not server.started:
            time.sleep(0.01)
        yield f"http://127.0.0.1:{bound.getsockname()[1]}/#token={TOKEN}"
        server.should_exit = True
        thread.join()


@contextmanager
def showing(*paths: Path, allow_writes: bool = False) -> Iterator[str]:
    # With the heartbeats of the table: they last for hours, so that none expires on a slow machine.
    options = {k: v for k, v in OPTIONS.items() if "lock" not in k}
    tables = [TableView.at(str(path), options) for path in paths]
    with serving(tables, allow_writes=allow_writes) as link:
        yield link


@pytest.fixture(scope="session")
def looking(lively: Path) -> Iterator[str]:
    """The lively table, to be looked at only."""
    with showing(lively) as address:
        yield address


@contextmanager
def command(*arguments: str) -> Iterator[dict[str, str]]:
    """`lakewright ui` in a process of its own; yields the JSON that it prints."""
    words = [sys.executable, "-m", "lakewright.cli.main", "ui", "--port", "0", "--json"]
    with subprocess.Popen(
        [*words, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        if process.stdout is None:
            raise AssertionError("its output goes into a pipe")
        try:
            yield json.loads(process.stdout.readline())
        finally:
            process.terminate()


@pytest.fixture
def several(lively: Path, golden: GoldenTables) -> Iterator[str]:
    """Three tables, served by the command."""
    with command(str(lively), str(golden["cow_clustered"]), str(golden["mor_avro"])) as printed:
        yield printed["url"]
