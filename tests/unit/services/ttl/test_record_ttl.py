"""Policies of level RECORD: rows that are too old are deleted, and no others."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest

from lakewright.model.instant import parse_time
from lakewright.model.plans import Skip
from lakewright.model.ttl import ENABLED, MAX_PARTITIONS, POLICIES, TtlLevel, TtlPolicy, TtlUnit
from lakewright.services.ttl.planner import TtlPlan
from lakewright.services.ttl.record_ttl import pick_old
from lakewright.services.ttl.service import explain
from lakewright.table.properties import last_update_time, load_partition_metadata
from lakewright.table.snapshot import load_snapshot
from lakewright.write.writer import Commit
from support.concurrency import InterruptedEngine, once
from support.tables import NO_SERVICES, SCHEMA, WrittenTable, row

DAY = 86_400
EVENTS = SCHEMA.append(pa.field("at", pa.timestamp("us", tz="UTC")))


def policies(*given: dict[str, Any]) -> str:
    whole = [
        {"spec": "*", "level": "RECORD", "units": "DAYS", "value": 7} | policy for policy in given
    ]
    return json.dumps(whole)


def table(
    kind: str = "COPY_ON_WRITE", *, event_time: bool = False, saved: str = ""
) -> WrittenTable:
    stored = {ENABLED: "true", POLICIES: saved or policies({})}
    made = WrittenTable(options=NO_SERVICES, schema=EVENTS if event_time else SCHEMA)
    return made.create(kind, options=stored, event_time="at" if event_time else None)


def event(key: str, day: int, partition: str = "p") -> dict[str, Any]:
    return {**row(key, day, day=partition), "at": datetime(2026, 1, day, tzinfo=UTC)}


def ids(made: WrittenTable) -> list[str]:
    return [record["id"] for record in made.rows()]


def run(made: WrittenTable, options: dict[str, str] | None = None) -> Commit | Skip:
    outcome = made.services(options).run("ttl")
    assert isinstance(outcome, Commit | Skip)
    return outcome


KINDS = ("COPY_ON_WRITE", "MERGE_ON_READ")


@pytest.mark.parametrize("kind", KINDS)
def test_rows_expire_by_their_event_time(kind: str) -> None:
    made = table(kind, event_time=True)
    made.upsert([event("a", 1), event("b", 5), event("c", 9)])
    made.upsert([event("a", 8), event("d", 2, "q")])
    made.clock.sleep(12 * DAY)  # the 13th: what is from before the 6th goes
    commit = run(made)
    assert isinstance(commit, Commit)
    assert (commit.operation, commit.deleted) == ("DELETE", 2)
    assert ids(made) == ["a", "c"]
    assert isinstance(run(made), Skip)


@pytest.mark.parametrize("kind", KINDS)
def test_rows_without_event_time_expire_by_their_commit_time(kind: str) -> None:
    made = table(kind)
    made.upsert([row("a"), row("b")])
    made.clock.sleep(5 * DAY)
    made.upsert([row("b", 2), row("c")])
    made.clock.sleep(5 * DAY)
    commit = run(made)
    assert isinstance(commit, Commit)
    assert ids(made) == ["b", "c"]


def test_a_row_without_a_time_stays() -> None:
    made = table(event_time=True)
    made.upsert([event("a", 1), {**row("b", day="p"), "at": None}])
    made.clock.sleep(40 * DAY)
    assert isinstance(run(made), Commit)
    assert ids(made) == ["b"]


def test_nothing_old_leaves_the_table_untouched() -> None:
    made = table()
    made.upsert([row("a")])
    made.clock.sleep(5 * DAY)
    before = made.storage.files()  # type: ignore[attr-defined]
    assert str(run(made)) == "no row is older than a policy allows"
    assert made.storage.files() == before  # type: ignore[attr-defined]


def test_a_run_takes_rows_of_some_partitions_those_with_the_oldest_first() -> None:
    made = table(event_time=True)
    made.upsert([event("a", 3, "x"), event("b", 2, "y"), event("c", 1, "z"), event("d", 9, "w")])
    made.clock.sleep(11 * DAY)
    options = {MAX_PARTITIONS: "2"}
    commit = run(made, options)
    assert isinstance(commit, Commit)
    assert sorted(commit.partitions) == ["y", "z"]
    assert isinstance(run(made, options), Commit)
    assert isinstance(run(made, options), Skip)
    assert ids(made) == ["d"]


def test_one_policy_decides_about_a_partition() -> None:
    rows = {"spec": "a*", "value": 7}
    whole = {"spec": "*", "level": "PARTITION", "value": 30}
    made = table(saved=policies(rows, whole))
    made.upsert([row("a", day="a1"), row("b", day="b1")])
    made.clock.sleep(20 * DAY)
    assert "nothing is expired" in str(run(made))  # MAX_TTL: the longer one
    commit = run(made, {"hoodie.ttl.conflict.resolution.rule": "MIN_TTL"})
    assert isinstance(commit, Commit)
    assert (commit.operation, ids(made)) == ("DELETE", ["b"])


def test_partitions_and_rows_go_in_one_run() -> None:
    rows = {"spec": "a*", "value": 7}
    whole = {"spec": "b*", "level": "PARTITION", "value": 10}
    made = table(saved=policies(rows, whole))
    made.upsert([row("a", day="a1"), row("b", day="b1")])
    made.clock.sleep(20 * DAY)
    made.upsert([row("c", day="a1")], {"hoodie.ttl.run.inline.trigger.value": "99"})
    commit = run(made)
    assert isinstance(commit, Commit)
    (also,) = commit.services
    assert isinstance(also, Commit)
    assert (commit.operation, commit.partitions) == ("DELETE_PARTITION", ("b1",))
    assert (also.operation, also.partitions) == ("DELETE", ("a1",))
    assert ids(made) == ["c"]


def test_deleting_rows_renews_no_partition() -> None:
    made = table()
    first = made.upsert([row("a", day="p")])
    made.clock.sleep(8 * DAY)
    assert isinstance(run(made), Commit)
    metadata = load_partition_metadata(made.storage, ["p"])
    assert last_update_time(metadata["p"]) == first.completed_at


@pytest.mark.parametrize("kind", KINDS)
def test_a_row_that_a_concurrent_write_renews_stays(kind: str) -> None:
    several = {"hoodie.write.concurrency.mode": "OPTIMISTIC_CONCURRENCY_CONTROL"}
    made = table(kind, event_time=True)
    made.upsert([event("a", 1), event("b", 1)])
    made.clock.sleep(10 * DAY)
    service = made.services(several)
    context = service.planning_context(load_snapshot(made.storage))
    verdicts = explain(context)
    assert [(v.rows_before or "")[:8] for v in verdicts] == ["20260104"]
    acted: list[Commit] = []

    renew = once(lambda: acted.append(made.upsert([event("a", 9)], several)))
    engine = InterruptedEngine(after_scan=renew)
    commit = replace(service, engine=lambda: engine).run("ttl")
    assert acted
    assert isinstance(commit, Commit)
    assert ids(made) == ["a"]


def test_a_preview_shows_from_when_on_rows_stay() -> None:
    made = table()
    made.upsert([row("a", day="p")])
    plan = made.services().preview("ttl")
    assert isinstance(plan, TtlPlan)
    assert plan.partitions == ()
    (verdict,) = plan.records
    assert (verdict.partition, (verdict.rows_before or "")[:14]) == ("p", "20251225000000")


def test_a_partition_held_by_a_plan_is_left_out_and_named() -> None:
    made = table("MERGE_ON_READ")
    made.upsert([row("a", day="p")])
    made.upsert([row("a", 2, day="p")])
    made.clock.sleep(10 * DAY)
    made.services({"hoodie.compact.inline.max.delta.commits": "1"}).schedule("compaction")
    assert "p is held by compaction" in str(run(made))


CUTOFFS: dict[str, tuple[str, TtlUnit, int, str]] = {
    "days": ("20260310120000000", TtlUnit.DAYS, 10, "20260228120000000"),
    "weeks": ("20260310120000000", TtlUnit.WEEKS, 1, "20260303120000000"),
    "a month": ("20260310120000000", TtlUnit.MONTHS, 1, "20260210120000000"),
    "a day that the month has not": ("20260331000000000", TtlUnit.MONTHS, 1, "20260228000000000"),
    "a leap year": ("20240331000000000", TtlUnit.MONTHS, 1, "20240229000000000"),
    "a year before a leap day": ("20240229000000000", TtlUnit.YEARS, 1, "20230228000000000"),
    "before all time": ("20240229000000000", TtlUnit.YEARS, 5000, "10000101000000000"),
}


@pytest.mark.parametrize(("now", "units", "value", "expected"), CUTOFFS.values(), ids=list(CUTOFFS))
def test_cutoffs(now: str, units: TtlUnit, value: int, expected: str) -> None:
    policy = TtlPolicy(spec="*", units=units, value=value, level=TtlLevel.RECORD)
    assert policy.cutoff(parse_time(now)) == parse_time(expected)


@pytest.mark.parametrize("units", list(TtlUnit))
def test_nothing_from_before_a_cutoff_is_still_alive(units: TtlUnit) -> None:
    policy = TtlPolicy(spec="*", units=units, value=1, level=TtlLevel.RECORD)
    for days in range(2 * 366):
        now = datetime(2024, 1, 1, 7, tzinfo=UTC) + timedelta(days=days)
        for hours in (1, 25, 49, 73, 97, 745):
            since = policy.cutoff(now) - timedelta(hours=hours)
            assert policy.expiry(since) < now


TIMES: dict[str, tuple[str | None, bool]] = {
    "before": ("20260101000000000", True),
    "at the limit": ("20260102000000000", False),
    "a second that may be after it": ("20260102000000", False),
    "a second before it": ("20260101235959", True),
    "no time": ("yesterday", False),
    "empty": ("", False),
    "none": (None, False),
}


@pytest.mark.parametrize(("time", "old"), TIMES.values(), ids=list(TIMES))
def test_times_of_commits(time: str | None, old: bool) -> None:
    batch = pa.record_batch(
        {
            "_hoodie_commit_time": pa.array([time, time], pa.string()),
            "_hoodie_partition_path": ["p", "elsewhere"],
            "id": ["a", "b"],
        }
    )
    limits = {"p": "20260102000000000"}
    picked = pick_old("_hoodie_commit_time", limits, ("id",), batch)
    assert picked.column("id").to_pylist() == (["a"] if old else [])
