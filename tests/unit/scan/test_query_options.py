"""Queries described by options: the bounds of incremental ranges."""

from __future__ import annotations

import pytest

from lakewright.errors import InvalidError
from lakewright.model.instant import bound_of_range
from lakewright.scan.options import stream_settings
from lakewright.scan.query_options import plan_query, read_settings
from lakewright.table.snapshot import load_snapshot
from lakewright.testing.clock import ManualClock
from lakewright.testing.local_reads import read_cdc_plan, read_plan
from support.tables import NO_SERVICES, WrittenTable, row

BEGIN = "hoodie.datasource.read.begin.instanttime"
END = "hoodie.datasource.read.end.instanttime"
FORMAT = "hoodie.datasource.query.incremental.format"
INCREMENTAL = {"hoodie.datasource.query.type": "incremental"}
ONE, TWO = "20260101000001", "20260101000002"

# With 14 digits a bound is before every commit of its second, as in real Hudi, see
# tests/interop/test_range_bounds.py.
BOUNDS = {
    "a second begins with its commits": ({BEGIN: ONE}, "k1 k2 k3"),
    "and its milliseconds are exact": ({BEGIN: f"{ONE}001"}, "k2 k3"),
    "a second ends before its commits": ({BEGIN: "000", END: ONE}, "k0"),
    "from second to second": ({BEGIN: ONE, END: TWO}, "k1 k2"),
    "the same second twice holds nothing": ({BEGIN: ONE, END: ONE}, ""),
    "from a commit of a second to the next": ({BEGIN: f"{ONE}001", END: TWO}, "k2"),
}


def written() -> WrittenTable:
    """Commits at 0.001, 1.001, 1.999 and 2.001 seconds."""
    clock = ManualClock()
    table = WrittenTable(clock=clock, options=NO_SERVICES)
    table.create(options={"hoodie.table.cdc.enabled": "true"})
    start_ms = clock.now_ms()
    for number, ms in enumerate((0, 1000, 1998, 2000)):
        clock.advance(start_ms + ms - clock.now_ms())
        table.upsert([row(f"k{number}")])
    return table


@pytest.mark.parametrize(("bounds", "expected"), BOUNDS.values(), ids=list(BOUNDS))
def test_bounds_of_14_digits(bounds: dict[str, str], expected: str) -> None:
    table = written()
    snapshot = load_snapshot(table.storage)
    plan = plan_query(snapshot, read_settings({**INCREMENTAL, **bounds}))
    rows = read_plan(table.storage, plan).to_pylist()  # type: ignore[arg-type]
    assert " ".join(sorted(record["id"] for record in rows)) == expected
    plan = plan_query(snapshot, read_settings({**INCREMENTAL, **bounds, FORMAT: "cdc"}))
    changes = read_cdc_plan(table.storage, plan)  # type: ignore[arg-type]
    assert changes.num_rows == len(expected.split())


@pytest.mark.parametrize("options", [{}, {END: TWO}, {FORMAT: "cdc"}], ids=["bare", "end", "cdc"])
def test_a_range_without_a_begin_is_an_error(options: dict[str, str]) -> None:
    with pytest.raises(InvalidError, match=r"hoodie\.datasource\.read\.begin\.instanttime"):
        read_settings({**INCREMENTAL, **options})


FULL = {
    "17 digits are a completion time": ("20260101000001234", "20260101000001234"),
    "14 are the moment before their second": ("20260101000001", "20260101000000999"),
    "also over a year": ("20260101000000", "20251231235959999"),
    "what is no date sorts as its digits": ("99999999999999", "99999999999999000"),
}


@pytest.mark.parametrize(("text", "expected"), FULL.values(), ids=list(FULL))
def test_bounds_in_full(text: str, expected: str) -> None:
    assert bound_of_range(text) == expected


def test_a_stream_starts_with_the_commits_of_a_second() -> None:
    settings = stream_settings({"hoodie.datasource.streaming.startoffset": ONE})
    assert settings.start == "20260101000000999"
