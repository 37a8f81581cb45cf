"""Processes that tests start: talking to them by a line of JSON each way, and stopping them."""

from __future__ import annotations

import json
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from lakewright.errors import InvalidError, UnavailableError

_STOP_SECONDS = 10.0
_ASK_SECONDS = 0.1
_SHOWN = 2000


def ask(process: subprocess.Popen[str], request: object) -> Any:
    """The answer of a process to a request; None if it went away."""
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        process.stdin.write(json.dumps(request) + "\n")
        process.stdin.flush()
        line = process.stdout.readline()
    except BrokenPipeError:
        return None
    return json.loads(line) if line else None


def stop(process: subprocess.Popen[Any]) -> None:
    """Tell a process to end, make it end if it does not, and wait until it has."""
    process.terminate()
    try:
        process.wait(timeout=_STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


class Servers(ExitStack):
    """Processes that are one server together: stopped, the last first, when the block ends.

    What each of them says is in `<name>.log` of a folder.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._folder = folder
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def start(
        self, name: str, command: Sequence[str], environment: Mapping[str, str] | None = None
    ) -> int:
        """Start a process, in this one's environment or another; gives its id."""
        with (self._folder / f"{name}.log").open("wb") as log:
            process = subprocess.Popen(command, stdout=log, stderr=log, env=environment)
        self.callback(stop, process)
        self._processes[name] = process
        return process.pid

    def wait_until(self, ready: Callable[[], bool], *, seconds: float) -> None:
        """Return once they are ready; UnavailableError if one ends, or it takes too long."""
        deadline = time.monotonic() + seconds
        while not ready():
            ended = [
                name for name, process in self._processes.items() if process.poll() is not None
            ]
            if ended or time.monotonic() > deadline:
                said = {name: self._last_words(name) for name in self._processes}
                raise UnavailableError("the servers did not start", ended=ended, said=said)
            time.sleep(_ASK_SECONDS)

    def _last_words(self, name: str) -> str:
        said = (self._folder / f"{name}.log").read_bytes()
        return said[-_SHOWN:].decode(errors="replace")


def spark_home() -> Path:
    """Where the pip package of Spark is; it is not imported."""
    found = find_spec("pyspark")
    if found is None or found.origin is None:
        raise InvalidError("PySpark is not installed")
    return Path(found.origin).parent


# ------------------------------------------------------------------------------------------------
# Loopback ports for servers that tests start themselves.


def free_port() -> int:
    """A port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def wait_for_port(port: int, *, seconds: float) -> None:
    """Return as soon as somebody listens on the port; TimeoutError if nobody does in time."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.05)
    raise TimeoutError(f"nobody listens on port {port}")
