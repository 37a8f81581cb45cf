"""On a cluster of several executors: everything on disk, and a table on HDFS with TTL."""

from __future__ import annotations

import secrets

import pytest
from pyspark.sql import DataFrame, SparkSession
from real_hudi import Row

import lakewright as lw
from lakewright.clock import SystemClock
from lakewright.storage.factory import storage_for
from lakewright.testing.clock import ManualClock
from lakewright.testing.hdfs import HdfsServer
from support.golden import GoldenTables
from support.session_check import TABLES, check_session, check_writes
from support.soak import SOAK
from support.tables import NO_SERVICES, WrittenTable, row

pytestmark = pytest.mark.interop

DAY_MS = 86_400_000
DDL = "id STRING, day STRING, ts BIGINT, note STRING"


def frame(spark: SparkSession, rows: list[Row]) -> DataFrame:
    return spark.createDataFrame([(r["id"], r["day"], r["ts"], r["note"]) for r in rows], DDL)


def values_by_key(table: lw.Table) -> dict[str, tuple[str, str]]:
    return {record.id: (record.day, record.note) for record in table.read().collect()}


def test_reads_and_writes(spark: SparkSession, golden: GoldenTables) -> None:
    assert spark.conf.get("spark.master").startswith("spark://")
    for name in TABLES:
        assert golden[name].is_dir()
    if SOAK:
        check_session(spark, golden.folder)
    else:
        check_writes(spark, golden.folder)


def test_ttl_and_delete_partitions_remove_partitions(hdfs: HdfsServer, spark: SparkSession) -> None:
    place = f"{secrets.token_hex(4)}/trips"
    then = ManualClock(SystemClock().now_ms() - 30 * DAY_MS)
    old = WrittenTable(storage_for(hdfs.uri(place)), then, NO_SERVICES).create("MERGE_ON_READ")
    old.upsert([row(f"old{n}", 1, "first", f"p{n}") for n in range(4)])

    table = lw.open(f"hdfs://lake/{place}", spark)
    table.upsert(frame(spark, [row(f"new{n}", 2, "first", f"p{n}") for n in (2, 3, 4, 5)]))
    table.upsert(frame(spark, [row("new2", 3, "again", "p2"), row("old3", 3, "again", "p3")]))
    expected = {
        **{f"old{n}": (f"p{n}", "first") for n in (0, 1, 2)},
        **{f"new{n}": (f"p{n}", "first") for n in (3, 4, 5)},
        "old3": ("p3", "again"),
        "new2": ("p2", "again"),
    }
    assert values_by_key(table) == expected

    table.ttl.save({"spec": "*", "units": "DAYS", "value": 10})
    table.ttl.enable()
    commit = table.run("ttl")
    assert isinstance(commit, lw.Commit)
    assert commit.partitions == ("p0", "p1")
    assert values_by_key(table) == {
        key: value for key, value in expected.items() if value[0] > "p1"
    }
    table.delete_partitions(["p5"])
    assert values_by_key(table) == {
        key: value for key, value in expected.items() if "p1" < value[0] < "p5"
    }
