"""Partitions that are too large for a task: the same rows, whichever way they are written."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from uuid import uuid4

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import lakewright as lw
from lakewright.errors import InvalidError

SMALL = {"lakewright.write.partition.max.bytes": "1"}
QUIET = {"hoodie.compact.inline": "false", "hoodie.clean.automatic": "false"}
BUCKETS = {"hoodie.index.type": "BUCKET", "hoodie.bucket.index.num.buckets": "5"}
# Small files, so that there are several file groups in a partition.
FILES = {"hoodie.parquet.max.file.size": "40000", "hoodie.parquet.small.file.limit": "0"}
KINDS: Mapping[str, tuple[str, str | None, Mapping[str, str]]] = {
    "copy on write": ("COPY_ON_WRITE", "day", {}),
    "merge on read": ("MERGE_ON_READ", "day", {}),
    "copy on write, no partitions": ("COPY_ON_WRITE", None, {}),
    "merge on read, no partitions, buckets": ("MERGE_ON_READ", None, BUCKETS),
    "copy on write, buckets": ("COPY_ON_WRITE", "day", BUCKETS),
    "copy on write, global index": ("COPY_ON_WRITE", "day", {"hoodie.index.type": "GLOBAL_SIMPLE"}),
}


def rows(spark: SparkSession, first: int, last: int, ts: int) -> DataFrame:
    return spark.range(first, last).select(
        F.concat(F.lit("k"), F.col("id")).alias("id"),
        F.concat(F.lit("d"), F.col("id") % 3).alias("day"),
        F.lit(ts).cast("long").alias("ts"),
        F.concat(F.lit(f"at {ts} "), F.col("id")).alias("note"),
    )


def write_history(table: lw.Table, spark: SparkSession, options: Mapping[str, str]) -> None:
    options = {**QUIET, **FILES, **options}
    table.upsert(rows(spark, 0, 3000, 1), options)
    table.upsert(rows(spark, 1500, 4000, 3), options)
    # Late rows lose, and of two versions in one batch the newer one wins.
    twice = rows(spark, 0, 50, 5).union(rows(spark, 0, 50, 4)).union(rows(spark, 1500, 1600, 2))
    table.upsert(twice, options)
    table.delete(rows(spark, 100, 700, 9).select("id", "day"), options)
    # Deleted rows come back, perhaps into other file groups.
    table.upsert(rows(spark, 300, 400, 10), options)
    table.insert(rows(spark, 5000, 6000, 6), options)
    dropping = {**options, "hoodie.datasource.insert.dup.policy": "drop"}
    table.insert(rows(spark, 650, 5100, 11), dropping)
    if table.config.properties.get("hoodie.table.partition.fields"):
        table.insert_overwrite(rows(spark, 0, 30, 12).where("day = 'd1'"), options)


def content(table: lw.Table) -> list[tuple[str, str, int, str]]:
    columns = table.read().select("id", "day", "ts", "note").collect()
    return sorted((row.id, row.day, row.ts, row.note) for row in columns)


@pytest.mark.parametrize(("table_type", "partition_by", "options"), KINDS.values(), ids=list(KINDS))
def test_the_same_rows_whichever_way_they_are_written(
    spark: SparkSession,
    tmp_path: Path,
    table_type: str,
    partition_by: str | None,
    options: Mapping[str, str],
) -> None:
    contents = []
    for name, ways in {"one pass": {}, "by file group": SMALL}.items():
        table = lw.create(
            str(tmp_path / name),
            spark,
            name="t",
            table_type=table_type,
            record_key="id",
            partition_by=partition_by,
            ordering="ts",
            options=options,
        )
        write_history(table, spark, ways)
        contents.append(content(table))
        assert not table.doctor().findings
    assert contents[0] == contents[1]
    assert len({key for key, _, _, _ in contents[0]}) == len(contents[0])


def test_rows_that_are_not_the_same_when_they_are_evaluated_again(
    spark: SparkSession, tmp_path: Path
) -> None:
    table = lw.create(
        str(tmp_path / "t"), spark, name="t", record_key="id", partition_by="day", ordering="ts"
    )
    table.upsert(rows(spark, 0, 10, 1))
    before = content(table)
    new_id = F.udf(lambda: str(uuid4())).asNondeterministic()
    odd = rows(spark, 0, 100, 2).withColumn("day", new_id())
    with pytest.raises(InvalidError, match="not deterministic"):
        table.upsert(odd, SMALL)
    assert content(table) == before
