"""`read` and `changes` print the same rows with Spark and without."""

from __future__ import annotations

from datetime import UTC, date, datetime
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from lakewright.engine.local import prune_partitions, read_local
from lakewright.scan.filters import parse_filter
from lakewright.scan.planner import plan_snapshot
from lakewright.spark.reader import scan_slices
from lakewright.storage.factory import storage_for
from lakewright.table.snapshot import load_snapshot
from support.golden import GoldenTables
from support.soak import some

ROWS: list[tuple[Any, ...]] = [
    ("a", 1, 0.1, date(2026, 1, 1), datetime(2026, 1, 1, tzinfo=UTC), True),
    ("b", 2, float("nan"), date(2026, 1, 2), datetime(2026, 1, 2, tzinfo=UTC), False),
    ("c", None, None, date(2026, 1, 3), datetime(2026, 1, 3, tzinfo=UTC), None),
    (None, 4, -1.0, None, None, True),
]
FILTERS = [
    "n > 1",
    "N >= 2 AND id = 'b'",
    "n = 1 or id = 'c'",
    "not n = 1",
    "n <> 1",
    "n in (1, 4)",
    "n not in (1)",
    "n not between 1 and 2",
    "n is null",
    "id > 'a'",
    "x > 0.5",
    "x >= -1",
    "x < 100",
    "x != 0.5",
    "x = 0.1",
    "not x > 0.5",
    "x between -1 and 5",
    "day >= '2026-01-02'",
    "at < '2026-01-02 00:00:00'",
    "at = '2026-01-02'",
    "ok = true",
    "not (n = 1 and ok = true)",
]


def test_filters_mean_what_they_mean_to_spark(spark: SparkSession) -> None:
    schema = "id string, n int, x float, day date, at timestamp, ok boolean"
    frame = spark.createDataFrame(ROWS, schema)
    arrow_rows = frame.toArrow()
    # One job for all: of each row, which filters it passes; a null passes none.
    passed = frame.select("day", *(F.expr(f"coalesce({text}, false)") for text in FILTERS))
    rows = [tuple(row) for row in passed.collect()]
    for number, text in enumerate(FILTERS, 1):
        chosen = parse_filter(text, arrow_rows.schema)
        assert chosen is not None, text
        here = sorted(arrow_rows.filter(chosen.expression).column("day").to_pylist(), key=str)
        there = sorted((row[0] for row in rows if row[number]), key=str)
        assert here == there, text


@pytest.mark.parametrize("name", some(["mor_avro", "cow_hive_complex", "mor_two_ordering"], 1))
def test_rows_of_a_table_are_the_same(name: str, golden: GoldenTables, spark: SparkSession) -> None:
    storage = storage_for(golden[name])
    plan = plan_snapshot(load_snapshot(storage))
    for text in ("id > 'k00005' and ts >= 2", "country = 'NO' and x < 20", "flag = false"):
        chosen = parse_filter(text, plan.schema)
        assert chosen is not None
        batches = read_local(
            storage, prune_partitions(plan, chosen), row_filter=chosen, columns=["id", "ts"]
        )
        here = sorted((r["id"], r["ts"]) for batch in batches for r in batch.to_pylist())
        rows = scan_slices(spark, storage, plan).where(text).select("id", "ts").collect()
        assert here == sorted(map(tuple, rows)), text
