"""Child processes of tests: JSON requests over pipes, start, readiness, stop, and free ports."""

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
_POLL_SECONDS = 0.1
_LOG_TAIL_BYTES = 2000


def send_request(process: subprocess.Popen[str], request: object) -> Any:
    """Send a request as a line of JSON and return the answer; None if the process has ended."""
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
    """Terminate a process, kill it if it does not end in time, and wait until it has ended."""
    process.terminate()
    try:
        process.wait(timeout=_STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


class Servers(ExitStack):
    """Processes that form one server; stopped in reverse order when the block ends.

    The output of each process is in `<name>.log` in `folder`.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._folder = folder
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def start(
        self, name: str, command: Sequence[str], environment: Mapping[str, str] | None = None
    ) -> int:
        """Start a process, by default with the environment of this one; return its id."""
        with (self._folder / f"{name}.log").open("wb") as log:
            process = subprocess.Popen(command, stdout=log, stderr=log, env=environment)
        self.callback(stop, process)
        self._processes[name] = process
        return process.pid

    def wait_until(self, ready: Callable[[], bool], *, seconds: float) -> None:
        """Wait until `ready` returns True; UnavailableError if a process ends or time runs out."""
        deadline = time.monotonic() + seconds
        while not ready():
            ended = [
                name for name, process in self._processes.items() if process.poll() is not None
            ]
            if ended or time.monotonic() > deadline:
                logs = {name: self._log_tail(name) for name in self._processes}
                raise UnavailableError("the servers did not start", ended=ended, said=logs)
            time.sleep(_POLL_SECONDS)

    def _log_tail(self, name: str) -> str:
        log = (self._folder / f"{name}.log").read_bytes()
        return log[-_LOG_TAIL_BYTES:].decode(errors="replace")


def spark_home() -> Path:
    """The folder of the pip package of Spark; found without importing the package."""
    spec = find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise InvalidError("PySpark is not installed")
    return Path(spec.origin).parent


def free_port() -> int:
    """A loopback port on which no process listens now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def wait_for_port(port: int, *, seconds: float) -> None:
    """Wait until a process listens on the port; TimeoutError if none does in time."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.05)
    raise TimeoutError(f"no process listens on port {port}")
