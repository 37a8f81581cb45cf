"""Processes of their own, killed by a test, and waiting for what they do."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

HANG_TIMEOUT_S = 600.0
_PAUSE_S = 0.005


def wait_until(condition: Callable[[], object], facts: Callable[[], object] = lambda: "") -> None:
    """Wait until something has happened; `facts` describe the failure if it does not."""
    deadline = time.monotonic() + HANG_TIMEOUT_S
    while not condition():
        assert time.monotonic() < deadline, facts()
        time.sleep(_PAUSE_S)


# Only a program that hangs reaches this limit.
_PATIENCE_S = 900


@contextmanager
def killed_process(program: Path, *arguments: str, errors: Path) -> Iterator[subprocess.Popen[str]]:
    """A program of the tests, killed with all that it has started when the block ends.

    Its stderr is appended to a file.
    """
    with (
        errors.open("a") as log,
        subprocess.Popen(
            [sys.executable, str(program), *arguments],
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])},
            start_new_session=True,
        ) as process,
    ):
        try:
            yield process
        finally:
            # A process group of its own.
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def read_line(process: subprocess.Popen[str]) -> str:
    """The next line that a program prints."""
    assert process.stdout is not None
    return process.stdout.readline().strip()


def wait_while_running(
    condition: Callable[[], bool], process: subprocess.Popen[str], *, errors: Path
) -> None:
    """Wait while a program runs until something has happened."""
    deadline = time.monotonic() + _PATIENCE_S
    while not condition():
        assert process.poll() is None, errors.read_text()[-4000:]
        assert time.monotonic() < deadline, errors.read_text()[-4000:]
        time.sleep(0.002)
