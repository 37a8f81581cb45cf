"""How many connections the page holds, and for how long it waits for a request."""

from __future__ import annotations

import asyncio
import resource
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import Any, cast

import httpx
import pytest
import uvicorn
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.server import ServerState

from lakewright.storage.local import LocalStorage
from lakewright.ui import connection_limits
from lakewright.ui.connection_limits import REQUEST_S, LimitedProtocol, server_config
from support.cli import CLI_COMMAND
from support.tables import WrittenTable, row

HALF = b"GET /api/tables HTTP/1.1\r\nHost: 127.0.0.1\r\n"
WHOLE = HALF + b"\r\n"


class Transport:
    """A connection that only records whether it was closed."""

    def __init__(self) -> None:
        self.aborted = False

    def abort(self) -> None:
        self.aborted = True

    def close(self) -> None:
        self.aborted = True

    def is_closing(self) -> bool:
        return self.aborted

    def get_extra_info(self, name: str) -> None:
        return None


class Timer:
    def __init__(self, seconds: float, call: Callable[[], object]) -> None:
        self.seconds = seconds
        self.call = call
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


class Task:
    """An answer that is being made for as long as a test runs."""

    def add_done_callback(self, call: Callable[[], object]) -> None:
        """Never."""


class Loop:
    """Timers that a test ends, and tasks that never begin."""

    def __init__(self) -> None:
        self.timers: list[Timer] = []

    def call_later(self, seconds: float, call: Callable[[], object]) -> Timer:
        self.timers.append(Timer(seconds, call))
        return self.timers[-1]

    def create_task(self, work: Any) -> Task:
        work.close()
        return Task()

    @property
    def running(self) -> list[Timer]:
        return [timer for timer in self.timers if not timer.cancelled]


async def answer(scope: Scope, receive: Receive, send: Send) -> None:
    await Response("fine")(scope, receive, send)


class Server:
    """The state that connections share, without sockets."""

    def __init__(self, app: ASGIApp = answer) -> None:
        self.loop = Loop()
        self.config = server_config(app)
        self.config.load()
        self.state = ServerState()

    def connect(self, data: bytes = b"") -> tuple[LimitedProtocol, Transport]:
        loop = cast(asyncio.AbstractEventLoop, self.loop)
        made, transport = LimitedProtocol(self.config, self.state, {}, loop), Transport()
        made.connection_made(cast(asyncio.Transport, transport))
        if data and not transport.aborted:
            made.data_received(data)
        return made, transport


@pytest.mark.parametrize("data", [b"", HALF, WHOLE.replace(b"GET", b"POST")[:-2]])
def test_a_request_that_does_not_arrive_is_ended_by_a_timer(data: bytes) -> None:
    server = Server()
    _, transport = server.connect(data)
    (timer,) = server.loop.running
    assert (timer.seconds, transport.aborted) == (REQUEST_S, False)
    timer.call()
    assert transport.aborted


def test_bytes_that_come_one_by_one_do_not_begin_the_time_anew() -> None:
    server = Server()
    made, _ = server.connect()
    (timer,) = server.loop.running
    for number in range(len(HALF)):
        made.data_received(HALF[number : number + 1])
    assert server.loop.running == [timer]


def test_the_body_of_a_request_has_to_arrive_as_well() -> None:
    server = Server()
    made, transport = server.connect(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{")
    (timer,) = server.loop.running
    made.data_received(b"}")
    assert timer.cancelled
    assert not transport.aborted


def test_a_request_that_has_arrived_takes_as_long_as_it_takes() -> None:
    server = Server()
    server.connect(WHOLE)
    assert server.loop.running == []


def test_one_too_many_ends_the_one_that_has_waited_longest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_limits, "max_connections", lambda: 3)
    server = Server()
    busy, first, second = (server.connect(data)[1] for data in (WHOLE, HALF, HALF))
    third = server.connect(WHOLE)[1]
    assert [t.aborted for t in (busy, first, second, third)] == [False, True, False, False]
    assert len(server.state.connections) == 3


def test_where_all_are_being_answered_the_next_is_turned_away(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connection_limits, "max_connections", lambda: 2)
    server = Server()
    busy = [server.connect(WHOLE)[1] for _ in range(2)]
    made, turned_away = server.connect()
    made.connection_lost(None)
    assert turned_away.aborted
    assert [transport.aborted for transport in busy] == [False, False]
    assert len(server.state.connections) == 2


def test_the_limit_leaves_files_for_the_rest_of_the_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for soft, most in {resource.RLIM_INFINITY: 100, 100_000: 100, 120: 40, 1: 1}.items():
        monkeypatch.setattr(resource, "getrlimit", lambda what, soft=soft: (soft, soft))
        assert connection_limits.max_connections() == most


@contextmanager
def half_requests(port: int, count: int) -> Iterator[None]:
    """So many connections that never send the rest."""
    with ExitStack() as stack:
        for _ in range(count):
            half = stack.enter_context(closing(socket.create_connection(("127.0.0.1", port))))
            # The server may have closed it by now, for those that came later.
            with suppress(ConnectionError):
                half.sendall(HALF)
        yield


def test_incomplete_requests_do_not_block_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a timer that would not end within any test."""
    monkeypatch.setattr(connection_limits, "REQUEST_S", 86_400)
    monkeypatch.setattr(connection_limits, "max_connections", lambda: 8)
    server = uvicorn.Server(server_config(answer))
    with closing(socket.create_server(("127.0.0.1", 0))) as bound:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [bound]})
        thread.start()
        port = bound.getsockname()[1]
        with half_requests(port, 30):
            response = httpx.get(f"http://127.0.0.1:{port}/", timeout=300, trust_env=False)
        server.should_exit = True
        thread.join()
    assert response.text == "fine"


def test_the_page_answers_despite_more_incomplete_requests_than_it_may_have_files(
    tmp_path: Path,
) -> None:
    table = WrittenTable(LocalStorage(str(tmp_path / "table"))).create()
    table.upsert([row("a")])
    words = [
        sys.executable,
        "-c",
        _FEW_FILES,
        *CLI_COMMAND[1:],
        "ui",
        table.storage.root,
        "--port",
        "0",
    ]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        url = httpx.URL(process.stdout.readline().split()[1])
        assert url.port is not None
        with half_requests(url.port, 200):
            response = httpx.get(url.copy_with(fragment=None), timeout=300, trust_env=False)
        process.terminate()
    assert (response.status_code, "Lakewright" in response.text) == (200, True)


_FEW_FILES = """
import os, resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (120, 120))
os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
"""
