"""Rows that look like TPC-H's lineitem, without its generator."""

from __future__ import annotations

from datetime import date
from decimal import Decimal

import numpy as np
import pyarrow as pa

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
