"""Real Hudi's classes find in commits of ours where its S3 and GCS sources go on."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
from real_hudi import RealHudi

from lakewright.clock import SystemClock
from lakewright.engine.local import ArrowRows
from lakewright.ingestion.cloud.selection import ObjectPosition, requested_position
from lakewright.storage.local import LocalStorage
from lakewright.table.snapshot import load_snapshot
from lakewright.write.task import Operation
from support.tables import NO_SERVICES, WrittenTable, row

JOB = Path(__file__).with_name("checkpoint_job.py")


def table_at(path: Path) -> WrittenTable:
    path.mkdir()
    return WrittenTable(LocalStorage(str(path)), SystemClock(), NO_SERVICES).create()


def test_real_hudi_finds_the_requested_time_and_the_key_in_the_middle_of_a_commit(
    real_hudi: RealHudi, tmp_path: Path
) -> None:
    """A source takes a checkpoint of version 1 for a requested time, so it must be one."""
    events, target = table_at(tmp_path / "events"), table_at(tmp_path / "target")
    commits = [events.upsert([row(key)]) for key in ("a", "b", "c")]
    reached = ObjectPosition(commits[1].completed_at, "folder/b#2.json")
    instants = load_snapshot(events.storage).timeline.completed_writes
    checkpoint = reached.checkpoint(requested_position(reached, instants))
    rows = ArrowRows(pa.Table.from_pylist([row("a")], target.schema))
    target.writer().write(Operation.UPSERT, rows, extra=checkpoint.as_extra())

    found = real_hudi.job(JOB, tmp_path / "target")
    expected = f"{commits[1].instant}#folder/b#2.json"
    assert found["checkpoints"] == [["StreamerCheckpointV1", expected]]
    assert found["targets_v2"] == [
        ["S3EventsHoodieIncrSource", False],
        ["GcsEventsHoodieIncrSource", False],
        ["HoodieIncrSource", True],
    ]
