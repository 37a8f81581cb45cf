"""A race on a few thousand rows, against the limit alone."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import pyarrow.parquet as pq
from bench.__main__ import Order, race, write_results
from bench.plan import WORKLOADS, Size, chosen_systems
from lineitems import lineitems

CHANGES = ("load", "upsert_spread_cow", "upsert_hot", "delete", "scan", "scan_ro")


def test_a_small_race_measures_checks_and_reports(tmp_path: Path) -> None:
    rows = tmp_path / "lineitem.parquet"
    pq.write_table(lineitems(0, 14_000), rows)
    order = Order(
        size=Size(rounds=1, commits=2, scans=1),
        workloads=WORKLOADS,
        systems=chosen_systems(["lakewright"]),
        cores=2,
        memory="1g",
        work=tmp_path / "work",
        keep=False,
        lineitem=(rows,),
        warm=False,
    )
    outcome = race(order)
    page = write_results(outcome, tmp_path / "results")

    assert outcome.failures == ()
    assert [check for check in outcome.checks if not check.agrees] == []
    assert {check.workload for check in outcome.checks} == {each.name for each in WORKLOADS}
    result = json.loads(page.with_suffix(".json").read_text("utf-8"))
    assert set(result["medians"]) == {workload.name for workload in WORKLOADS}
    assert all(result["ratios"][name]["limit"] > 0 for name in CHANGES)
    assert result["peak_bytes"]["load"]["lakewright"] > 2**20
    assert "| `load` |" in page.read_text("utf-8")
    assert ElementTree.parse(page.with_suffix(".svg")).getroot().tag.endswith("svg")
    assert list(order.work.iterdir()) == []
