"""Races of a few thousand rows."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pyarrow.parquet as pq
from bench.__main__ import Order
from bench.plan import Size, Workload, chosen_systems
from lineitems import lineitems


def small_race(
    folder: Path, rows: int, workloads: Sequence[Workload], systems: Sequence[str]
) -> Order:
    """One round of some workloads, without warming up."""
    source = folder / "lineitem.parquet"
    pq.write_table(lineitems(0, rows), source)
    return Order(
        # These rows have few suppliers: too few for the workloads of TTL.
        size=Size(scale=rows / 6_000_000, rounds=1, commits=1, scans=1, partitions=100),
        workloads=tuple(workloads),
        systems=chosen_systems(systems),
        cores=2,
        memory="1g",
        work=folder / "work",
        keep=False,
        lineitem=(source,),
        warm=False,
    )
