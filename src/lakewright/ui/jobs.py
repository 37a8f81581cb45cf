"""Services that somebody runs from the page, each in a process of its own.

It is the command line that runs there: the same checks and the same results. The page stays live
meanwhile, and Spark, if there is work for it, comes and goes with the process.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from lakewright.clock import Clock
from lakewright.errors import ConflictError
from lakewright.storage.redaction import without_secrets
from lakewright.ui.table_view import NotFoundError, TableView, known_service

Document = dict[str, Any]

# Neither it nor Spark's Python imports from the folder that the server was started in.
_COMMAND = (sys.executable, "-P", "-m", "lakewright.cli.job_process")
_SAFE_PATH = {"PYTHONSAFEPATH": "1"}
_MOST_KEPT = 20
_PATIENCE_S = 10.0
_MOST_TOLD = 2000


@dataclass
class Job:
    """A service that runs, or has run."""

    number: int
    table: int
    service: str
    began_ms: int
    state: str = "running"
    ended_ms: int | None = None
    steps: list[Document] = field(default_factory=list)
    error: str | None = None
    options: Mapping[str, str] = field(default_factory=dict, repr=False)
    process: subprocess.Popen[str] | None = field(default=None, repr=False)

    def document(self) -> Document:
        """What the page shows of it."""
        return {
            "job": self.number,
            "table": self.table,
            "service": self.service,
            "state": self.state,
            "began_ms": self.began_ms,
            "ended_ms": self.ended_ms,
            "steps": self.steps,
            "error": self.error,
        }


class Jobs:
    """The jobs of a server: one at a time for each table."""

    def __init__(self, clock: Clock, *, master: str, load: Sequence[str] = ()) -> None:
        self._clock = clock
        self._master = master
        self._load = tuple(load)
        self._jobs: list[Job] = []
        self._count = 0
        self._lock = threading.Lock()

    def run(self, number: int, table: TableView, service: str) -> Document:
        """Begin to run a service; ConflictError while another one runs on the table."""
        name = known_service(service)
        with self._lock:
            busy = [job for job in self._jobs if job.table == number and job.state == "running"]
            if busy:
                raise ConflictError(
                    "another service runs on this table: wait until it is done",
                    service=busy[0].service,
                )
            self._count += 1
            job = Job(self._count, number, name, self._clock.now_ms(), options=table.options)
            job.process = subprocess.Popen(
                _COMMAND,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env={**os.environ, **_SAFE_PATH},
                encoding="utf-8",
                # A JVM may print what is no UTF-8.
                errors="replace",
            )
            self._jobs = [*self._jobs, job][-_MOST_KEPT:]
        words = json.dumps(self._words(table, name))
        threading.Thread(target=self._wait, args=(job, words), daemon=True).start()
        return job.document()

    def of(self, number: int) -> list[Document]:
        """The jobs of a table, the newest first."""
        return [job.document() for job in reversed(self._jobs) if job.table == number]

    def stop(self, table: int, number: int) -> Document:
        """Ask a job to stop after the step that it is at."""
        for job in self._jobs:
            if job.number == number and job.table == table:
                if job.process is not None and job.state == "running":
                    job.process.send_signal(signal.SIGTERM)
                return job.document()
        raise NotFoundError("there is no such job on this table", job=number)

    def close(self) -> None:
        """Ask all to stop, and end those that do not; what they leave is repaired as ever."""
        running = [j.process for j in self._jobs if j.process is not None and j.state == "running"]
        for process in running:
            process.send_signal(signal.SIGTERM)
        for process in running:
            try:
                process.wait(_PATIENCE_S)
            except subprocess.TimeoutExpired:
                process.kill()

    def _words(self, table: TableView, service: str) -> list[str]:
        loads = [text for name in self._load for text in ("--load", name)]
        options = [
            text for key, value in table.options.items() for text in ("--option", f"{key}={value}")
        ]
        last = ["--master", self._master, "--json", "--", table.path]
        return [*loads, "services", "run", "--service", service, *options, *last]

    def _wait(self, job: Job, words: str) -> None:
        if job.process is None:
            raise AssertionError("a job is waited for once it runs")
        said, errors = (
            without_secrets(text, job.options) for text in job.process.communicate(words)
        )
        with suppress(ValueError):
            job.steps = json.loads(said)["steps"]
        code = job.process.returncode
        job.error = errors.strip()[-_MOST_TOLD:] or None if code else None
        job.ended_ms = self._clock.now_ms()
        job.state = "done" if code == 0 else "failed"
