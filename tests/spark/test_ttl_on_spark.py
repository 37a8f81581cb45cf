"""Rows that are too old leave a table on Spark, whatever its kind."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import lakewright as lw
from lakewright.write.writer import Commit
from support.soak import some

DDL = "id string, day string, ts long, at timestamp"
OLD_ROWS = {"spec": "day=*", "level": "RECORD", "units": "MONTHS", "value": 1}


def ids(table: lw.Table) -> list[str]:
    return sorted(row["id"] for row in table.read().collect())


@pytest.mark.parametrize("kind", some(["COPY_ON_WRITE", "MERGE_ON_READ"], 1))
def test_old_rows_are_deleted(kind: str, spark: SparkSession, tmp_path: Path) -> None:
    now = datetime.now(UTC)
    rows: list[tuple[Any, ...]] = [
        (f"{day}-{n}", day, n, now - timedelta(days=20 * n)) for day in ("a", "b") for n in range(4)
    ]
    table = lw.create(
        str(tmp_path / "t"),
        spark,
        name="events",
        table_type=kind,
        record_key="id",
        partition_by="day",
        ordering="ts",
        event_time="at",
        options={"hoodie.datasource.write.hive_style_partitioning": "true"},
    )
    table.upsert(spark.createDataFrame(rows, DDL))
    renewed = [("b-3", "b", 9, now), ("c-9", "c", 1, now)]
    table.upsert(spark.createDataFrame(renewed, DDL))
    table.ttl.save(OLD_ROWS)
    table.ttl.enable()
    commit = table.run("ttl")
    assert isinstance(commit, Commit)
    assert (commit.operation, commit.deleted) == ("DELETE", 3)
    assert ids(table) == ["a-0", "a-1", "b-0", "b-1", "b-3", "c-9"]
    assert not table.run("ttl")
