"""The bounds of incremental queries mean what they mean in real Hudi: 14 digits, and no begin."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest
from real_hudi import RealHudi, RealHudiError

from lakewright.errors import InvalidError
from lakewright.scan.query_options import plan_query, read_settings
from lakewright.storage.local import LocalStorage
from lakewright.table.snapshot import load_snapshot
from lakewright.testing.clock import ManualClock
from lakewright.testing.local_reads import read_cdc_plan, read_plan
from support.tables import NO_SERVICES, WrittenTable, row

pytestmark = pytest.mark.sampled(2)

BEGIN = "hoodie.datasource.read.begin.instanttime"
END = "hoodie.datasource.read.end.instanttime"
INCREMENTAL = {"hoodie.datasource.query.type": "incremental"}
FORMATS = {
    "latest state": {},
    "change data": {"hoodie.datasource.query.incremental.format": "cdc"},
}
TYPES = ("COPY_ON_WRITE", "MERGE_ON_READ")
START_MS = 1_767_225_600_000  # 2026-01-01T00:00:00Z
ZERO, ONE, TWO = "20260101000000", "20260101000001", "20260101000002"
RANGES = [
    {BEGIN: ZERO},
    {BEGIN: ONE},
    {BEGIN: TWO},
    {BEGIN: "000", END: ZERO},
    {BEGIN: "000", END: ONE},
    {BEGIN: "000", END: TWO},
    {BEGIN: ZERO, END: ONE},
    {BEGIN: ONE, END: ONE},
    {BEGIN: ONE, END: TWO},
    {BEGIN: f"{ZERO}401", END: ONE},
    {BEGIN: f"{ZERO}001", END: TWO},
    {BEGIN: f"{ZERO}001", END: f"{ONE}999"},
]


def written(path: Path, table_type: str) -> WrittenTable:
    """A table with commits early, in the middle and late in a second; one of them at its end."""
    clock = ManualClock(START_MS)
    table = WrittenTable(LocalStorage(str(path)), clock, NO_SERVICES)
    table.create(table_type, options={"hoodie.table.cdc.enabled": "true"})
    for number, ms in enumerate((0, 400, 1000, 1400, 1998, 3000)):
        clock.advance(START_MS + ms - clock.now_ms())
        table.upsert([row(f"k{number}")])
    return table


def ids(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    """The keys of rows or changes."""
    return sorted(r["id"] if "id" in r else json.loads(r["after"])["id"] for r in rows)


def ours(table: WrittenTable, options: Mapping[str, str]) -> list[str]:
    plan = plan_query(load_snapshot(table.storage), read_settings(options))
    read = read_plan if "cdc" not in options.values() else read_cdc_plan
    return ids(read(table.storage, plan).to_pylist())  # type: ignore[arg-type]


@pytest.mark.parametrize("table_type", TYPES)
def test_bounds_of_14_digits_mean_what_they_mean_in_hudi(
    real_hudi: RealHudi, tmp_path: Path, table_type: str
) -> None:
    table = written(tmp_path / "table", table_type)
    queries = [{**INCREMENTAL, **form, **bounds} for form in FORMATS.values() for bounds in RANGES]
    off = {"hoodie.metadata.enable": "false"}
    theirs = real_hudi.read_all(tmp_path / "table", [{**off, **query} for query in queries])
    for query, rows in zip(queries, theirs, strict=True):
        assert (query, ours(table, query)) == (query, ids(rows))


@pytest.mark.parametrize("options", FORMATS.values(), ids=list(FORMATS))
def test_a_range_without_a_begin_is_an_error_in_both(
    real_hudi: RealHudi, tmp_path: Path, options: dict[str, str]
) -> None:
    table = written(tmp_path / "table", "COPY_ON_WRITE")
    for query in ({**INCREMENTAL, **options}, {**INCREMENTAL, **options, END: TWO}):
        with pytest.raises(RealHudiError, match=BEGIN):
            real_hudi.read(tmp_path / "table", query)
        with pytest.raises(InvalidError, match=BEGIN):
            ours(table, query)
