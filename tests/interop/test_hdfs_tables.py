"""Tables on HDFS: written, serviced and read on Spark, and by real Hudi in the same place."""

from __future__ import annotations

import json
import secrets
import subprocess
import sys

import pytest
from pyspark.sql import DataFrame, SparkSession
from real_hudi import RealHudi, Row

import lakewright as lw
from lakewright.testing.hdfs import HdfsServer
from support.tables import NO_SERVICES, row

pytestmark = [pytest.mark.interop, pytest.mark.thorough]

DDL = "id STRING, day STRING, ts BIGINT, note STRING"
# What a URI would escape, and Hadoop does not.
ODD = "São Paulo 50%"
KEYS = {
    "hoodie.table.name": "t",
    "hoodie.datasource.write.recordkey.field": "id",
    "hoodie.datasource.write.partitionpath.field": "day",
    "hoodie.datasource.write.precombine.field": "ts",
    "hoodie.datasource.write.operation": "upsert",
    "hoodie.metadata.enable": "false",
    "hoodie.clean.automatic": "false",
    "hoodie.compact.inline": "false",
}


@pytest.fixture
def place() -> str:
    return f"{secrets.token_hex(4)}/a lake/trips"


def frame(spark: SparkSession, rows: list[Row]) -> DataFrame:
    return spark.createDataFrame([(r["id"], r["day"], r["ts"], r["note"]) for r in rows], DDL)


def values(rows: list[Row]) -> list[tuple[str, str, int, str]]:
    return sorted((r["id"], r["day"], r["ts"], r["note"]) for r in rows)


def frame_values(data: DataFrame) -> list[tuple[str, str, int, str]]:
    return values([record.asDict() for record in data.collect()])


def test_a_table_is_written_serviced_and_read_by_both(
    hdfs: HdfsServer, spark: SparkSession, real_hudi: RealHudi, place: str
) -> None:
    address = hdfs.uri(place)
    table = lw.create(
        address,
        spark,
        name="t",
        table_type="MERGE_ON_READ",
        record_key="id",
        partition_by="day",
        ordering="ts",
    )
    assert table.path == address
    expected = {f"k{n}": row(f"k{n}", 1, "first", (ODD, "d2", "d3")[n % 3]) for n in range(9)}
    table.upsert(frame(spark, list(expected.values())), NO_SERVICES)
    for ts in (2, 3):
        changed = [row(f"k{n}", ts, f"v{ts}", (ODD, "d2", "d3")[n % 3]) for n in range(4)]
        table.upsert(frame(spark, changed), NO_SERVICES)
        expected |= {record["id"]: record for record in changed}
    rows = values(list(expected.values()))
    assert frame_values(table.read()) == values(real_hudi.read(address)) == rows
    assert frame_values(table.changes(since=None).dataframe) == rows

    commit = table.run("compaction", {"hoodie.compact.inline.max.delta.commits": "1"})
    assert isinstance(commit, lw.Commit)
    # Base files alone: Spark scans them by itself.
    native = table.read_optimized()
    assert frame_values(native) == rows
    assert frame_values(native.where(f"day = '{ODD}'")) == [
        record for record in rows if record[1] == ODD
    ]

    theirs = row("k8", 4, "theirs", "d3")
    real_hudi.write(address, [theirs], DDL, KEYS)
    expected["k8"] = theirs
    rows = values(list(expected.values()))
    assert frame_values(table.read()) == values(real_hudi.read(address)) == rows

    before = {file.path for file in table.storage.list_tree("")}
    table.run("clean", {"hoodie.clean.commits.retained": "1", "hoodie.clean.max.commits": "1"})
    assert before - {file.path for file in table.storage.list_tree("")}
    assert frame_values(table.read()) == values(real_hudi.read(address)) == rows
    assert table.storage.list_temporary() == []
    assert run_command("timeline", address)["instants"][-1]["action"] == "clean"


def run_command(command: str, address: str) -> Row:
    module = [sys.executable, "-m", "lakewright.cli.main"]
    result = subprocess.run(
        [*module, command, address, "--json"], stdout=subprocess.PIPE, text=True, check=True
    )
    answer: Row = json.loads(result.stdout)
    return answer
