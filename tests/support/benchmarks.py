"""Small benchmarks: rows that look like TPC-H's lineitem, and one round of some workloads."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date
from decimal import Decimal
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from bench.__main__ import Order
from bench.plan import Size, Workload, chosen_systems

LONGS = ("l_partkey", "l_suppkey")
DECIMALS = ("l_quantity", "l_extendedprice", "l_discount", "l_tax")
WORDS = ("l_returnflag", "l_linestatus", "l_shipinstruct", "l_shipmode", "l_comment")
DATES = ("l_shipdate", "l_commitdate", "l_receiptdate")


def lineitems(first: int, count: int) -> pa.Table:
    """`count` rows over seven years."""
    numbers = np.arange(first, first + count)
    days = [
        date(1992 + number % 7, number % 12 + 1, number % 28 + 1) for number in numbers.tolist()
    ]
    money = pa.array(
        [Decimal(number % 1000) / 4 for number in numbers.tolist()], pa.decimal128(15, 2)
    )
    words = pa.array([f"word {number % 11}" for number in numbers.tolist()])
    return pa.table(
        {
            "l_orderkey": pa.array(numbers // 4),
            "l_linenumber": pa.array((numbers % 4 + 1).astype(np.int32)),
            **{name: pa.array(numbers % 97) for name in LONGS},
            **dict.fromkeys(DECIMALS, money),
            **dict.fromkeys(WORDS, words),
            **dict.fromkeys(DATES, pa.array(days, pa.date32())),
        }
    )


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
