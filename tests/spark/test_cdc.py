"""Change data on Spark: by the call, by options and by SQL; and of tables that Spark rows go to."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F

import lakewright as lw
from lakewright.errors import InvalidError
from lakewright.storage.factory import storage_for
from support.golden import GoldenTables
from support.queries import (
    Change,
    apply_changes,
    hudi_changes,
    normalized_row,
    parse_change,
    read_changes,
)
from support.soak import some

CDC = {
    "hoodie.datasource.query.type": "incremental",
    "hoodie.datasource.query.incremental.format": "cdc",
}
BEGIN = "hoodie.datasource.read.begin.instanttime"
COLUMNS = ["op", "ts_ms", "before", "after"]
SCHEMA = "id STRING, day STRING, ts BIGINT, note STRING"


def parse_rows(rows: Iterable[Row]) -> list[Change]:
    return [parse_change(row["op"], row["before"], row["after"]) for row in rows]


def in_order(frame: DataFrame) -> list[Change]:
    """Changes by the requests of their writes, of each the deletes first."""
    rows = frame.orderBy("ts_ms", F.col("op") != "d").collect()
    return parse_rows(rows)


def texts(changes: Iterable[Change]) -> list[str]:
    return sorted(
        str((op, b and normalized_row(b), a and normalized_row(a))) for op, b, a in changes
    )


@pytest.mark.parametrize(
    "name", some(["cow_basic", "cow_cdc", "mor_compacted", "mor_out_of_order"], 1, 3)
)
def test_spark_returns_what_a_plain_loop_returns(
    name: str, golden: GoldenTables, spark: SparkSession
) -> None:
    changes = lw.open(str(golden[name]), spark=spark).changes(format="cdc")
    assert changes.dataframe.columns == COLUMNS
    assert {str(kind) for _, kind in changes.dataframe.dtypes} == {"string"}
    expected = read_changes(storage_for(golden[name]))
    assert texts(parse_rows(changes.dataframe.collect())) == texts(expected)


def test_ranges_by_the_call_by_options_and_by_sql(
    golden: GoldenTables, spark: SparkSession
) -> None:
    lw.install(spark)
    path = str(golden["cow_cdc"])
    table = lw.open(path, spark=spark)
    ranges = hudi_changes()
    (_, (since, expected), *_) = ranges
    called = table.changes(since=since, format="cdc")
    assert len(called.instants) == len(ranges) - 1
    assert called.checkpoint == called.instants[-1].completed_at
    options = {**CDC, BEGIN: since or ""}
    loaded = spark.read.format("hudi").options(**options).load(path)
    listed = ", ".join(f"`{key}` '{value}'" for key, value in {**options, "path": path}.items())
    spark.sql(f"CREATE OR REPLACE TEMP VIEW viewed USING hudi OPTIONS ({listed})")
    viewed = spark.sql("SELECT * FROM viewed WHERE op <> 'x'")
    expected_keys = [(op, b and b["id"], a and a["id"]) for op, b, a in expected]
    for frame in (called.dataframe, loaded, viewed):
        assert frame.columns == COLUMNS
        keys = [(op, b and b["id"], a and a["id"]) for op, b, a in parse_rows(frame.collect())]
        assert sorted(map(str, keys)) == sorted(map(str, expected_keys))
    assert loaded.select("op").distinct().count() == 3


def test_columns_and_nothing_new(golden: GoldenTables, spark: SparkSession) -> None:
    table = lw.open(str(golden["mor_compacted"]), spark=spark)
    changes = table.changes(format="cdc", columns=["id", "ts"])
    images = [row for _, *both in parse_rows(changes.dataframe.collect()) for row in both if row]
    assert {tuple(row) for row in images} == {("id", "ts")}
    after = table.changes(since=changes.checkpoint, format="cdc")
    assert (after.dataframe.columns, after.dataframe.count()) == (COLUMNS, 0)
    assert after.checkpoint == changes.checkpoint
    with pytest.raises(InvalidError, match="no such format"):
        table.changes(format="debezium")


def test_rows_can_be_made_of_the_texts(golden: GoldenTables, spark: SparkSession) -> None:
    table = lw.open(str(golden["cow_cdc"]), spark=spark)
    frame = table.changes(format="cdc").dataframe.where("op = 'i'")
    made = frame.select(F.from_json("after", "id STRING, amount DECIMAL(12,2)").alias("row"))
    assert made.where("row.amount = row.amount").count() == frame.count()


@pytest.mark.parametrize("table_type", some(["COPY_ON_WRITE", "MERGE_ON_READ"], 0))
def test_what_spark_writes_is_reported(
    table_type: str, tmp_path: Path, spark: SparkSession
) -> None:
    lw.install(spark)
    path = str(tmp_path / "t")
    options = {
        "hoodie.table.name": "t",
        "hoodie.datasource.write.table.type": table_type,
        "hoodie.datasource.write.recordkey.field": "id",
        "hoodie.datasource.write.partitionpath.field": "day",
        "hoodie.datasource.write.precombine.field": "ts",
        "hoodie.index.type": "GLOBAL_SIMPLE",
        "hoodie.table.cdc.enabled": "true",
    }
    for rows in (
        [(f"k{n}", "d1", 1, "first") for n in range(6)],
        [("k1", "d1", 2, "second"), ("k2", "d2", 2, "moved"), ("n", "d1", 2, "new")],
    ):
        frame = spark.createDataFrame(rows, SCHEMA)
        frame.write.format("hudi").options(**options).mode("append").save(path)
    table = lw.open(path, spark=spark)
    table.delete(spark.createDataFrame([("k3", "d1")], "id STRING, day STRING"))
    rows = [row.asDict() for row in table.read(columns=["id", "day", "ts", "note"]).collect()]
    assert apply_changes(in_order(table.changes(format="cdc").dataframe)) == sorted(rows, key=str)
