"""A race on a few thousand rows, against the limit alone."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

from bench.__main__ import race, write_results
from bench.plan import WORKLOADS

from support.benchmarks import small_race

CHANGES = ("load", "upsert_spread_cow", "upsert_hot", "delete", "scan", "scan_ro")


def test_a_small_race_measures_checks_and_reports(tmp_path: Path) -> None:
    order = small_race(tmp_path, 7_000, WORKLOADS, ["lakewright"])
    outcome = race(order)
    page = write_results(outcome, tmp_path / "results")

    assert outcome.failures == ()
    assert [check for check in outcome.checks if not check.agrees] == []
    raced = {workload.name for workload in WORKLOADS if workload.partitions <= 100}
    planned = {workload.name for workload in WORKLOADS if workload.partitions}
    assert {check.workload for check in outcome.checks} == raced - planned
    result = json.loads(page.with_suffix(".json").read_text("utf-8"))
    assert set(result["medians"]) == raced
    assert all(result["ratios"][name]["limit"] > 0 for name in CHANGES)
    assert result["peak_bytes"]["load"]["lakewright"] > 2**20
    assert "| `load` |" in page.read_text("utf-8")
    assert ElementTree.parse(page.with_suffix(".svg")).getroot().tag.endswith("svg")
    assert list(order.work.iterdir()) == []
