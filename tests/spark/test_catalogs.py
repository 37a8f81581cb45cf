"""Tables in the catalog of a session."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from synced_table import NOW, QUIET, ROWS, synced_table

import lakewright as lw
from lakewright.model.plans import Skip


@pytest.fixture
def table(spark: SparkSession, tmp_path: Path) -> lw.Table:
    return synced_table(spark, tmp_path)


def test_a_created_table_without_writes_is_registered(spark: SparkSession, tmp_path: Path) -> None:
    table = lw.create(str(tmp_path / "new"), spark, name="new", record_key="id", schema=ROWS)
    try:
        syncs = table.sync({"hoodie.datasource.hive_sync.database": "lake_of_created"})
        assert not isinstance(syncs, Skip)
        assert [sync.created for sync in syncs] == [True]
        assert spark.table("lake_of_created.new").count() == 0
    finally:
        spark.sql("DROP DATABASE IF EXISTS lake_of_created CASCADE")


def test_the_catalog_of_the_session(spark: SparkSession, table: lw.Table) -> None:
    options = {"hoodie.datasource.hive_sync.database": "lake_of_session"}
    try:
        syncs = table.sync(options)
        assert not isinstance(syncs, Skip)
        assert [sync.created for sync in syncs] == [True] * 3
        assert not any(sync.changed for sync in table.sync(options))  # type: ignore[union-attr]
        assert spark.table("lake_of_session.trips").count() == 4
        new = spark.createDataFrame([("e", "2026-01-04", NOW, "hi")], f"{ROWS}, note STRING")
        table.upsert(new, {**QUIET, **options, "hoodie.datasource.meta.sync.enable": "true"})
        rows = spark.table("lake_of_session.trips")
        assert rows.where("note = 'hi'").count() == 1
        (row,) = spark.sql("SHOW TABLE EXTENDED IN lake_of_session LIKE 'trips'").collect()
        assert "last_commit_completion_time_sync" in row.information
        assert "lakewright.snapshot.completion" in row.information
    finally:
        spark.sql("DROP DATABASE IF EXISTS lake_of_session CASCADE")
