"""Writers that overlap, and a reader that comes in between: what completes late is not lost.

C1  [------]
C2        [-----------++++]
C3           [----]
                   ^ read        ^ read again
"""

from __future__ import annotations

import pytest

from lakewright.scan.planner import plan_changes, plan_snapshot
from lakewright.table.snapshot import load_snapshot
from lakewright.testing.local_reads import read_plan
from support.tables import NO_SERVICES, Row, WrittenTable, row

SEVERAL = {**NO_SERVICES, "hoodie.write.concurrency.mode": "OPTIMISTIC_CONCURRENCY_CONTROL"}
KINDS = {"copy on write": "COPY_ON_WRITE", "merge on read": "MERGE_ON_READ"}
each_kind = pytest.mark.parametrize("kind", KINDS.values(), ids=list(KINDS))

C1 = [row("a", 1, "C1", "one"), row("b", 1, "C1", "two")]
C2 = [row("a", 2, "C2", "one"), row("c", 2, "C2", "one")]
C3 = [row("b", 3, "C3", "two"), row("d", 3, "C3", "two")]


class Reader:
    """A reader that continues from where its last read ended."""

    def __init__(self, table: WrittenTable, since: str | None = None) -> None:
        self.table = table
        self.checkpoint = since

    def read(self) -> list[str]:
        plan = plan_changes(load_snapshot(self.table.storage), since=self.checkpoint)
        self.checkpoint = plan.context.checkpoint
        return notes(read_plan(self.table.storage, plan.plan).to_pylist())


def notes(rows: list[Row]) -> list[str]:
    return sorted(f"{record['id']} {record['note']}" for record in rows)


def overlapping(kind: str, reader_since_c1: bool) -> tuple[WrittenTable, list[list[str]], Reader]:
    """C2 is at work while C3 begins, completes, and is read."""
    table = WrittenTable(options=SEVERAL).create(kind)
    first = table.upsert(C1)
    reader = Reader(table, first.completed_at if reader_since_c1 else None)
    reads = []

    def other_process() -> None:
        table.upsert(C3)
        reads.append(reader.read())

    table.upsert(C2, before_commit=other_process)
    reads.append(reader.read())
    return table, reads, reader


@each_kind
def test_a_reader_that_read_the_first_gets_the_third_and_then_the_second(kind: str) -> None:
    table, reads, reader = overlapping(kind, reader_since_c1=True)
    assert reads == [["b C3", "d C3"], ["a C2", "c C2"]]
    assert reader.read() == []
    writes = load_snapshot(table.storage).timeline.by_completion
    assert [i.requested_at for i in writes] != sorted(i.requested_at for i in writes)


@each_kind
def test_a_reader_from_the_beginning_gets_each_version_once(kind: str) -> None:
    _, reads, reader = overlapping(kind, reader_since_c1=False)
    assert reads == [["a C1", "b C3", "d C3"], ["a C2", "c C2"]]
    assert reader.read() == []


@each_kind
def test_an_end_is_the_table_as_of_then(kind: str) -> None:
    table, _, _ = overlapping(kind, reader_since_c1=True)
    snapshot = load_snapshot(table.storage)
    first, third, second = snapshot.timeline.by_completion
    bounds = {first: ["a C1", "b C1"], third: ["a C1", "b C3", "d C3"]}
    for end, expected in bounds.items():
        plan = plan_changes(snapshot, until=end.completed_at)
        assert notes(read_plan(table.storage, plan.plan).to_pylist()) == expected
    whole = notes(read_plan(table.storage, plan_snapshot(snapshot)).to_pylist())
    plan = plan_changes(snapshot, until=second.completed_at)
    assert notes(read_plan(table.storage, plan.plan).to_pylist()) == whole


@each_kind
def test_only_the_partitions_of_the_range_are_listed(kind: str) -> None:
    table, _, _ = overlapping(kind, reader_since_c1=True)
    snapshot = load_snapshot(table.storage)
    first, third, _ = snapshot.timeline.by_completion
    plan = plan_changes(snapshot, since=first.completed_at, until=third.completed_at)
    assert {item.partition for item in plan.plan.slices} == {"two"}
