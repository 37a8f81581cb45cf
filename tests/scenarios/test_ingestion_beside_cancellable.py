"""What a cancellable plan costs ingestion beside it: a few reads, and short critical sections."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

from lakewright.model.instant import Instant
from lakewright.table.conflicts import PreemptedError
from lakewright.testing.storage import CountingStorage
from support.cancellable_plans import CANCELLABLE_PLAN, DAYS, PlanFixture, each_service
from support.concurrency import InterruptedEngine, once
from support.tables import WrittenTable, row

# The lock of this table is a file, so that acquiring it is a storage call.
SEVERAL_PROCESSES = {
    "hoodie.write.concurrency.mode": "OPTIMISTIC_CONCURRENCY_CONTROL",
    "hoodie.clean.failed.writes.policy": "LAZY",
}
LOCK = ".hoodie/lock"
# How often a write reads a plan: for the file groups to avoid, and, if it is a conflict for other
# writers, once more when it commits.
PLAN_READS = {"clustering": 2, "compaction": 1, "logcompaction": 1}
# What an execution and a planning do while they hold the lock.
CALLS_TO_BEGIN, CALLS_TO_COMMIT, CALLS_TO_PLAN = 10, 10, 8

Calls = Counter[tuple[str, str]]


def counted_upsert(fixture: PlanFixture) -> Calls:
    """The storage calls of an upsert to a file group of the plan, without instants and file ids."""
    storage = CountingStorage(fixture.storage)
    table = WrittenTable(storage, fixture.clock, fixture.table.options)
    table.upsert([row("a", 9, "ninth")])
    return Counter((method, _anonymous(path)) for method, path in storage.touched)


def _anonymous(path: str) -> str:
    return re.sub(r"[0-9a-f]{8}-[0-9a-f-]{27,}|\d{17}", "#", path)


def upsert_during_execution(service: str) -> Calls:
    fixture = PlanFixture(service, SEVERAL_PROCESSES)
    at = fixture.schedule()
    calls: Calls = Counter()
    engine = InterruptedEngine(once(lambda: calls.update(counted_upsert(fixture))))
    try:
        fixture.execute(at, engine)
    except PreemptedError:
        assert service == "clustering"
    return calls


@each_service
def test_an_upsert_beside_an_execution_makes_the_calls_of_one_alone_and_reads_the_plan(
    service: str,
) -> None:
    alone = counted_upsert(PlanFixture(service, SEVERAL_PROCESSES))
    beside = upsert_during_execution(service)
    plan = ("read", f".hoodie/timeline/#.{service}.requested")
    assert beside == alone + Counter({plan: PLAN_READS[service]})
    assert beside["create", LOCK] == alone["create", LOCK] == 2


def critical_sections(touched: list[tuple[str, str]]) -> Iterator[list[str]]:
    """The calls that a process makes each time it holds the lock."""
    section: list[str] | None = None
    for method, path in touched:
        if (method, path) == ("create", LOCK):
            section = []
        elif (method, path) == ("delete", LOCK) and section is not None:
            yield section
            section = None
        elif section is not None and path != LOCK:
            section.append(method)


def calls_under_lock(service: str, groups: int) -> tuple[int, list[int]]:
    """How many calls each critical section has: of planning, and of executing so many groups."""
    fixture = PlanFixture(service, SEVERAL_PROCESSES)
    for key in range(groups):
        fixture.table.write("BULK_INSERT", [row(f"a{key}"), row(f"b{key}")])
        for ts in (2, 3) if service != "clustering" else ():
            fixture.table.upsert([row(f"a{key}", ts)])
    storage = CountingStorage(fixture.storage)
    planned = replace(fixture.runner(CANCELLABLE_PLAN), storage=storage).schedule(service)
    assert isinstance(planned, Instant)
    (planning,) = critical_sections(storage.touched)
    storage.reset()
    replace(fixture.runner(), storage=storage).execute(planned.requested_at)
    return len(planning), [len(section) for section in critical_sections(storage.touched)]


@each_service
def test_an_execution_holds_the_lock_for_as_many_calls_whatever_the_number_of_file_groups(
    service: str,
) -> None:
    """So an ingestion beside it never waits for the lock longer than for a few calls."""
    for groups in (0, 12):
        _, executing = calls_under_lock(service, groups)
        assert executing == [CALLS_TO_BEGIN, CALLS_TO_COMMIT]


def test_planning_holds_the_lock_for_a_listing_of_each_partition_and_a_few_calls() -> None:
    few, _ = calls_under_lock("clustering", 0)
    many, _ = calls_under_lock("clustering", 12)
    assert few == many <= CALLS_TO_PLAN + len(DAYS)
