"""Queries on partitions by name: only these are listed, and only these are read."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pytest

from lakewright.scan.planner import plan_read_optimized, plan_snapshot
from lakewright.scan.scan_plan import ScanPlan
from lakewright.storage.memory import MemoryStorage
from lakewright.table.snapshot import load_snapshot
from lakewright.testing.storage import CountingStorage
from lakewright.testing.table_builder import TableBuilder

SCHEMA = pa.schema([("id", pa.string()), ("day", pa.string()), ("ts", pa.int64())])
DAYS = ("d1", "d2", "d3")

CASES: dict[str, tuple[list[str] | None, list[str]]] = {
    "without names the whole table is read": (None, ["d1", "d2", "d3"]),
    "one partition by name": (["d2"], ["d2"]),
    "a name that is given twice counts once": (["d3", "d1", "d3"], ["d1", "d3"]),
    "a partition that is not there has no rows": (["d9"], []),
    "no names, no rows": ([], []),
}


@pytest.fixture
def storage() -> CountingStorage:
    counting = CountingStorage(MemoryStorage.fresh())
    builder = TableBuilder(counting, SCHEMA).create()
    rows = {day: pa.Table.from_pylist([{"id": "a", "day": day, "ts": 1}], SCHEMA) for day in DAYS}
    builder.commit({(day, f"f-{day}"): rows[day] for day in DAYS})
    counting.reset()
    return counting


@pytest.mark.parametrize("query", [plan_snapshot, plan_read_optimized], ids=lambda q: q.__name__)
@pytest.mark.parametrize(("names", "expected"), CASES.values(), ids=list(CASES))
def test_a_query_on_partitions(
    storage: CountingStorage,
    query: Callable[..., ScanPlan],
    names: list[str] | None,
    expected: list[str],
) -> None:
    plan = query(load_snapshot(storage), partitions=names)
    assert [item.partition for item in plan.slices] == expected


def test_only_the_named_partition_is_listed(storage: CountingStorage) -> None:
    plan_snapshot(load_snapshot(storage), partitions=["d2"])
    listed = [path for method, path in storage.touched if method.startswith("list")]
    assert listed == [".hoodie/timeline", "d2", ".hoodie/.temp"]
