"""Tables made by real Hudi as sources: whatever the checkpoint, no row is passed over."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
import pytest

from lakewright.ingestion.checkpoints import INITIAL, Checkpoint, Version
from lakewright.ingestion.hudi_table import HoodieSourceIncrementalQueryRunner
from lakewright.ingestion.options import TableSourceSettings
from lakewright.model.instant import Instant
from lakewright.model.schema import COMMIT_TIME, RECORD_KEY
from lakewright.scan.planner import plan_snapshot
from lakewright.scan.scan_plan import ScanPlan
from lakewright.storage.factory import storage_for
from lakewright.table.snapshot import Snapshot, load_snapshot
from lakewright.testing.local_reads import read_plan
from support.golden import NAMES, GoldenTables

pytestmark = pytest.mark.sampled(2)

Versions = set[tuple[str, str]]


def rows_of(snapshot: Snapshot, plan: ScanPlan) -> Versions:
    """The keys of rows, each with the write it comes from."""
    key_plan = replace(plan, columns=(RECORD_KEY, COMMIT_TIME))
    table: pa.Table = read_plan(snapshot.storage, key_plan)
    return set(zip(table[RECORD_KEY].to_pylist(), table[COMMIT_TIME].to_pylist(), strict=True))


def chained(snapshot: Snapshot, after: Checkpoint) -> Versions:
    """All that comes after a checkpoint, two writes at a time."""
    settings = TableSourceSettings(num_instants=2)
    versions: Versions = set()
    while True:
        batch = HoodieSourceIncrementalQueryRunner(
            snapshot, after, settings, lambda plan: rows_of(snapshot, plan)
        ).run()
        versions |= batch.rows or set()
        if batch.checkpoint == after:
            return versions
        assert batch.checkpoint is not None
        assert after.version is Version.V1 or batch.checkpoint.text > after.text
        after = batch.checkpoint


@pytest.mark.parametrize("name", NAMES)
def test_no_row_is_passed_over(name: str, golden: GoldenTables) -> None:
    snapshot = load_snapshot(storage_for(golden[name]))
    rows = rows_of(snapshot, plan_snapshot(snapshot))
    writes: dict[str, Instant] = {
        i.requested_at: i for i in (*snapshot.archived, *snapshot.timeline.completed_writes)
    }
    assert chained(snapshot, Checkpoint(INITIAL, Version.V1)) == rows
    for reached in writes.values():
        completed_at = reached.completed_at or ""
        late = {row for row in rows if (writes[row[1]].completed_at or "") > completed_at}
        assert late <= chained(snapshot, Checkpoint(completed_at, Version.V2))
        behind = {row for row in rows if row[1] > reached.requested_at}
        old = chained(snapshot, Checkpoint(reached.requested_at, Version.V1))
        assert late | behind <= old
