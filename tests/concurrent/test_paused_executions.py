"""Processes that execute a plan and stop (SIGSTOP) for longer than heartbeat and lock are valid.

While one is stopped, another process executes the same plan. Whatever the storage call, what that
process committed stays, and readers see each row once; a third execution changes nothing.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import pytest
from crew import Crew, Fate, Process, assert_tidy, let_age

from lakewright.clock import SystemClock
from lakewright.errors import LakewrightError
from lakewright.model.instant import State
from lakewright.storage.base import Storage
from lakewright.storage.factory import storage_for
from lakewright.storage.local import LocalStorage
from lakewright.table.failed_writes import delete_leftovers, find_leftovers
from lakewright.table.options import HeartbeatSettings
from lakewright.table.snapshot import list_timeline, load_snapshot
from lakewright.testing.s3 import S3Server
from support.plan_schedules import DAY, SERVICE_OPTIONS, write_and_schedule
from support.soak import SOAK
from support.tables import NO_SERVICES, WrittenTable, row

pytestmark = pytest.mark.sampled(3)

OPTIONS = {
    **NO_SERVICES,
    "hoodie.write.concurrency.mode": "OPTIMISTIC_CONCURRENCY_CONTROL",
    "hoodie.clean.failed.writes.policy": "LAZY",
    "hoodie.time.generator.max_expected_clock_skew_ms": "1",
    "hoodie.write.lock.provider": "storage",
    "hoodie.write.lock.wait_time_ms": "600000",
    "hoodie.write.lock.wait_time_ms_between_retry": "20",
}
# The calls around which a process that goes on could take the commit of another for its own.
MOMENTS = [
    Fate("SIGSTOP", pattern=r"create \.hoodie/timeline/\d+\.\w+\.inflight", after=True),
    Fate("SIGSTOP", pattern=r"(open_output|create) 2026"),
    Fate("SIGSTOP", pattern=r"create \.hoodie/timeline/\d+_\d+\.\w+", after=True),
]
PLACES = ("disk", "s3")
PLANS = [*product(SERVICE_OPTIONS, (False, True))]
PLACES_AND_PLANS = (
    [(place, *plan) for place in PLACES for plan in PLANS]
    if SOAK
    else [("disk", "compaction", False), ("s3", "clustering", False)]
)


@dataclass(frozen=True)
class Place:
    """Where tables are, and the storage options of a process that opens one."""

    new_storage: Callable[[], Storage]
    client: Mapping[str, str]


@pytest.fixture
def place(request: pytest.FixtureRequest, kind: str, tmp_path: Path) -> Place:
    if kind == "disk":
        return Place(lambda: LocalStorage(f"{tmp_path}/{secrets.token_hex(4)}"), {})
    server: S3Server = request.getfixturevalue("moto")
    options = server.options()
    return Place(lambda: storage_for(f"s3://lake/{secrets.token_hex(4)}", options), options)


@dataclass(frozen=True)
class PlannedTable:
    """A table with a scheduled plan."""

    table: WrittenTable
    plan: str

    @property
    def storage(self) -> Storage:
        return self.table.storage


def planned_table(place: Place, service: str, *, cancellable: bool) -> PlannedTable:
    table = WrittenTable(place.new_storage(), SystemClock(), OPTIONS)
    plan = write_and_schedule(table, service, cancellable=cancellable)
    return PlannedTable(table, plan.requested_at)


def completed(storage: Storage) -> set[tuple[str, str]]:
    timeline = load_snapshot(storage).timeline
    return {(i.requested_at, i.completed_at or "") for i in timeline.completed_writes}


def check_pause(crew: Crew, place: Place, planned: PlannedTable, fate: Fate) -> None:
    """Stop an execution, let another process execute the plan, and let the first one go on."""
    table, storage, where = planned.table, planned.storage, str(fate)
    rows = table.rows()
    stopped = crew.start_execution(storage, planned.plan, OPTIONS, fate=fate, client=place.client)
    assert stopped.wait() == "stopped", (where, stopped.errors)
    stopped.oversleep()
    try:
        table.services().execute(planned.plan)
    except LakewrightError as error:
        where += f", second execution: {error}"
    assert table.rows() == rows, where
    before = completed(storage)
    stopped.send("SIGCONT")
    assert stopped.wait() in ("done", "failed"), where
    assert not [error for error in stopped.errors if "unforeseen" in error], where
    where += f", first execution: {stopped.journal}"
    assert before <= completed(storage), where
    assert table.rows() == rows, where
    try:
        table.services().execute(planned.plan)
    except LakewrightError as error:
        where += f", third execution: {error}"
    assert before <= completed(storage), where
    assert table.rows() == rows, where
    table.upsert([row("k0", 9, "last", DAY)])
    assert table.rows() == [row("k0", 9, "last", DAY), *rows[1:]], where
    assert_has_pending_files(storage, where)
    let_age(storage)
    delete_leftovers(storage, find_leftovers(storage, HeartbeatSettings(), SystemClock()))
    assert_tidy(storage)


def assert_has_pending_files(storage: Storage, where: str) -> None:
    """No process has deleted the requested or inflight file of a completed instant."""
    instants = [*list_timeline(storage, load_snapshot(storage).config)]
    for state in (State.REQUESTED, State.INFLIGHT):
        pending = {i.requested_at for i in instants if i.state is state}
        assert {i.requested_at for i in instants if i.is_completed} <= pending, where


@pytest.mark.parametrize(("kind", "service", "cancellable"), PLACES_AND_PLANS)
def test_an_execution_that_is_stopped(
    crew: Crew, place: Place, service: str, cancellable: bool, tmp_path: Path
) -> None:
    moments = list(MOMENTS)
    if SOAK:
        calls = calls_of_execution(crew, place, service, cancellable, tmp_path / "calls.jsonl")
        moments += [Fate("SIGSTOP", nth) for nth in range(len(calls))]
    for fate in moments:
        check_pause(crew, place, planned_table(place, service, cancellable=cancellable), fate)


def calls_of_execution(
    crew: Crew, place: Place, service: str, cancellable: bool, file: Path
) -> list[str]:
    planned = planned_table(place, service, cancellable=cancellable)
    process: Process = crew.start_execution(
        planned.storage, planned.plan, OPTIONS, client=place.client, calls=file
    )
    assert process.wait() == "done", process.errors
    return [json.loads(line)["call"] for line in file.read_text().splitlines()]
