"""A key that was deleted, and written again while a compaction was pending, is found again."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from lakewright.errors import ConflictError
from lakewright.model.instant import Action, Instant
from lakewright.table.snapshot import load_snapshot
from support.tables import NO_SERVICES, WrittenTable, row

SEVERAL = {**NO_SERVICES, "hoodie.write.concurrency.mode": "OPTIMISTIC_CONCURRENCY_CONTROL"}
DUE = {"hoodie.compact.inline.max.delta.commits": "1"}
ELSEWHERE = {
    **DUE,
    "hoodie.compaction.strategy": "partition_regex",
    "hoodie.compaction.partition.path.regex": "elsewhere",
}
INDEXES = ("SIMPLE", "BLOOM")
OTHERS = [row(f"other{n}") for n in range(3)]


def planned_first(table: WrittenTable) -> None:
    """The plan is there when the key is written again, and executed after that."""
    plan = table.services(DUE).schedule("compaction")
    assert isinstance(plan, Instant)
    table.upsert([row("k", 2, "again")])
    assert table.services().execute(plan.requested_at)


def planned_during_write(table: WrittenTable) -> None:
    """The compaction begins and ends while the key is being written again."""
    table.upsert(
        [row("k", 2, "again")],
        {"hoodie.write.num.retries.on.conflict.failures": "1"},
        before_commit=lambda: _assert_ran(table.services(DUE).run("compaction")),
    )


def _assert_ran(result: object) -> None:
    assert result


MOMENTS = {"the plan was there before": planned_first, "during the write": planned_during_write}


def archived(table: WrittenTable) -> None:
    """Writes to another partition push the compaction into history."""
    keep = {
        "hoodie.clean.commits.retained": "1",
        "hoodie.keep.min.commits": "2",
        "hoodie.keep.max.commits": "3",
        "hoodie.clean.policy": "KEEP_LATEST_FILE_VERSIONS",
    }
    table.upsert([row("far", day="elsewhere")])
    for number in range(1, 6):
        table.upsert([row("far", number, day="elsewhere")])
        assert table.services(ELSEWHERE).run("compaction")
    before = load_snapshot(table.storage).timeline.completed(Action.COMMIT)[0]
    assert table.services(keep).run("archive")
    assert before.requested_at in load_snapshot(table.storage).archived_times


@pytest.mark.parametrize("index", INDEXES)
@pytest.mark.parametrize("again", MOMENTS.values(), ids=list(MOMENTS))
@pytest.mark.parametrize("later", [lambda table: None, archived], ids=["soon", "long after"])
def test_it_is_updated_and_deleted_where_it_is(
    index: str, again: Callable[[WrittenTable], None], later: Callable[[WrittenTable], None]
) -> None:
    options = {**SEVERAL, "hoodie.index.type": index}
    table = WrittenTable(options=options).create("MERGE_ON_READ")
    table.upsert([row("k"), *OTHERS])
    table.write("DELETE", [row("k")])
    again(table)
    later(table)
    table.upsert([row("k", 3, "third")])
    here = [record for record in table.rows() if record["day"] != "elsewhere"]
    assert here == [row("k", 3, "third"), *OTHERS]
    table.write("DELETE", [row("k", 4)])
    assert [record for record in table.rows() if record["day"] != "elsewhere"] == OTHERS


def test_two_writers_do_not_both_bring_a_deleted_key_back() -> None:
    options = {**SEVERAL, "hoodie.parquet.small.file.limit": "0"}
    table = WrittenTable(options=options).create("MERGE_ON_READ")
    table.upsert([row("k"), *OTHERS])
    table.write("DELETE", [row("k")])

    def others() -> None:
        _assert_ran(table.services(DUE).run("compaction"))
        table.upsert([row("k", 2, "theirs")])

    with pytest.raises(ConflictError, match="compacted away"):
        table.upsert([row("k", 3, "mine")], before_commit=others)
    assert table.rows() == [row("k", 2, "theirs"), *OTHERS]
    table.upsert([row("k", 3, "mine")])
    assert table.rows() == [row("k", 3, "mine"), *OTHERS]
