"""Which jobs the page shows."""

from __future__ import annotations

import subprocess
from types import SimpleNamespace
from typing import cast

import pytest

from lakewright.testing.clock import ManualClock
from lakewright.ui.jobs import Job, Jobs
from lakewright.ui.table_view import TableView

TABLE = cast(TableView, SimpleNamespace(options={}, path="/t"))


def started(number: int, running: set[int], monkeypatch: pytest.MonkeyPatch) -> Jobs:
    """A server that has started jobs on tables 1, 2, ...; those not in `running` have finished."""

    def no_wait(self: Jobs, job: Job, arguments: str) -> None:
        return

    monkeypatch.setattr(subprocess, "Popen", lambda *_, **__: None)
    monkeypatch.setattr(Jobs, "_wait", no_wait)
    jobs = Jobs(ManualClock(), master="local[1]")
    for table in range(1, number + 1):
        jobs.run(table, TABLE, "clean")
        if table not in running:
            jobs._jobs[-1].state = "done"
    return jobs


def test_a_running_job_stays_however_many_come_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = started(60, {1, 30}, monkeypatch)
    assert [job["state"] for number in (1, 30) for job in jobs.jobs_of(number)] == ["running"] * 2
    assert jobs.stop(1, 1)["job"] == 1


def test_of_finished_jobs_the_last_ones_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = started(60, set(), monkeypatch)
    shown = [number for number in range(1, 61) if jobs.jobs_of(number)]
    assert shown == list(range(40, 61))
