"""Tables in a real Hive metastore, read by plain Spark and by Spark with the library."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from metastore import metastore
from pyspark.sql import SparkSession

import lakewright as lw
from lakewright.catalog.base import TableName
from lakewright.catalog.hive import hive_catalog
from lakewright.model.plans import Skip

NOW = 1_767_000_000_000
ROWS = "id STRING, day STRING, ts LONG"
QUIET = {"hoodie.compact.inline": "false"}
HERE = Path(__file__).parent


@pytest.fixture
def table(spark: SparkSession, tmp_path: Path) -> lw.Table:
    """Base files in two partitions, several versions of one, and a log file."""
    table = lw.create(
        str(tmp_path / "trips"), spark, name="trips", table_type="MERGE_ON_READ",
        record_key="id", partition_by="day", ordering="ts", event_time="ts",
    )  # fmt: skip
    first = [("a", "2026-01-01", NOW), ("b", "2026-01-02", NOW), ("c", "2026-01-03", NOW)]
    table.upsert(spark.createDataFrame(first, ROWS), QUIET)
    table.insert(spark.createDataFrame([("d", "2026-01-02", NOW)], ROWS), QUIET)
    table.upsert(spark.createDataFrame([("a", "2026-01-01", NOW + 5)], ROWS), QUIET)
    return table


def read_by_sessions(uri: str, folder: Path) -> dict[str, list[Any]]:
    """What sessions without and with the library find in a metastore."""
    command = [sys.executable, str(HERE / "catalog_check.py"), uri, str(folder / "warehouse")]
    environment = {**os.environ, "PYTHONPATH": str(HERE.parent)}
    result = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert result.returncode == 0, result.stderr[-3000:]
    answers: dict[str, list[Any]] = json.loads(result.stdout.splitlines()[-1])
    return answers


def test_a_metastore_is_synced_and_read(
    spark: SparkSession, table: lw.Table, tmp_path: Path
) -> None:
    trips = TableName("lake", "trips")
    with metastore(tmp_path) as uri:
        options = {
            "hoodie.datasource.meta.sync.enable": "true",
            "hoodie.datasource.hive_sync.mode": "hms",
            "hoodie.datasource.hive_sync.metastore.uris": f"thrift://127.0.0.1:1,{uri}",
            "hoodie.datasource.hive_sync.database": "lake",
        }
        syncs = table.sync(options)
        assert not isinstance(syncs, Skip)
        assert [(sync.table, sync.created, sync.added) for sync in syncs] == [
            ("lake.trips_ro", True, 3),
            ("lake.trips_rt", True, 3),
            ("lake.trips", True, 3),
        ]
        again = table.sync(options)
        assert not isinstance(again, Skip)
        assert not any(sync.changed for sync in again)
        with hive_catalog([uri]) as catalog:
            registered = catalog.load(trips)
            assert registered is not None
            assert registered.properties["lakewright.snapshot.completion"]
            assert registered.properties["spark.sql.sources.provider"] == "hudi"
            there = catalog.partitions(trips)
            assert there[("2026-01-01",)].endswith("/trips/2026-01-01")
        # What a write brings, and takes out, with a column more.
        table.delete_partitions("2026-01-03", options)
        new = spark.createDataFrame([("d", "2026-01-04", NOW, "hi")], f"{ROWS}, note STRING")
        table.upsert(new, {**QUIET, **options})
        with hive_catalog([uri]) as catalog:
            changed = catalog.load(trips)
            assert changed is not None
            assert ("note", "string") in changed.columns
            assert set(catalog.partitions(trips)) == {
                ("2026-01-01",),
                ("2026-01-02",),
                ("2026-01-04",),
            }
            # Partitions that were there before the column know of it as well.
            (old,) = catalog._client.get_partitions_by_names("lake", "trips", ["day=2026-01-01"])
            assert "note" in [column.name for column in old.sd.cols]
            catalog.drop(trips, [("2026-01-03",), ("2026-01-09",)])
            catalog.add(trips, changed, [(("2026-01-04",), "elsewhere")])
            (some,) = catalog.partitions(trips, [("2026-01-04",), ("x",)]).items()
            assert some[0] == ("2026-01-04",)
            assert some[1].endswith("/trips/2026-01-04")
            catalog.move(trips, changed, [(("2026-01-04",), f"{table.path}/moved")])
        moved = table.sync({**options, "hoodie.meta.sync.incremental": "false"})
        assert not isinstance(moved, Skip)
        assert [sync.moved for sync in moved] == [0, 0, 1]

        answers_by_session = read_by_sessions(uri, tmp_path)
    plain = answers_by_session["plain"]
    assert all("DATA_SOURCE_NOT_FOUND" in str(answer) for answer in plain), plain
    expected = sorted([row.id, row.day, row.ts] for row in table.read().collect())
    fast = sorted([row.id, row.day, row.ts] for row in table.read_optimized().collect())
    whole, optimized, part, note = answers_by_session["installed"]
    assert sorted(whole) == expected
    assert sorted(optimized) == fast != expected
    assert part == [row for row in expected if row[1] == "2026-01-02"]
    assert sorted(note, key=str) == [["hi"], [None]]


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
