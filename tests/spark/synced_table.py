"""A table that tests register in catalogs."""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import SparkSession

import lakewright as lw

NOW = 1_767_000_000_000
ROWS = "id STRING, day STRING, ts LONG"
QUIET = {"hoodie.compact.inline": "false"}


def synced_table(spark: SparkSession, folder: Path) -> lw.Table:
    """Base files in two partitions, several versions of one, and a log file."""
    table = lw.create(
        str(folder / "trips"), spark, name="trips", table_type="MERGE_ON_READ",
        record_key="id", partition_by="day", ordering="ts", event_time="ts",
    )  # fmt: skip
    first = [("a", "2026-01-01", NOW), ("b", "2026-01-02", NOW), ("c", "2026-01-03", NOW)]
    table.upsert(spark.createDataFrame(first, ROWS), QUIET)
    table.insert(spark.createDataFrame([("d", "2026-01-02", NOW)], ROWS), QUIET)
    table.upsert(spark.createDataFrame([("a", "2026-01-01", NOW + 5)], ROWS), QUIET)
    return table
