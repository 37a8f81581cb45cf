"""Writers that overlap and complete in another order: all readers find the same in every range."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import combinations, pairwise
from pathlib import Path

import pyarrow as pa
import pytest
from hudi import HudiQueryType, HudiReadOptions, HudiTableBuilder
from real_hudi import RealHudi

from lakewright.scan.planner import plan_changes
from lakewright.storage.local import LocalStorage
from lakewright.table.snapshot import Snapshot, load_snapshot
from lakewright.testing.clock import ManualClock
from lakewright.testing.local_reads import read_plan
from support.golden import as_json
from support.soak import sized, some
from support.tables import NO_SERVICES, WrittenTable, row

SEVERAL = {
    **NO_SERVICES,
    "hoodie.write.concurrency.mode": "OPTIMISTIC_CONCURRENCY_CONTROL",
    "hoodie.time.generator.max_expected_clock_skew_ms": "1",
}
KINDS = {"copy on write": "COPY_ON_WRITE", "merge on read": "MERGE_ON_READ"}
BEGINNING = "000"


def overlapping(table: WrittenTable, depth: int = 0) -> None:
    """Each writer stands still while the next ones begin and complete; then it updates again."""
    day = f"day{depth}"
    first = [row("a", 1, f"first of {depth}", day), row("b", 1, f"first of {depth}", day)]
    again = [row("b", 2, f"again of {depth}", day), row("c", 2, f"again of {depth}", day)]
    table.upsert(first, before_commit=lambda: overlapping(table, depth + 1) if depth < 2 else None)
    table.upsert(again, before_commit=lambda: overlapping(table, 3) if depth == 0 else None)


def hudi_rs_rows(path: Path, since: str, until: str) -> list[str]:
    options = HudiReadOptions().with_query_type(HudiQueryType.Incremental)
    if since != BEGINNING:
        options = options.with_start_timestamp(since)
    options = options.with_end_timestamp(until)
    reader = HudiTableBuilder.from_base_uri(str(path)).build()
    batches = [pa.record_batch(batch) for batch in reader.read(options)]
    return sorted(as_json(record) for batch in batches for record in batch.to_pylist())


def real_hudi_options(times: Sequence[tuple[str, str]]) -> list[dict[str, str]]:
    return [
        {
            "hoodie.metadata.enable": "false",
            "hoodie.datasource.query.type": "incremental",
            "hoodie.datasource.read.begin.instanttime": since,
            "hoodie.datasource.read.end.instanttime": until,
        }
        for since, until in times
    ]


def written_after(snapshot: Snapshot, until: str) -> set[str]:
    later = [i for i in snapshot.timeline.completed_writes if (i.completed_at or "") > until]
    return {day for commit in snapshot.commits(later) for day in commit.partitions}


@pytest.mark.parametrize("kind", some(list(KINDS.values()), 1), ids=some(list(KINDS), 1))
def test_every_range_holds_the_same_rows(real_hudi: RealHudi, tmp_path: Path, kind: str) -> None:
    storage = LocalStorage(f"{tmp_path}/table")
    table = WrittenTable(storage, ManualClock(), SEVERAL).create(kind)
    overlapping(table)
    snapshot = load_snapshot(storage)
    writes = snapshot.timeline.by_completion
    assert list(writes) != sorted(writes, key=lambda instant: instant.requested_at)
    times = [BEGINNING, *(instant.completed_at or "" for instant in writes)]
    ranges = sized([*pairwise(times), (times[0], times[-1])], soak=list(combinations(times, 2)))
    theirs = real_hudi.read_all(tmp_path / "table", real_hudi_options(ranges))
    for (since, until), rows in zip(ranges, theirs, strict=True):
        begin = None if since == BEGINNING else since
        plan = plan_changes(snapshot, since=begin, until=until).plan
        ours = sorted(map(as_json, read_plan(storage, plan).to_pylist()))
        assert (since, until, sorted(map(as_json, rows))) == (since, until, ours)
        rust_rows = hudi_rs_rows(tmp_path / "table", since, until)
        assert not set(rust_rows) - set(ours)
        # hudi-rs leaves out rows of files that a write with a later completion wrote anew.
        anew = written_after(snapshot, until)
        assert {json.loads(text)["day"] for text in set(ours) - set(rust_rows)} <= anew
