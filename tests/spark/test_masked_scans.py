"""Base files of merge-on-read tables scanned natively, but for rows that log files have changed."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import lakewright as lw
from lakewright.scan import scan_plan as plans
from support.soak import some

ROWS = 3000


def rows(spark: SparkSession, until: int, ts: int, step: int = 1) -> DataFrame:
    number = F.col("id")
    return spark.range(0, until, step).select(
        F.concat(F.lit("k"), number.cast("string")).alias("key"),
        (number % 3).cast("int").alias("part"),
        F.lit(ts).cast("bigint").alias("ts"),
        (number * 7 % 101).alias("Amount"),
        F.concat(F.lit("note "), (number % 11).cast("string")).alias("note"),
        F.struct(number.alias("x"), F.lit("y").alias("y")).alias("pair"),
    )


@pytest.fixture(scope="module", params=some(["SIMPLE", "BUCKET"], 0))
def table(
    request: pytest.FixtureRequest, spark: SparkSession, tmp_path_factory: pytest.TempPathFactory
) -> lw.Table:
    """A table with several row groups to a file, updates, late rows, new keys and deletes."""
    options = {"hoodie.index.type": request.param, "hoodie.bucket.index.num.buckets": "1"}
    table = lw.create(
        str(tmp_path_factory.mktemp("masked") / "t"),
        spark,
        name="masked",
        table_type="MERGE_ON_READ",
        record_key="key",
        partition_by="part",
        ordering="ts",
        options=options,
    )
    small_groups = {"hoodie.parquet.block.size": "20000"}
    table.bulk_insert(rows(spark, ROWS, 5).coalesce(1), options=small_groups)
    table.upsert(rows(spark, ROWS + 60, 6, 20))
    table.upsert(rows(spark, ROWS, 4, 30))
    table.delete(rows(spark, ROWS, 0, 50))
    return table


QUERIES: dict[str, Callable[[DataFrame], DataFrame]] = {
    "all columns": lambda frame: frame,
    "one column": lambda frame: frame.select("Amount"),
    "a count": lambda frame: frame.agg(F.count("*")),
    "a filter on the partition": lambda frame: frame.where("part = 1"),
    "a filter on two partitions": lambda frame: frame.where("part IN (0, 2)").drop("part"),
    "a filter on a column": lambda frame: frame.where("Amount > 50 AND key LIKE 'k1%'"),
    "a filter on the ordering column": lambda frame: frame.where("ts = 6").select("key"),
    "groups": lambda frame: frame.groupBy("note").count(),
    "a field of a struct": lambda frame: frame.select("pair.x", "_hoodie_commit_time"),
    "a join with itself": lambda frame: frame.join(frame.select("key", "ts"), ["key", "ts"]),
}


QUERY_NAMES = some(list(QUERIES), 0, 3, 5, 6, 9)


@pytest.mark.parametrize("query", [QUERIES[name] for name in QUERY_NAMES], ids=QUERY_NAMES)
def test_masked_and_merged_scans_agree(
    table: lw.Table, query: Callable[[DataFrame], DataFrame], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plans, "_MIN_BASE_TO_LOG_RATIO", 0)
    results = []
    for least in (0, 1 << 60):
        monkeypatch.setattr(plans, "_MIN_MASKED_BYTES", least)
        result = query(table.read())
        results.append(sorted(map(str, result.collect())))
    assert results[0] == results[1]
    assert results[0]


def test_a_filter_on_the_partition_reaches_both_sides_of_the_mask(
    table: lw.Table, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(plans, "_MIN_BASE_TO_LOG_RATIO", 0)
    monkeypatch.setattr(plans, "_MIN_MASKED_BYTES", 0)
    table.read().where("part = 1").select("ts").explain()
    plan = capsys.readouterr().out
    assert "LeftAnti" in plan
    assert plan.count("= 1)") == 3, plan
