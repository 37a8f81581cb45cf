"""Tables in a real Hive metastore, read by plain Spark and by Spark with the library."""

from __future__ import annotations

from pathlib import Path

import pytest
from metastore import metastore
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from synced_table import NOW, QUIET, ROWS, synced_table

import lakewright as lw
from lakewright.catalog.base import TableName
from lakewright.catalog.hive import hive_catalog
from lakewright.model.plans import Skip
from support.spark import next_session

pytestmark = pytest.mark.thorough

QUERIES = (
    "SELECT id, day, ts FROM lake.trips ORDER BY id",
    "SELECT id, day, ts FROM lake.trips_ro ORDER BY id",
    "SELECT id, day, ts FROM lake.trips WHERE day = '2026-01-02'",
    "SELECT note FROM lake.trips WHERE id = 'd'",
)


def answer(spark: SparkSession, query: str) -> list[list[object]] | str:
    try:
        return [list(row) for row in spark.sql(query).collect()]
    except (PySparkException, Py4JJavaError) as error:
        return str(error)[:500]


def test_a_metastore_is_synced_and_read(spark: SparkSession, tmp_path: Path) -> None:
    table = synced_table(spark, tmp_path)
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

        expected = sorted([row.id, row.day, row.ts] for row in table.read().collect())
        fast = sorted([row.id, row.day, row.ts] for row in table.read_optimized().collect())
        settings = {
            "spark.sql.catalogImplementation": "hive",
            "spark.hadoop.hive.metastore.uris": uri,
            "spark.sql.warehouse.dir": str(tmp_path / "warehouse"),
        }
        with next_session(settings) as session:
            plain = [answer(session, query) for query in QUERIES]
            lw.install(session)
            whole, optimized, part, note = (answer(session, query) for query in QUERIES)
    assert all("DATA_SOURCE_NOT_FOUND" in str(answer) for answer in plain), plain
    assert sorted(whole) == expected
    assert sorted(optimized) == fast != expected
    assert part == [row for row in expected if row[1] == "2026-01-02"]
    assert sorted(note, key=str) == [["hi"], [None]]
