"""Table services started from the page, each in a child process.

The child process runs the command line, with the same checks and the same results. The page stays
responsive while it runs, and a Spark session, if one is needed, ends with the process.
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
from lakewright.ui.table_view import NotFoundError, TableView, require_service

Document = dict[str, Any]

# Neither the child process nor Spark's Python workers import modules from the working directory.
_COMMAND = (sys.executable, "-P", "-m", "lakewright.cli.job_process")
_SAFE_PATH = {"PYTHONSAFEPATH": "1"}
_MAX_FINISHED_JOBS = 20
_STOP_S = 10.0
_MAX_ERROR_TEXT = 2000


@dataclass
class Job:
    """A table service that is running or has finished."""

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
        """The job as shown on the page."""
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
        """Start a service; ConflictError if one started from the page is running on the table."""
        name = require_service(service)
        with self._lock:
            running = [job for job in self._jobs if job.table == number and job.state == "running"]
            if running:
                raise ConflictError(
                    "another service runs on this table: wait until it is done",
                    service=running[0].service,
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
                # A JVM may print bytes that are not UTF-8.
                errors="replace",
            )
            self._jobs = _retained([*self._jobs, job])
        arguments = json.dumps(self._arguments(table, name))
        threading.Thread(target=self._wait, args=(job, arguments), daemon=True).start()
        return job.document()

    def jobs_of(self, number: int) -> list[Document]:
        """The jobs of a table, newest first."""
        return [job.document() for job in reversed(self._jobs) if job.table == number]

    def stop(self, table: int, number: int) -> Document:
        """Ask a job to stop after its current step."""
        for job in self._jobs:
            if job.number == number and job.table == table:
                if job.process is not None and job.state == "running":
                    job.process.send_signal(signal.SIGTERM)
                return job.document()
        raise NotFoundError("there is no such job on this table", job=number)

    def close(self) -> None:
        """Ask all jobs to stop, and kill those that do not stop in time.

        Like after any crash, the next writer rolls back the failed writes of a killed job.
        """
        running = [j.process for j in self._jobs if j.process is not None and j.state == "running"]
        for process in running:
            process.send_signal(signal.SIGTERM)
        for process in running:
            try:
                process.wait(_STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()

    def _arguments(self, table: TableView, service: str) -> list[str]:
        loads = [text for name in self._load for text in ("--load", name)]
        options = [
            text for key, value in table.options.items() for text in ("--option", f"{key}={value}")
        ]
        last = ["--master", self._master, "--json", "--", table.path]
        return [*loads, "services", "run", "--service", service, *options, *last]

    def _wait(self, job: Job, arguments: str) -> None:
        """Pass the arguments to the process, wait for it to end, and record its result."""
        if job.process is None:
            raise AssertionError("the process of a job must be started before waiting for it")
        output, errors = (
            without_secrets(text, job.options) for text in job.process.communicate(arguments)
        )
        with suppress(ValueError):
            job.steps = json.loads(output)["steps"]
        code = job.process.returncode
        job.error = errors.strip()[-_MAX_ERROR_TEXT:] or None if code else None
        job.ended_ms = self._clock.now_ms()
        job.state = "done" if code == 0 else "failed"


def _retained(jobs: Sequence[Job]) -> list[Job]:
    """Return the running jobs, which can be stopped, and the last of the finished ones."""
    finished = [job.number for job in jobs if job.state != "running"][-_MAX_FINISHED_JOBS:]
    return [job for job in jobs if job.state == "running" or job.number in finished]
