"""A table reads the same wherever its files are; what that costs in storage calls is counted."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from lakewright.scan.planner import plan_changes, plan_snapshot
from lakewright.storage.factory import storage_for
from lakewright.storage.memory import MemoryStorage
from lakewright.table.snapshot import load_snapshot
from lakewright.testing.local_reads import read_plan
from lakewright.testing.s3 import moto_server
from lakewright.testing.storage import CountingStorage
from support.golden import GoldenTables, as_json, queries, upload

TABLES = ("cow_hive_complex", "mor_avro", "cow_archived")


@pytest.fixture(scope="module")
def bucket() -> Iterator[dict[str, str]]:
    with moto_server() as server:
        server.create_bucket("lake")
        yield server.hadoop_options()


@pytest.mark.parametrize("name", TABLES)
@pytest.mark.parametrize("place", ["memory", "s3"])
def test_reads_the_same(
    place: str, name: str, golden: GoldenTables, bucket: dict[str, str]
) -> None:
    empty = (
        MemoryStorage.fresh() if place == "memory" else storage_for(f"s3a://lake/{name}", bucket)
    )
    storage = upload(golden[name], empty)
    rows = read_plan(storage, plan_snapshot(load_snapshot(storage))).to_pylist()
    assert sorted(map(as_json, rows)) == sorted(queries(name)[0].rows or ())


def counted(name: str, golden: GoldenTables) -> CountingStorage:
    return CountingStorage(upload(golden[name], MemoryStorage.fresh()))


def test_planning_a_snapshot_costs_few_storage_calls(golden: GoldenTables) -> None:
    storage = counted("mor_avro", golden)
    plan_snapshot(load_snapshot(storage))
    # Properties and the newest commit; the timeline and the table's folder; its top folders, one
    # listing of each of them, and the folder of markers.
    assert dict(storage.calls) == {
        "read": 1,
        "read_many": 1,
        "list_files": 2,
        "list_folders": 2,
        "list_tree": 3,
    }


def test_planning_changes_lists_only_touched_partitions(golden: GoldenTables) -> None:
    storage = counted("cow_overwrite", golden)
    snapshot = load_snapshot(storage)
    second = snapshot.timeline.by_completion[1]
    storage.reset()
    plan = plan_changes(
        snapshot, since=snapshot.timeline.by_completion[0].completed_at, until=second.completed_at
    )
    listed = {path for _, path in storage.touched if not path.startswith(".hoodie")}
    assert {item.partition for item in plan.plan.slices} == {"2026-01-01"}
    assert listed == {"2026-01-01"}
