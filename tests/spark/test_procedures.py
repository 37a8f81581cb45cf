"""Services by CALL, on a session that knows nothing but this library."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import lakewright as lw


@pytest.fixture
def path(spark: SparkSession, tmp_path: Path) -> str:
    lw.install(spark)
    path = str(tmp_path / "t")
    table = lw.create(
        path,
        spark,
        name="t",
        table_type="MERGE_ON_READ",
        record_key="id",
        partition_by="day",
        ordering="ts",
    )
    quiet = {"hoodie.compact.inline": "false"}
    rows = "id STRING, day STRING, ts LONG"
    table.upsert(spark.createDataFrame([("a", "d1", 1), ("b", "d2", 1)], rows), quiet)
    table.upsert(spark.createDataFrame([("a", "d1", 2)], rows), quiet)
    return path


def test_debt_plans_and_runs(spark: SparkSession, path: str) -> None:
    (owed,) = spark.sql(f"CALL show_debt(path => '{path}')").collect()
    assert (owed.partition, owed.log_files) == ("d1", 1)
    assert owed.reason == "no compaction was planned yet"

    call = f"CALL run_compaction(op => 'schedule', path => '{path}')"
    (planned,) = spark.sql(call).collect()
    assert (planned.operation_size, planned.state) == (1, "REQUESTED")
    assert spark.sql(f"CALL show_compaction(path => '{path}')").collect() == [planned]

    call = f"CALL run_compaction(op => 'run', path => '{path}', timestamp => {planned.timestamp})"
    (compaction,) = spark.sql(call).collect()
    assert (compaction.timestamp, compaction.state) == (planned.timestamp, "COMPLETED")
    assert spark.sql(f"CALL show_debt(path => '{path}')").collect() == []
    rows = spark.read.format("hudi").load(path).select("id", "ts").orderBy("id").collect()
    assert [tuple(row) for row in rows] == [("a", 2), ("b", 1)]


def test_a_table_by_name_any_service_and_help(spark: SparkSession, path: str) -> None:
    spark.sql(f"CREATE TABLE called USING hudi LOCATION '{path}'")
    try:
        (row,) = spark.sql("CALL run_service('clean', table => 'called')").collect()
        assert "2 commits, and 10 are retained" in row.skipped
        (clustering,) = spark.sql(
            "CALL run_clustering(table => 'called', show_involved_partition => true)"
        ).collect()
        assert clustering.state == "COMPLETED"
        assert set(clustering.involved_partitions.split(",")) == {"d1", "d2"}
        names = {row.procedure for row in spark.sql("CALL help()").collect()}
        assert {"run_compaction", "show_debt"} <= names
        with pytest.raises(lw.InvalidError, match="show_debt"):
            spark.sql("CALL show_dept(table => 'called')")
    finally:
        spark.sql("DROP TABLE called")


def test_policies_for_old_partitions(spark: SparkSession, path: str) -> None:
    saved = spark.sql(
        f"call ttl_policy_save(path => '{path}', spec => '*', units => 'YEARS', value => '1', "
        "level => 'PARTITION')"
    ).collect()
    assert [tuple(row) for row in saved] == [("*", "PARTITION", "YEARS", 1)]
    values = spark.sql(f"call ttl_configuration(path => '{path}', enabled => true)").collect()
    assert ("enabled", "true") in [tuple(row) for row in values]
    shown = spark.sql(f"call ttl_policy_show(path => '{path}')").collect()
    assert [row.name for row in shown if row.kind == "policy"] == ["*"]
    explained = spark.sql(f"call ttl_explain(path => '{path}')").collect()
    assert [(row.partition, row.expired) for row in explained] == [("d1", False), ("d2", False)]
    (updated,) = spark.sql(f"call ttl_update_partitions(path => '{path}')").collect()
    assert updated.updated_partitions == 2
    assert spark.sql(f"call run_ttl(path => '{path}')").collect() == []
    assert spark.sql(f"call ttl_policy_empty(path => '{path}')").collect() == []


def test_settings_by_a_frame_without_columns(spark: SparkSession, path: str) -> None:
    (
        spark.createDataFrame([], "")
        .write.format("org.apache.hudi")
        .option("hoodie.ttl.enable", True)
        .option("hoodie.ttl.run.inline", True)
        .option("hoodie.ttl.run.inline.trigger.strategy", "NUM_COMMITS")
        .option("hoodie.ttl.run.inline.trigger.value", "8")
        .option("hoodie.ttl.conflict.resolution.rule", "MIN_TTL")
        .mode("append")
        .save(path)
    )
    settings = lw.open(path, spark).ttl.config.settings
    assert (settings.enabled, settings.trigger_value) == (True, 8)
