"""A small race against real Hudi: both hold the same rows, and the ratio comes out."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
from bench.__main__ import Order, race
from bench.plan import WORKLOADS, Size, chosen_systems
from bench.report import all_ratios
from lineitems import lineitems

RACED = ("upsert_spread_mor", "delete")


def test_lakewright_and_real_hudi_end_with_the_same_rows(tmp_path: Path) -> None:
    rows = tmp_path / "lineitem.parquet"
    pq.write_table(lineitems(0, 7_000), rows)
    outcome = race(
        Order(
            size=Size(rounds=1, commits=2, scans=1),
            workloads=tuple(workload for workload in WORKLOADS if workload.name in RACED),
            systems=chosen_systems(["lakewright", "hudi"]),
            cores=2,
            memory="1g",
            work=tmp_path / "work",
            keep=False,
            lineitem=(rows,),
            warm=False,
        )
    )
    assert outcome.failures == ()
    assert [check for check in outcome.checks if not check.agrees] == []
    assert len(outcome.checks) == 2 * len(RACED)
    ratios = all_ratios(outcome.measurements)
    assert all(ratios[name]["hudi"] > 0 for name in RACED)
