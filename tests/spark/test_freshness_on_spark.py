"""Completion and freshness on Spark: by the table, by CALL, and in the session's catalog."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import lakewright as lw

T = 1_767_000_000_000
ROWS = "id STRING, day STRING, ts LONG"
QUIET = {"hoodie.compact.inline": "false"}
SOON = {"hoodie.compact.inline.max.delta.commits": "1"}


@pytest.fixture
def table(spark: SparkSession, tmp_path: Path) -> lw.Table:
    """Base files for two days, and a log file for one."""
    lw.install(spark)
    table = lw.create(
        str(tmp_path / "t"),
        spark,
        name="t",
        table_type="MERGE_ON_READ",
        record_key="id",
        partition_by="day",
        ordering="ts",
        event_time="ts",
    )
    first = [("a", "2026-01-01", T + 10), ("b", "2026-01-02", T + 20)]
    table.upsert(spark.createDataFrame(first, ROWS), QUIET)
    table.upsert(spark.createDataFrame([("a", "2026-01-01", T + 50)], ROWS), QUIET)
    return table


def test_freshness_is_reported_and_awaited(table: lw.Table) -> None:
    now = table.freshness()
    assert (now.snapshot.completion, now.snapshot.freshness) == (T + 50, T + 50)
    assert (now.read_optimized.completion, now.read_optimized.freshness) == (T + 49, T + 20)
    assert now.partitions["2026-01-02"].read_optimized.completion == T + 20
    (blocking,) = table.blocking_log_files()
    assert (blocking.partition, blocking.event_time) == ("2026-01-01", T + 50)
    with pytest.raises(lw.UnavailableError, match="held_back_by"):
        table.wait_until_complete(T + 50, timeout=0)
    commit = table.run("compaction", SOON)
    assert isinstance(commit, lw.Commit)
    assert commit.metrics["read_optimized.completion"] == T + 50
    assert table.wait_until_complete(T + 50, timeout=0).read_optimized.completion == T + 50
    assert table.blocking_log_files() == ()


def test_procedures_show_it(spark: SparkSession, table: lw.Table) -> None:
    rows = spark.sql(f"CALL show_freshness(path => '{table.path}')").collect()
    assert [tuple(row) for row in rows[:3]] == [
        ("", "snapshot", T + 50, T + 50, None, 0, "last_commit"),
        ("", "read_optimized", T + 49, T + 20, None, 0, "last_commit"),
        ("2026-01-01", "snapshot", T + 50, T + 50, None, 0, "last_commit"),
    ]
    assert len(rows) == 6
    (blocking,) = spark.sql(f"CALL show_holding_back(path => '{table.path}', limit => 3)").collect()
    assert (blocking.partition, blocking.event_time) == ("2026-01-01", T + 50)
    assert blocking.size > 0


def test_the_catalog_of_the_session_is_synced(spark: SparkSession, table: lw.Table) -> None:
    with pytest.raises(lw.InvalidError, match="CREATE TABLE fresh USING hudi LOCATION"):
        table.sync_catalog("fresh")
    spark.sql(f"CREATE TABLE fresh USING hudi LOCATION '{table.path}'")
    try:
        table.sync_catalog("fresh")
        assert f"lakewright.read_optimized.completion={T + 49}," in shown(spark)
        assert f"lakewright.snapshot.freshness={T + 50}," in shown(spark)
        deletes = spark.createDataFrame([("b", "2026-01-02", T)], ROWS)
        table.delete(deletes, QUIET)
        properties = table.sync_catalog("fresh")
        assert properties["lakewright.read_optimized.completion"] is None
        assert "lakewright.read_optimized.completion" not in shown(spark)
        assert spark.table("fresh").count() == 1
    finally:
        spark.sql("DROP TABLE fresh")


def shown(spark: SparkSession) -> str:
    """What the catalog has; `SHOW TBLPROPERTIES` asks the data source, which has none."""
    (row,) = spark.sql("SHOW TABLE EXTENDED LIKE 'fresh'").collect()
    (line,) = [line for line in row.information.splitlines() if line.startswith("Table Properties")]
    return str(line)
