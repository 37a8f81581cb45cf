"""A table that stands twice in a query: what one place leaves out, the other still has."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

import lakewright as lw
from support.tables import NO_SERVICES

DDL = "id STRING, day STRING, ts BIGINT"


@pytest.fixture(params=["COPY_ON_WRITE", "MERGE_ON_READ"])
def path(spark: SparkSession, tmp_path: Path, request: pytest.FixtureRequest) -> str:
    table = lw.create(
        str(tmp_path / "t"), spark=spark, name="t", table_type=request.param, record_key="id",
        partition_by="day", ordering="ts",
    )  # fmt: skip
    for ts in (1, 2):
        rows = [(f"k{n}", f"day{n % 3}", ts) for n in range(9)]
        table.upsert(spark.createDataFrame(rows, DDL), options=NO_SERVICES)
    return str(tmp_path / "t")


def both(whole: DataFrame, some: DataFrame) -> tuple[int, int]:
    rows = whole.selectExpr("1 AS n").unionAll(some.selectExpr("2 AS n")).collect()
    return sum(row.n == 1 for row in rows), sum(row.n == 2 for row in rows)


def test_a_frame(spark: SparkSession, path: str) -> None:
    lw.install(spark)
    for frame in (lw.open(path, spark=spark).read(), spark.read.format("hudi").load(path)):
        assert both(frame, frame.where("day = 'day1'")) == (9, 3)
        assert both(frame.where("day = 'day2'"), frame.where("day = 'day1'")) == (3, 3)


def test_a_view(spark: SparkSession, path: str) -> None:
    lw.install(spark)
    spark.sql(f"CREATE OR REPLACE TEMP VIEW twice USING hudi OPTIONS (path '{path}')")
    whole, some = (
        spark.sql("SELECT * FROM twice"),
        spark.sql("SELECT * FROM twice WHERE day = 'day1'"),
    )
    assert both(whole, some) == (9, 3)
