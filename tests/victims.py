"""Processes with a Java of their own that a test kills, as when a machine goes down."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

# Only a program that hangs is waited for that long.
_PATIENCE_S = 900


@contextmanager
def doomed(program: Path, *arguments: str, errors: Path) -> Iterator[subprocess.Popen[str]]:
    """A program of the tests, killed with all that it has started when the block ends.

    What it says as errors is added to a file.
    """
    with (
        errors.open("a") as log,
        subprocess.Popen(
            [sys.executable, str(program), *arguments],
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parent)},
            start_new_session=True,
        ) as process,
    ):
        try:
            yield process
        finally:
            # Its own group, which nobody else is in.
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def said(process: subprocess.Popen[str]) -> str:
    """The next line that a program prints."""
    assert process.stdout is not None
    return process.stdout.readline().strip()


def until(happened: Callable[[], bool], process: subprocess.Popen[str], *, errors: Path) -> None:
    """Wait while a program runs until something has happened."""
    deadline = time.monotonic() + _PATIENCE_S
    while not happened():
        assert process.poll() is None, errors.read_text()[-4000:]
        assert time.monotonic() < deadline, errors.read_text()[-4000:]
        time.sleep(0.002)
