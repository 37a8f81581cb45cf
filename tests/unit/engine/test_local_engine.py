"""Reading in this process: every row once, no more than is wanted, and what pruning spares."""

from __future__ import annotations

import pyarrow as pa
import pytest

from lakewright.engine.local import plan_bytes, prune_partitions, read_local
from lakewright.scan.filters import parse_filter
from lakewright.scan.planner import plan_snapshot
from lakewright.scan.scan_plan import ScanPlan
from lakewright.table.snapshot import load_snapshot
from support.tables import NO_SERVICES, WrittenTable, row

DAYS = ("2026-01-01", "2026-01-02", "2026-01-03")


@pytest.fixture
def table() -> WrittenTable:
    made = WrittenTable(options=NO_SERVICES).create("MERGE_ON_READ")
    made.upsert([row(f"k{n}", n, "first", DAYS[n % 3]) for n in range(9)])
    made.upsert([row("k0", 20, "second", DAYS[0])])
    return made


def planned(table: WrittenTable) -> ScanPlan:
    return plan_snapshot(load_snapshot(table.storage))


def ids(batches: list[pa.RecordBatch]) -> list[str]:
    return sorted(key for batch in batches for key in batch.column("id").to_pylist())


def test_every_row_comes_once(table: WrittenTable) -> None:
    batches = list(read_local(table.storage, planned(table), columns=["id"]))
    assert ids(batches) == [f"k{n}" for n in range(9)]
    assert {tuple(batch.schema.names) for batch in batches} == {("id",)}


@pytest.mark.parametrize("limit", [0, 1, 4, 9, 100])
def test_a_limit_ends_the_reading(limit: int, table: WrittenTable) -> None:
    progress: list[int] = []
    batches = list(
        read_local(table.storage, planned(table), limit=limit, on_progress=progress.append)
    )
    assert sum(batch.num_rows for batch in batches) == min(limit, 9)
    assert len(progress) == {0: 0, 1: 1, 4: 2}.get(limit, 3)


def test_a_limit_counts_rows_that_pass(table: WrittenTable) -> None:
    plan = planned(table)
    chosen = parse_filter("ts >= 7", plan.schema)
    batches = list(read_local(table.storage, plan, row_filter=chosen, limit=2))
    assert sum(batch.num_rows for batch in batches) == 2


def test_a_filter_spares_partitions(table: WrittenTable) -> None:
    plan = planned(table)
    chosen = parse_filter(f"day = '{DAYS[1]}' and ts > 1", plan.schema)
    assert chosen is not None
    few = prune_partitions(plan, chosen)
    assert {item.partition for item in few.slices} == {DAYS[1]}
    assert 0 < plan_bytes(few) < plan_bytes(plan)
    assert ids(list(read_local(table.storage, few, row_filter=chosen))) == ["k4", "k7"]


def test_the_reported_bytes_are_those_that_were_planned(table: WrittenTable) -> None:
    progress: list[int] = []
    list(read_local(table.storage, planned(table), on_progress=progress.append))
    assert sum(progress) == plan_bytes(planned(table))
