"""Base rows read as they are, but for those that log files have changed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lakewright.model.file_group import BaseFile, FileSlice, LogFile
from lakewright.model.merge import MergeRule
from lakewright.scan import scan_plan as plans
from lakewright.scan.planner import plan_snapshot
from lakewright.scan.scan_plan import FILE, ROW, ScanPlan, decode_plan, encode_plan
from lakewright.scan.slice_reader import read_overwritten_rows, read_slices, read_updated_rows
from lakewright.table.snapshot import load_snapshot
from support.tables import WrittenTable, row

DAYS = ("2026-01-01", "2026-01-02")
BUCKETS = {"hoodie.index.type": "BUCKET", "hoodie.bucket.index.num.buckets": "2"}


@pytest.fixture(autouse=True)
def _small_masks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plans, "_MIN_MASKED_BYTES", 0)


def rows_of(batches: Iterable[pa.RecordBatch]) -> Counter[str]:
    return Counter(str(record) for batch in batches for record in batch.to_pylist())


def masked_by_hand(table: WrittenTable, plan: ScanPlan) -> Counter[str]:
    """What a scan of the base files, without the overwritten rows, and the changed rows are."""
    positions: dict[str, set[int]] = {}
    for batch in read_overwritten_rows(table.storage, plan):
        assert batch.schema == plan.overwritten_schema
        for position in batch.to_pylist():
            positions.setdefault(position[FILE], set()).add(position[ROW])
    records = rows_of(read_updated_rows(table.storage, plan))
    for item in plan.slices:
        assert item.base is not None
        with table.storage.open_input(item.path(item.base)) as source:
            stored = pq.read_table(source, columns=list(plan.columns)).to_pylist()
        overwritten = positions.get(item.base.name, set())
        records.update(
            str(record) for number, record in enumerate(stored) if number not in overwritten
        )
    return records


def history(**create: object) -> WrittenTable:
    # Masks are for base files that are larger than their logs: a filter of the keys makes them so.
    large = {"hoodie.parquet.bloom.filter.enabled": "true"}
    table = WrittenTable(defaults=large).create("MERGE_ON_READ", **create)  # type: ignore[arg-type]
    table.write("BULK_INSERT", [row(f"k{n}", 5, "first", DAYS[n % 2]) for n in range(20)])
    table.upsert([row(f"k{n}", 6, "newer", DAYS[n % 2]) for n in range(4)])
    table.upsert([row(f"k{n}", 4, "late", DAYS[n % 2]) for n in range(2, 8)])
    table.write("DELETE", [row(f"k{n}", day=DAYS[n % 2]) for n in (0, 9)])
    return table


TABLES: dict[str, Callable[[], WrittenTable]] = {
    "by event time": history,
    "by commit time": lambda: history(ordering=()),
    "by buckets, where new keys go into log files": lambda: history(options=BUCKETS),
    "without partitions": lambda: history(partition_by=()),
}


@pytest.mark.parametrize("make", TABLES.values(), ids=list(TABLES))
def test_remaining_and_updated_rows_are_the_merged_rows(make: Callable[[], WrittenTable]) -> None:
    table = make()
    plan = plan_snapshot(load_snapshot(table.storage))
    masked = decode_plan(encode_plan(plan.masked))
    assert len(masked.slices) == len([item for item in plan.slices if item.logs]) > 0
    assert not plan.merge_on_read.slices
    merged = rows_of(read_slices(table.storage, masked))
    assert masked_by_hand(table, masked) == merged
    assert len(table.rows()) == 18


def test_overwritten_rows_have_their_partition_if_the_query_has_it() -> None:
    plan = plan_snapshot(load_snapshot(history().storage))
    assert plan.masked.overwritten_schema.names == [ROW, FILE, "day"]
    assert replace(plan, columns=("id",)).masked.overwritten_schema.names == [ROW, FILE]


def slice_of(base: int, *logs: int, partition: str = "", file_id: str = "") -> FileSlice:
    file_id = file_id or f"f{base}-{logs}"
    return FileSlice(
        partition,
        file_id,
        "20260101000000000",
        BaseFile(file_id, "0-0-0", "20260101000000000", size=base) if base else None,
        tuple(
            LogFile(file_id, "20260101000000001", n + 1, "0-0-0", size=size)
            for n, size in enumerate(logs)
        ),
    )


@dataclass(frozen=True)
class Case:
    slices: tuple[FileSlice, ...]
    masked: int
    least: int = 0
    most: int = 1000
    commits: frozenset[str] | None = None
    names: tuple[str, ...] = ("_hoodie_record_key", "id")


CASES = {
    "few changes and a large base file": Case((slice_of(400, 50, 50),), 1),
    "as many changes as rows": Case((slice_of(400, 101),), 0),
    "no log files": Case((slice_of(400),), 0),
    "no base file": Case((slice_of(0, 10),), 0),
    "too little to be worth it": Case((slice_of(400, 10),), 0, least=411),
    "too much to be sent around": Case((slice_of(800, 60), slice_of(800, 50)), 1, most=100),
    "files of the same name in two partitions": Case(
        tuple(slice_of(400, 50, partition=name, file_id="f") for name in ("p", "q")), 0
    ),
    "only the rows of some instants": Case((slice_of(400, 50),), 0, commits=frozenset({"1"})),
    "a column that hides Spark's own": Case(
        (slice_of(400, 50),), 0, names=("_hoodie_record_key", "_metadata")
    ),
}


@pytest.mark.parametrize("case", CASES.values(), ids=list(CASES))
def test_when_a_mask_is_worth_it(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plans, "_MIN_MASKED_BYTES", case.least)
    monkeypatch.setattr(plans, "_MAX_MASKED_LOG_BYTES", case.most)
    schema = pa.schema([pa.field(name, pa.string()) for name in case.names])
    plan = ScanPlan(schema, case.names, case.slices, MergeRule(), case.commits)
    assert len(plan.masked.slices) == case.masked
    both = [*plan.base_only.slices, *plan.masked.slices, *plan.merge_on_read.slices]
    assert sorted(both, key=repr) == sorted(case.slices, key=repr)
