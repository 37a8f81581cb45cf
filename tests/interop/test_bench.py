"""A small race against real Hudi: both hold the same rows, and the ratio comes out."""

from __future__ import annotations

from pathlib import Path

from bench.__main__ import race
from bench.plan import WORKLOADS
from bench.report import all_ratios
from races import small_race

RACED = ("upsert_spread_mor", "delete")


def test_lakewright_and_real_hudi_end_with_the_same_rows(tmp_path: Path) -> None:
    workloads = [workload for workload in WORKLOADS if workload.name in RACED]
    outcome = race(small_race(tmp_path, 7_000, workloads, ["lakewright", "hudi"]))
    assert outcome.failures == ()
    assert [check for check in outcome.checks if not check.agrees] == []
    assert len(outcome.checks) == 2 * len(RACED)
    ratios = all_ratios(outcome.measurements)
    assert all(ratios[name]["hudi"] > 0 for name in RACED)
