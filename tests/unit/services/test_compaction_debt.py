"""What a table owes, and why."""

from __future__ import annotations

import pytest

from lakewright.errors import InvalidError
from lakewright.model.instant import Instant
from lakewright.services.compaction_debt import CompactionDebt, load_debt
from lakewright.table.snapshot import load_snapshot
from support.tables import WrittenTable, row

DAYS = ("2026-01-01", "2026-01-02")
BY_HAND = {"hoodie.compact.inline": "false"}
AT_ONCE = {"hoodie.compact.inline.max.delta.commits": "1"}


def debt(table: WrittenTable) -> CompactionDebt:
    return load_debt(table.services().planning_context(load_snapshot(table.storage)))


def table_with_logs() -> WrittenTable:
    table = WrittenTable(options=BY_HAND).create("MERGE_ON_READ")
    table.upsert([row(f"k{n}", 1, "first", DAYS[n % 2]) for n in range(4)])
    table.upsert([row("k0", 2, "second", DAYS[0])])
    table.upsert([row("k0", 3, "third", DAYS[0]), row("k1", 3, "third", DAYS[1])])
    return table


def test_debt_is_reported_by_partition_the_oldest_first() -> None:
    table = table_with_logs()
    commits = load_snapshot(table.storage).timeline.by_completion
    owed = debt(table)
    assert [(d.partition, d.log_files, d.oldest) for d in owed.partitions] == [
        (DAYS[0], 2, commits[1].completed_at),
        (DAYS[1], 1, commits[2].completed_at),
    ]
    assert owed.log_files == 3
    assert owed.log_bytes == sum(d.log_bytes for d in owed.partitions) > 0
    assert owed.oldest == commits[1].completed_at
    assert {d.reason for d in owed.partitions} == {"no compaction was planned yet"}


def test_nothing_is_owed_after_a_compaction() -> None:
    table = table_with_logs()
    assert table.services(AT_ONCE).run("compaction")
    assert not debt(table)
    table.upsert([row("k1", 4, "fourth", DAYS[1])])
    (owed,) = debt(table).partitions
    assert (owed.partition, owed.log_files, owed.reason) == (
        DAYS[1],
        1,
        "written since the last plan",
    )


def test_a_filter_and_a_pending_plan_are_named() -> None:
    table = table_with_logs()
    instant = table.services(only(DAYS[0])).schedule("compaction")
    assert isinstance(instant, Instant)
    reasons = {d.partition: d.reason for d in debt(table).partitions}
    assert reasons[DAYS[0]] == f"held by compaction {instant.requested_at}"
    assert "partition_regex" in reasons[DAYS[1]]
    table.services().execute(instant.requested_at)
    assert [d.partition for d in debt(table).partitions] == [DAYS[1]]


@pytest.mark.parametrize("end", ["completed", "rolled back"])
def test_a_plan_that_is_no_longer_pending_holds_nothing(end: str) -> None:
    table = table_with_logs()
    pending = table.services(only(DAYS[0])).schedule("compaction")
    assert isinstance(pending, Instant)
    table.upsert([row("k0", 4, "fourth", DAYS[0])])
    assert table.services(AT_ONCE).run("compaction")
    (owed,) = debt(table).partitions
    assert owed.reason == f"held by compaction {pending.requested_at}"
    if end == "completed":
        table.services().execute(pending.requested_at)
    else:
        table.writer().rollback(pending.requested_at)
    (owed,) = debt(table).partitions
    assert owed.partition == DAYS[0]
    assert owed.reason == (
        f"skipped by the last plan, when compaction {pending.requested_at} was pending"
    )


def only(day: str) -> dict[str, str]:
    return {
        "hoodie.compaction.strategy": "partition_regex",
        "hoodie.compaction.partition.path.regex": day,
    }


def test_a_copy_on_write_table_has_no_debt() -> None:
    table = WrittenTable().create("COPY_ON_WRITE")
    table.upsert([row("k0")])
    with pytest.raises(InvalidError, match="copy-on-write"):
        debt(table)
