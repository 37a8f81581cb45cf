"""Partitions that literals in a query name: written into the inflight file, without a job."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import lakewright as lw
from lakewright.format.timeline_metadata import parse_commit
from lakewright.model.partition_paths import PartitionField, PartitionRule
from lakewright.spark.known_partitions import known_partitions
from lakewright.spark.writer import SparkRows
from support.tables import NO_SERVICES

COLUMNS = pa.schema(
    [("id", pa.string()), ("day", pa.string()), ("hour", pa.int32()), ("on", pa.date32())]
)
DAY = PartitionRule((PartitionField("day"),), hive_style=True)
DAY_AND_HOUR = PartitionRule((PartitionField("day"), PartitionField("hour")))
ON = PartitionRule((PartitionField("on"),))
NOT_PARTITIONED = PartitionRule()

Query = Callable[[DataFrame], DataFrame]
CASES: dict[str, tuple[Query, PartitionRule, set[str] | None]] = {
    "rows from anywhere": (lambda rows: rows, DAY, None),
    "a filter": (lambda rows: rows.where("day = 'a' AND id > 'k'"), DAY, {"day=a"}),
    "the literal first": (lambda rows: rows.where("'a' = day"), DAY, {"day=a"}),
    "several values": (lambda rows: rows.where("day IN ('a', 'b')"), DAY, {"day=a", "day=b"}),
    "either of two conditions": (lambda rows: rows.where("day = 'a' OR id = 'b'"), DAY, None),
    "all but one": (lambda rows: rows.where("day != 'a'"), DAY, None),
    "a column of one value": (lambda rows: rows.withColumn("day", F.lit("c")), DAY, {"day=c"}),
    "null": (
        lambda rows: rows.withColumn("day", F.lit(None).cast("string")),
        DAY,
        {"day=__HIVE_DEFAULT_PARTITION__"},
    ),
    "a filter under other steps": (
        lambda rows: rows.where("day = 'a'").drop("on").distinct().orderBy("id").limit(3),
        DAY,
        {"day=a"},
    ),
    "a filter on a column of another name": (
        lambda rows: (
            rows.where("day = 'a'").withColumnRenamed("day", "x").withColumn("day", F.col("x"))
        ),
        DAY,
        {"day=a"},
    ),
    "a column that is changed after the filter": (
        lambda rows: rows.where("day = 'a'").withColumn("day", F.upper("day")),
        DAY,
        None,
    ),
    "a literal that is replaced later": (
        lambda rows: rows.withColumn("day", F.lit("c")).withColumn("day", F.col("id")),
        DAY,
        None,
    ),
    "a union": (lambda rows: rows.where("day = 'a'").union(rows), DAY, None),
    "a join": (lambda rows: rows.where("day = 'a'").join(rows.select("id"), "id"), DAY, None),
    "two fields": (
        lambda rows: rows.where("day = 'a' AND hour IN (1, 2)"),
        DAY_AND_HOUR,
        {"a/1", "a/2"},
    ),
    "one of two fields": (lambda rows: rows.where("day = 'a'"), DAY_AND_HOUR, None),
    "a number in a column of text": (lambda rows: rows.withColumn("day", F.lit(7)), DAY, {"day=7"}),
    "text in a column of numbers": (
        lambda rows: rows.withColumn("hour", F.lit("07")).where("day = 'a'"),
        DAY_AND_HOUR,
        {"a/7"},
    ),
    "a date": (lambda rows: rows.where("on = DATE'2026-01-31'"), ON, {"2026-01-31"}),
    "text compared with a date": (lambda rows: rows.where("on = '2026-01-31'"), ON, {"2026-01-31"}),
    "a table without partitions": (lambda rows: rows, NOT_PARTITIONED, {""}),
}


@pytest.fixture(scope="module")
def rows(spark: SparkSession) -> DataFrame:
    return spark.createDataFrame([], "id STRING, day STRING, hour INT, on DATE")


@pytest.mark.parametrize(("query", "rule", "expected"), CASES.values(), ids=list(CASES))
def test_partitions_that_a_query_names(
    rows: DataFrame, query: Query, rule: PartitionRule, expected: set[str] | None
) -> None:
    assert known_partitions(SparkRows(query(rows)).frame, rule, COLUMNS) == expected


def test_a_write_names_them_and_starts_no_job_for_it(spark: SparkSession, tmp_path: Path) -> None:
    table = lw.create(
        str(tmp_path / "t"), spark=spark, name="t", record_key="id", partition_by="day",
        ordering="ts",
    )  # fmt: skip
    frame = spark.createDataFrame([("k", "x", 1), ("l", "y", 1)], "id STRING, day STRING, ts INT")
    tracker, group = spark.sparkContext.statusTracker(), "known partitions"
    spark.sparkContext.setJobGroup(group, "a look at a query")
    filtered = SparkRows(frame.where("day = 'y'"))
    assert filtered.known_partitions(PartitionRule((PartitionField("day"),)), COLUMNS) == {"y"}
    assert not tracker.getJobIdsForGroup(group)
    for written, expected in ((frame.where("day = 'y'"), ["y"]), (frame, [])):
        commit = table.upsert(written, options=NO_SERVICES)
        timeline = tmp_path / "t" / ".hoodie" / "timeline"
        inflight = parse_commit((timeline / f"{commit.instant}.inflight").read_bytes())
        assert list(inflight.stats) == expected
