"""What a TTL run leaves: expired partitions that others hold, named with what holds them."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from lakewright.client.documents import outcome_document
from lakewright.model.instant import Instant
from lakewright.model.plans import Skip
from lakewright.model.ttl import ENABLED, HUDI_DAYS, HUDI_TYPE, MAX_PARTITIONS, POLICIES, RUN_INLINE
from lakewright.sql.procedures.ttl import run_rows
from lakewright.storage.memory import MemoryStorage
from lakewright.testing.clock import ManualClock
from lakewright.testing.storage import Crash
from lakewright.write.writer import Commit
from support.faults import MortalStorage
from support.tables import NO_SERVICES, WrittenTable, row

DAY_MS = 86_400_000
WEEK = json.dumps([{"spec": "*", "units": "DAYS", "value": 7}])
ROWS = json.dumps([{"spec": "*", "level": "RECORD", "units": "DAYS", "value": 7}])
SEVERAL = {"hoodie.write.concurrency.mode": "OPTIMISTIC_CONCURRENCY_CONTROL"}
COMPACT = {"hoodie.compact.inline.max.delta.commits": "1"}
EVENT_TIME = {HUDI_DAYS: "7", HUDI_TYPE: "KEEP_BY_EVENT_TIME"}


def made(options: dict[str, str] | None = None, **stored: str) -> WrittenTable:
    """A table with a week's policy on a storage that goes by the table's clock."""
    clock = ManualClock()
    storage = MemoryStorage.fresh(now_ms=clock.now_ms)
    table = WrittenTable(storage, clock, {**NO_SERVICES, **(options or {})})
    return table.create("MERGE_ON_READ", options={ENABLED: "true", POLICIES: WEEK, **stored})


def days_pass(table: WrittenTable, days: float) -> None:
    assert isinstance(table.clock, ManualClock)
    table.clock.advance(round(days * DAY_MS))


def put(table: WrittenTable, *partitions: str, ts: int = 1) -> Commit:
    return table.upsert([row(partition, ts, day=partition) for partition in partitions])


def run(table: WrittenTable, options: dict[str, str] | None = None) -> Commit | Skip:
    return table.services(options).run("ttl")


def held_and_free() -> tuple[WrittenTable, str]:
    """Three partitions, of which a pending compaction holds two; all have expired."""
    table = made()
    put(table, "held", "kept")
    put(table, "held", "kept", ts=2)
    plan = table.services(COMPACT).schedule("compaction")
    assert isinstance(plan, Instant)
    put(table, "free")
    days_pass(table, 8)
    return table, f"held by compaction {plan.requested_at}"


def test_a_run_names_what_it_skipped_and_what_holds_it() -> None:
    table, holder = held_and_free()
    outcome = run(table)
    assert isinstance(outcome, Commit)
    assert outcome.partitions == ("free",)
    assert outcome.skipped == {"held": holder, "kept": holder}
    document = outcome_document(outcome)
    assert document["commit"]["skipped"] == [
        {"partition": "held", "reason": holder},
        {"partition": "kept", "reason": holder},
    ]
    assert document["detail"].endswith("2 partitions skipped")


def test_a_run_that_deletes_nothing_names_all_that_is_held() -> None:
    table, holder = held_and_free()
    run(table)
    outcome = run(table)
    assert isinstance(outcome, Skip)
    assert outcome.skipped == {"held": holder, "kept": holder}
    document = outcome_document(outcome)
    assert [item["partition"] for item in document["skipped"]] == ["held", "kept"]


def test_the_procedure_names_both() -> None:
    table, holder = held_and_free()
    skipped = [(None, "held", holder), (None, "kept", holder)]
    assert run_rows(run(table)) == [("free", None, None), *skipped]
    assert run_rows(run(table)) == skipped


def test_partitions_beyond_the_limit_are_named() -> None:
    table = made()
    put(table, "a")
    days_pass(table, 1)
    put(table, "b")
    days_pass(table, 8)
    outcome = run(table, {MAX_PARTITIONS: "1"})
    assert isinstance(outcome, Commit)
    assert outcome.skipped == {"b": "beyond the 1 partitions of one run"}


def test_rows_beyond_the_limit_are_named_with_what_is_held() -> None:
    table = made({}, **{POLICIES: ROWS})
    put(table, "held")
    put(table, "held", ts=2)
    plan = table.services(COMPACT).schedule("compaction")
    assert isinstance(plan, Instant)
    put(table, "a")
    put(table, "b")
    days_pass(table, 8)
    outcome = run(table, {MAX_PARTITIONS: "1"})
    assert isinstance(outcome, Commit)
    assert outcome.skipped == {
        "b": "beyond the 1 partitions of one run",
        "held": f"held by compaction {plan.requested_at}",
    }


# Writers that crashed.


def leave_a_file(table: WrittenTable, partition: str) -> None:
    """A process writes to a partition and dies before its commit."""
    mortal = MortalStorage(table.storage)

    def die() -> None:
        mortal.dead = True
        raise Crash

    with pytest.raises(Crash):
        replace(table, storage=mortal).upsert([row("late", day=partition)], before_commit=die)


POLICIES_OF_FAILED_WRITES = {
    "several writers": SEVERAL,
    "one writer": {},
    "writes that are never rolled back": {**SEVERAL, "hoodie.clean.failed.writes.policy": "NEVER"},
}


@pytest.mark.parametrize(
    "options", POLICIES_OF_FAILED_WRITES.values(), ids=list(POLICIES_OF_FAILED_WRITES)
)
def test_a_dead_writers_file_does_not_hold_a_partition(options: dict[str, str]) -> None:
    table = made(options)
    put(table, "p")
    days_pass(table, 8)
    leave_a_file(table, "p")
    outcome = run(table)
    assert isinstance(outcome, Skip)  # it may still be alive: its heartbeat has not expired
    assert list(outcome.skipped) == ["p"]
    days_pass(table, 1)
    assert isinstance(run(table), Commit)
    assert table.rows() == []


def test_a_live_writers_file_holds_a_partition_beside_a_dead_ones() -> None:
    table = made(SEVERAL)
    put(table, "p", "q")
    days_pass(table, 8)
    leave_a_file(table, "p")
    days_pass(table, 1)
    outcomes: list[Commit | Skip] = []
    at_work = table.upsert([row("new", day="p")], before_commit=lambda: outcomes.append(run(table)))
    (outcome,) = outcomes
    assert isinstance(outcome, Commit)
    assert outcome.partitions == ("q",)
    assert outcome.skipped == {"p": f"held by deltacommit {at_work.instant}"}
    assert {record["id"] for record in table.rows()} == {"p", "new"}


# A day that is written late under a policy that goes by the day in the path.


@pytest.mark.parametrize("inline", ["true", "false"], ids=["after writes", "beside writes"])
def test_a_backfilled_old_day_goes_at_the_next_run(inline: str) -> None:
    table = made(EVENT_TIME, **{POLICIES: "[]", RUN_INLINE: inline})
    put(table, "2026-01-01")
    put(table, "2026-01-01", ts=2)
    put(table, "2020-05-05")
    outcome = run(table)
    assert isinstance(outcome, Commit)
    assert outcome.partitions == ("2020-05-05",)


def test_a_backfilled_old_day_goes_with_the_next_write() -> None:
    table = made(EVENT_TIME, **{POLICIES: "[]", RUN_INLINE: "false"})
    for ts in (1, 2, 3):
        put(table, "2026-01-01", ts=ts)
    assert put(table, "2020-05-05").services == ()
    (deletion,) = put(table, "2026-01-01", ts=4).services
    assert isinstance(deletion, Commit)
    assert deletion.partitions == ("2020-05-05",)
    # Once more, for the time of the next evaluation.
    assert [type(outcome) for outcome in put(table, "2026-01-01", ts=5).services] == [Skip]
    assert put(table, "2026-01-01", ts=6).services == ()
    assert {record["day"] for record in table.rows()} == {"2026-01-01"}


def test_a_day_backfilled_beside_a_write_goes_with_the_next_one() -> None:
    table = made({**EVENT_TIME, **SEVERAL}, **{POLICIES: "[]", RUN_INLINE: "false"})
    put(table, "2026-01-01")
    days_pass(table, 1)

    def backfill() -> None:
        put(table, "2020-05-05")

    # The write evaluates the partitions when it begins, and records when TTL is to run next.
    table.upsert([row("a", 2, day="2026-01-01")], before_commit=backfill)
    (deletion,) = put(table, "2026-01-01", ts=4).services
    assert isinstance(deletion, Commit)
    assert deletion.partitions == ("2020-05-05",)


def test_a_young_day_is_no_reason_to_look() -> None:
    table = made(EVENT_TIME, **{POLICIES: "[]", RUN_INLINE: "false"})
    for ts in (1, 2, 3):
        put(table, "2026-01-01", ts=ts)
    assert put(table, "2026-01-02").services == ()
    assert put(table, "2026-01-02", ts=2).services == ()
