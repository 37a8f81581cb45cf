"""Every table made by real Hudi reads row for row as real Hudi reads it."""

from __future__ import annotations

import pytest

from lakewright.errors import InvalidError
from lakewright.scan.planner import plan_changes, plan_read_optimized, plan_snapshot
from lakewright.scan.query_options import begin_of_range, end_of_range
from lakewright.scan.scan_plan import ScanPlan
from lakewright.storage.factory import storage_for
from lakewright.table.snapshot import Snapshot, load_snapshot
from lakewright.testing.local_reads import read_plan
from support.golden import NAMES, GoldenTables, Query, as_json, queries

pytestmark = pytest.mark.sampled(2)


def plan(snapshot: Snapshot, query: Query) -> ScanPlan:
    if query.kind == "changes":
        since, until = begin_of_range(query.since), end_of_range(query.until)
        return plan_changes(snapshot, since=since, until=until).plan
    if query.kind == "read_optimized":
        return plan_read_optimized(snapshot)
    return plan_snapshot(snapshot, as_of=query.as_of)


CASES = [(name, query) for name in NAMES for query in queries(name)]


@pytest.mark.parametrize(("name", "query"), CASES, ids=[f"{n}-{q}" for n, q in CASES])
def test_reads_as_real_hudi_does(name: str, query: Query, golden: GoldenTables) -> None:
    storage = storage_for(golden[name])
    snapshot = load_snapshot(storage)
    if query.rows is None:
        with pytest.raises(InvalidError, match="cleaned"):
            plan(snapshot, query)
        return
    rows = read_plan(storage, plan(snapshot, query)).to_pylist()
    assert sorted(as_json(row) for row in rows) == sorted(query.rows)


def test_there_are_tables() -> None:
    assert len(NAMES) >= 28
    assert len(CASES) >= 300
