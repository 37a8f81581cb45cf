"""Real Hudi in a small race: it takes part, and ends with the rows that it should have."""

from __future__ import annotations

from pathlib import Path

from bench.__main__ import race
from bench.plan import WORKLOADS

from support.benchmarks import small_race

RACED = ("upsert_spread_mor", "delete")


def test_real_hudi_takes_part_and_ends_with_the_rows_of_the_ledger(tmp_path: Path) -> None:
    """So does Lakewright, in the tests of Spark; and ratios need no race."""
    workloads = [workload for workload in WORKLOADS if workload.name in RACED]
    outcome = race(small_race(tmp_path, 7_000, workloads, ["hudi"]))
    assert outcome.failures == ()
    assert [check for check in outcome.checks if not check.agrees] == []
    assert len(outcome.checks) == len(RACED)
    assert {
        measurement.workload for measurement in outcome.measurements if measurement.system == "hudi"
    } == {*RACED}
