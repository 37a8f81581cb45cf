"""TTL on tables: what expires, what stays, what blocks it, and concurrent writes."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC
from typing import Any

import pyarrow as pa
import pytest

from lakewright.errors import ConflictError
from lakewright.model.file_group import PARTITION_METADATA
from lakewright.model.instant import Instant
from lakewright.model.plans import Skip
from lakewright.model.ttl import WRITERS_ZONE
from lakewright.services.registry import service_by_name
from lakewright.services.ttl.planner import ReferenceSource, TtlPlan
from lakewright.storage.base import Storage
from lakewright.table.properties import touch_last_update_time, update_properties
from lakewright.table.snapshot import load_snapshot
from lakewright.table.time_generator import format_epoch_ms
from lakewright.testing.clock import ManualClock
from lakewright.testing.storage import CountingStorage, Crash, CrashingStorage
from lakewright.write.writer import Commit
from support.concurrency import InterruptedStorage
from support.tables import NO_SERVICES, SCHEMA, WrittenTable, row

DAY_MS = 86_400_000
RETAIN = "hoodie.partition.ttl.strategy.days.retain"
TYPE = "hoodie.partition.ttl.management.strategy.type"
BY_CREATION = {RETAIN: "10", TYPE: "KEEP_BY_CREATION_TIME"}
SELECTED = "hoodie.partition.ttl.strategy.partition.selected"
ALONE = {"hoodie.partition.ttl.strategy.max.delete.partitions": "1"}
AT_ONCE = {
    "hoodie.compact.inline.max.delta.commits": "1",
    "hoodie.log.compaction.blocks.threshold": "1",
}


def policy(spec: str = "*", value: int = 10, units: str = "DAYS") -> dict[str, Any]:
    return {"spec": spec, "level": "PARTITION", "units": units, "value": value}


def made(*policies: dict[str, Any], table_type: str = "MERGE_ON_READ", **more: Any) -> WrittenTable:
    """A table with TTL on, whose clock stands at the beginning of 2026."""
    options = {
        "hoodie.ttl.enabled": "true",
        "hoodie.ttl.policies": json.dumps(policies or [policy()]),
    }
    return WrittenTable(options=NO_SERVICES, clock=ManualClock(), **more).create(
        table_type, options=options
    )


def plain(table_type: str = "COPY_ON_WRITE") -> WrittenTable:
    """A table that knows nothing of TTL."""
    return WrittenTable(options=NO_SERVICES, clock=ManualClock()).create(table_type)


def clock_of(table: WrittenTable) -> ManualClock:
    assert isinstance(table.clock, ManualClock)
    return table.clock


def wait(table: WrittenTable, days: float) -> None:
    clock_of(table).advance(round(days * DAY_MS))


def put(table: WrittenTable, *days: str, key: str = "k", ts: int = 1) -> Commit:
    return table.upsert([row(f"{key}-{day}", ts, day=day) for day in days])


def remaining_partitions(table: WrittenTable) -> set[str]:
    return {record["day"] for record in table.rows()}


def run(table: WrittenTable, options: dict[str, str] | None = None) -> Commit | Skip:
    return table.services(options).run("ttl")


def preview(table: WrittenTable, options: dict[str, str] | None = None) -> Any:
    return table.services(options).preview("ttl")


def three(table_type: str = "COPY_ON_WRITE") -> WrittenTable:
    """Three partitions of ten rows each: two of old, one of now."""
    table = plain(table_type)
    table.upsert([row(f"a{n}", day="p0") for n in range(10)])
    clock_of(table).advance(1000)
    table.upsert([row(f"b{n}", day="p1") for n in range(10)])
    wait(table, 20)
    table.upsert([row(f"c{n}", day="p2") for n in range(10)])
    return table


HUDI: dict[str, tuple[dict[str, str], set[str], set[str]]] = {
    "by time, old partitions go": ({RETAIN: "10"}, {"p0", "p1"}, {"p2"}),
    "by creation time as well": (
        {RETAIN: "10", TYPE: "KEEP_BY_CREATION_TIME"},
        {"p0", "p1"},
        {"p2"},
    ),
    "with few days to retain too": ({RETAIN: "1"}, {"p0", "p1"}, {"p2"}),
    "25 days are more than 20": ({RETAIN: "25"}, set(), {"p0", "p1", "p2"}),
    "50 days are more than 7 hours": ({RETAIN: "50"}, set(), {"p0", "p1", "p2"}),
    "only selected ones, whatever blanks are around them": (
        {RETAIN: "10", SELECTED: " p1 , p2"},
        {"p1"},
        {"p0", "p2"},
    ),
    "one at a time, the oldest first": ({RETAIN: "10", **ALONE}, {"p0"}, {"p1", "p2"}),
    "no days to retain: nothing goes": ({RETAIN: "0"}, set(), {"p0", "p1", "p2"}),
    "and nothing unless TTL is configured": ({}, set(), {"p0", "p1", "p2"}),
}


@pytest.mark.parametrize("table_type", ["COPY_ON_WRITE", "MERGE_ON_READ"])
@pytest.mark.parametrize(("options", "deleted", "stay"), HUDI.values(), ids=list(HUDI))
def test_hudis_own_keys(
    options: dict[str, str], deleted: set[str], stay: set[str], table_type: str
) -> None:
    table = three(table_type)
    before = table.storage.files()  # type: ignore[attr-defined]
    outcome = run(table, options)
    assert remaining_partitions(table) == stay
    if deleted:
        assert isinstance(outcome, Commit)
        assert (outcome.action, outcome.operation) == ("replacecommit", "DELETE_PARTITION")
        assert set(outcome.partitions) == deleted
        assert len(table.rows()) == 10 * len(stay)
    else:
        assert isinstance(outcome, Skip)
        assert table.storage.files() == before  # type: ignore[attr-defined]


def test_a_table_without_partitions_or_writes_loses_nothing() -> None:
    whole = WrittenTable(options=NO_SERVICES).create(partition_by=())
    whole.upsert([row("k")])
    wait(whole, 100)
    assert run(whole, {RETAIN: "1"}) == Skip("the table has no partitions")
    assert run(plain(), {RETAIN: "1"}) == Skip("nothing was written yet")


def test_policies_are_not_in_force_while_ttl_is_off() -> None:
    table = made()
    put(table, "p")
    wait(table, 100)
    update_properties(table.storage, lambda old: {**old, "hoodie.ttl.enabled": "false"})
    assert run(table) == Skip("TTL is off: its policies are not in force")
    assert remaining_partitions(table) == {"p"}


def test_a_partition_lives_until_its_last_write_is_old() -> None:
    table = made()
    put(table, "p", "q")
    wait(table, 6)
    put(table, "p", ts=2)
    wait(table, 6)
    assert isinstance(run(table), Commit)
    assert remaining_partitions(table) == {"p"}
    assert isinstance(run(table), Skip)
    wait(table, 6)
    assert isinstance(run(table), Commit)
    assert remaining_partitions(table) == set()


def test_rows_that_are_only_in_log_files_keep_a_partition() -> None:
    table = made()
    put(table, "p")
    wait(table, 9)
    table.upsert([row("k-p", 2, day="p")])
    snapshot = load_snapshot(table.storage)
    assert any(group.latest_merged_slice().logs for group in snapshot.groups(snapshot.view()))
    wait(table, 9)
    assert isinstance(run(table), Skip)
    wait(table, 2)
    assert isinstance(run(table), Commit)


def test_deleted_rows_are_a_write_too() -> None:
    table = made()
    table.upsert([row("k1", day="p"), row("k2", day="p")])
    wait(table, 9)
    table.write("DELETE", [row("k1", day="p")])
    wait(table, 9)
    assert isinstance(run(table), Skip)


MOVING: dict[str, dict[str, str]] = {
    "compaction": {"hoodie.compact.inline.max.delta.commits": "1"},
    "logcompaction": {"hoodie.log.compaction.blocks.threshold": "2"},
    "clustering": {
        "hoodie.clustering.inline.max.commits": "1",
        "hoodie.clustering.plan.strategy.single.group.clustering.enabled": "true",
    },
}


@pytest.mark.parametrize("service", MOVING)
def test_services_renew_nothing(service: str) -> None:
    table = made()
    put(table, "p")
    put(table, "p", ts=2)
    put(table, "p", ts=3)
    wait(table, 9)
    assert isinstance(table.services(MOVING[service]).run(service), Commit)
    wait(table, 2)
    plan = preview(table)
    assert isinstance(plan, TtlPlan)
    assert plan.operations[0].source is ReferenceSource.TIMELINE
    assert isinstance(run(table), Commit)
    assert remaining_partitions(table) == set()


def test_an_earlier_state_can_be_read_until_files_are_cleaned() -> None:
    table = made(table_type="COPY_ON_WRITE")
    put(table, "p")
    wait(table, 11)
    put(table, "q")
    before = set(table.storage.list_files("p"))
    assert isinstance(run(table), Commit)
    assert set(table.storage.list_files("p")) == before
    keep_one = {"hoodie.clean.commits.retained": "1"}
    for number in range(2):
        put(table, "q", ts=2 + number)
    assert isinstance(table.services(keep_one).run("clean"), Commit)
    assert table.storage.list_files("p") == []
    assert remaining_partitions(table) == {"q"}


def test_a_deleted_partition_is_not_deleted_again() -> None:
    table = made()
    put(table, "p")
    wait(table, 11)
    assert isinstance(run(table), Commit)
    count = len(load_snapshot(table.storage).timeline)
    assert isinstance(run(table), Skip)
    assert len(load_snapshot(table.storage).timeline) == count


def test_a_partition_is_not_as_old_as_a_write_that_was_rolled_back() -> None:
    table = plain()
    put(table, "other")
    first = put(table, "p")
    table.writer().rollback(first.instant)
    wait(table, 11)
    put(table, "p", ts=2)
    commit = run(table, BY_CREATION)
    assert isinstance(commit, Commit)
    assert commit.partitions == ("other",)
    wait(table, 11)
    assert isinstance(run(table, BY_CREATION), Commit)
    assert remaining_partitions(table) == set()


def test_a_partition_that_is_written_again_after_ttl_stays() -> None:
    table = made()
    put(table, "p")
    wait(table, 11)
    assert isinstance(run(table), Commit)
    put(table, "p", ts=2)
    assert isinstance(run(table), Skip)
    assert remaining_partitions(table) == {"p"}


def deleted_by_ttl(table: WrittenTable) -> None:
    assert isinstance(run(table, BY_CREATION), Commit)


def overwritten_with_the_table(table: WrittenTable) -> None:
    table.write("INSERT_OVERWRITE_TABLE", [row("other", day="other")])


@pytest.mark.parametrize("emptied", [deleted_by_ttl, overwritten_with_the_table])
def test_a_partition_that_is_made_anew_is_not_as_old_as_its_file(
    emptied: Callable[[WrittenTable], None],
) -> None:
    table = plain()
    put(table, "p")
    wait(table, 11)
    emptied(table)
    put(table, "p", ts=2)
    wait(table, 9)
    put(table, "p", ts=3)
    assert isinstance(run(table, BY_CREATION), Skip)
    wait(table, 2)
    assert isinstance(run(table, BY_CREATION), Commit)


@pytest.mark.parametrize("service", ["compaction", "logcompaction", "clustering"])
def test_a_pending_plan_holds_its_partition_and_no_other(service: str) -> None:
    table = made()
    for ts in (1, 2, 3):
        put(table, "held", ts=ts)
    at = table.services(MOVING[service]).schedule(service)
    assert isinstance(at, Instant)
    put(table, "free")
    wait(table, 11)
    plan = preview(table)
    assert plan.partitions == ("free",)
    assert plan.missing_reasons == {"held": f"held by {service} {at.requested_at}"}
    assert isinstance(run(table), Commit)
    assert remaining_partitions(table) == {"held"}
    assert run(table) == Skip(
        f"all that is expired is in use: held is held by {service} {at.requested_at}"
    )
    table.services(MOVING[service]).execute(at.requested_at)
    assert isinstance(run(table), Commit)
    assert remaining_partitions(table) == set()


def test_a_partition_with_a_pending_write_is_left_alone() -> None:
    table = made()
    put(table, "p", "q")
    wait(table, 11)
    shown: list[Any] = []
    table.upsert([row("k-p", 2, day="p")], before_commit=lambda: shown.append(preview(table)))
    (plan,) = shown
    assert plan.partitions == ("q",)
    assert "deltacommit" in plan.missing_reasons["p"]


NEW_GROUPS = {"hoodie.parquet.small.file.limit": "0"}
SEVERAL = {"hoodie.write.concurrency.mode": "OPTIMISTIC_CONCURRENCY_CONTROL"}


def interrupted(table: WrittenTable, act: Callable[[], object]) -> Commit | Skip:
    """Run TTL while another process acts once between its plan and its write."""
    service = service_by_name("ttl")
    waiting = [act]
    original = type(service).execute

    def late(self: Any, job: Any, plan: Any) -> Any:
        while waiting:
            waiting.pop()()
        return original(self, job, plan)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(service), "execute", late)
        return run(table, SEVERAL)


def test_a_write_after_the_plan_keeps_the_partition() -> None:
    table = made()
    put(table, "p", "q")
    wait(table, 11)
    commit = interrupted(table, lambda: put(table, "p", ts=2))
    assert isinstance(commit, Commit)
    assert commit.partitions == ("q",)
    assert remaining_partitions(table) == {"p"}


@pytest.mark.parametrize("key", ["k", "another"], ids=["an old row", "a row of a new file group"])
def test_a_write_during_the_deletion_keeps_the_partition(key: str) -> None:
    table = made()
    put(table, "p", "q")
    wait(table, 11)

    def others() -> None:
        table.upsert([row(f"{key}-p", 2, day="p")], {**SEVERAL, **NEW_GROUPS})

    def act(storage: Storage, path: str, data: bytes) -> None:
        storage.create(path, data)
        others()

    inflight = InterruptedStorage(table.storage, r"replacecommit\.inflight$", act)
    commit = run(replace(table, storage=inflight), SEVERAL)
    assert isinstance(commit, Commit)
    assert commit.partitions == ("q",)
    assert remaining_partitions(table) == {"p"}
    assert len(table.rows()) == (1 if key == "k" else 2)


def test_a_service_planned_after_the_plan_keeps_the_partition() -> None:
    table = made()
    put(table, "p")
    put(table, "p", ts=2)
    wait(table, 11)
    skip = interrupted(table, lambda: table.services(AT_ONCE).schedule("compaction"))
    assert isinstance(skip, Skip)
    assert "held by compaction" in skip.reason


def test_policies_that_change_after_the_plan_count() -> None:
    table = made()
    put(table, "p")
    wait(table, 11)
    longer = {"hoodie.ttl.policies": json.dumps([policy(value=99)])}
    skip = interrupted(
        table, lambda: update_properties(table.storage, lambda old: {**old, **longer})
    )
    assert isinstance(skip, Skip)
    assert remaining_partitions(table) == {"p"}


def test_names_with_wildcards_are_taken_as_they_are() -> None:
    table = made(policy("a?"))
    put(table, "a*")
    wait(table, 11)
    put(table, "abc", "a1")
    assert isinstance(run(table), Commit)
    assert remaining_partitions(table) == {"abc", "a1"}


STATES = pa.schema([*SCHEMA, pa.field("country", pa.string()), pa.field("state", pa.string())])
YEAR, US = policy("*", 1, "YEARS"), policy("country=US/*", 2, "MONTHS")
LEVELS: dict[str, tuple[list[dict[str, Any]], str, set[str]]] = {
    "the longest decides": ([YEAR, US], "MAX_TTL", set()),
    "the shortest decides": ([YEAR, US], "MIN_TTL", {"country=US/state=CA"}),
    "no policy is for the others": ([US], "MAX_TTL", {"country=US/state=CA"}),
}


@pytest.mark.parametrize(("policies", "rule", "deleted"), LEVELS.values(), ids=list(LEVELS))
def test_partitions_of_several_levels(
    policies: list[dict[str, Any]], rule: str, deleted: set[str]
) -> None:
    table = WrittenTable(options=NO_SERVICES, clock=ManualClock(), schema=STATES).create(
        partition_by=("country", "state"),
        options={
            "hoodie.datasource.write.hive_style_partitioning": "true",
            "hoodie.ttl.enabled": "true",
            "hoodie.ttl.policies": json.dumps(policies),
            "hoodie.ttl.conflict.resolution.rule": rule,
        },
    )
    places = (("US", "CA"), ("USA", "X"), ("DE", "BY"))
    table.upsert([{**row(f"{c}-{s}"), "country": c, "state": s} for c, s in places])
    wait(table, 58)
    assert isinstance(run(table), Skip)
    wait(table, 2)
    outcome = run(table)
    assert (set(outcome.partitions) if isinstance(outcome, Commit) else set()) == deleted
    assert len(table.rows()) == 3 - len(deleted)


def test_the_commit_records_by_what_and_by_which_policies() -> None:
    table = made(policy("p*", 10), policy("q", 5))
    put(table, "p1", "p2", "q", "r")
    wait(table, 11)
    result = run(table)
    assert isinstance(result, Commit)
    snapshot = load_snapshot(table.storage)
    (commit,) = snapshot.commits([snapshot.timeline.by_time[result.instant]])
    assert commit.extra["lakewright.service"] == "ttl"
    specs = {entry["spec"] for entry in json.loads(commit.extra["lakewright.ttl.policies"])}
    assert specs == {"p*", "q"}


DELETION_TIMES: dict[str, tuple[dict[str, str], str]] = {
    "commits are kept": ({}, "with the clean after 10 more commits"),
    "versions are kept": (
        {"hoodie.clean.policy": "KEEP_LATEST_FILE_VERSIONS"},
        "with the next clean",
    ),
    "hours are kept": (
        {"hoodie.clean.policy": "KEEP_LATEST_BY_HOURS", "hoodie.clean.hours.retained": "48"},
        "with the first clean after 20260114000000001",
    ),
}


@pytest.mark.parametrize(("options", "expected"), DELETION_TIMES.values(), ids=list(DELETION_TIMES))
def test_a_preview_shows_when_the_files_will_be_deleted(
    options: dict[str, str], expected: str
) -> None:
    table = made()
    put(table, "p")
    clock = clock_of(table)
    clock.advance(11 * DAY_MS - (clock.now_ms() - ManualClock().now_ms()) + 1)
    plan = preview(table, options)
    assert [operation.files_deleted_at for operation in plan.operations] == [expected]


def test_a_savepoint_keeps_files_beyond_that() -> None:
    table = made()
    first = put(table, "p")
    table.writer().savepoint(first.instant, user="u", comment="c")
    wait(table, 11)
    plan = preview(table)
    assert [operation.files_deleted_at for operation in plan.operations] == [
        "not while a savepoint holds them"
    ]


@pytest.fixture
def berlin(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


ZONES: dict[str, tuple[str, int, int]] = {
    # 2026-03-28 12:00 UTC, a day of 23 hours in Berlin follows.
    "in UTC a day has 24 hours": ("UTC", 1_774_699_200_000, 24),
    "in local time this one has 23": ("LOCAL", 1_774_699_200_000, 23),
    # 2026-10-24 12:00 UTC
    "in local time that one has 25": ("LOCAL", 1_792_843_200_000, 25),
}


@pytest.mark.usefixtures("berlin")
@pytest.mark.parametrize(("zone", "begin", "hours"), ZONES.values(), ids=list(ZONES))
def test_a_day_ends_in_the_zone_of_the_table(zone: str, begin: int, hours: int) -> None:
    clock = ManualClock(begin)
    table = WrittenTable(options=NO_SERVICES, clock=clock).create(
        options={"hoodie.table.timeline.timezone": zone}
    )
    put(table, "p")
    options = {RETAIN: "1", WRITERS_ZONE: "Europe/Berlin"}
    clock.advance(hours * 3_600_000 - 60_000)
    assert isinstance(run(table, options), Skip)
    clock.advance(120_000)
    assert isinstance(run(table, options), Commit)


def test_a_clock_that_was_set_back_takes_nothing_out() -> None:
    table = made()
    put(table, "p")
    clock_of(table).advance(-400 * DAY_MS)
    assert isinstance(run(table), Skip)


def with_storage(table: WrittenTable, storage: Storage) -> WrittenTable:
    return replace(table, storage=storage)


def test_a_crash_at_any_call_leaves_the_partition_whole_or_deleted() -> None:
    for after_effect in (False, True):
        for survive in range(40):
            table = made()
            put(table, "p")
            put(table, "q")
            wait(table, 11)
            put(table, "q", ts=2)
            rows = table.rows()
            dying = CrashingStorage(table.storage, survive, after_effect=after_effect)
            try:
                run(with_storage(table, dying))
            except Crash:
                remaining = table.rows()
                assert remaining in (rows, [record for record in rows if record["day"] == "q"])
            else:
                assert survive > 2
                break
            put(table, "q", ts=3)
            run(table)
            assert remaining_partitions(table) == {"q"}


def test_a_run_that_finds_nothing_reads_little_and_writes_nothing() -> None:
    table = made(policy("p*"))
    put(table, *(f"p{n}" for n in range(20)))
    put(table, *(f"q{n}" for n in range(20)))
    wait(table, 20)
    put(table, "p0", ts=2)
    renewed = clock_of(table).now_ms()
    for n in range(1, 20):
        touch_last_update_time(table.storage, f"p{n}", format_epoch_ms(renewed, UTC))
    counting = CountingStorage(table.storage)
    assert isinstance(run(with_storage(table, counting)), Skip)
    assert not counting.calls.keys() & {"create", "replace", "delete", "delete_many"}
    read = [path for name, path in counting.touched if name == "read_many"]
    metadata = [path for path in read if path.endswith(PARTITION_METADATA)]
    assert sorted(metadata) == sorted(f"p{n}/{PARTITION_METADATA}" for n in range(1, 20))
    assert not [path for _, path in counting.touched if "history" in path]


def test_a_conflict_that_does_not_end_is_reported() -> None:
    table = made()
    put(table, "p")
    wait(table, 11)
    service = service_by_name("ttl")

    def raise_conflict(self: Any, job: Any, plan: Any) -> Any:
        raise ConflictError("somebody else won")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(service), "execute", raise_conflict)
        with pytest.raises(ConflictError, match="somebody else won"):
            run(table)
