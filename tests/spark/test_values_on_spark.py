"""Values on their way through Spark: none changes, and odd ones name partitions and tables."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import lakewright as lw
from lakewright.clock import SystemClock
from lakewright.errors import InvalidError
from lakewright.storage.local import LocalStorage
from support.soak import some
from support.tables import NO_SERVICES, WrittenTable

pytestmark = pytest.mark.sampled(2)

WHOLE = "2026-01-01 00:00:01"
SPLIT = "2026-01-01 00:00:01.000001"
STORED = pa.schema(
    [
        ("id", pa.string()),
        ("day", pa.string()),
        ("ts", pa.int64()),
        ("at", pa.timestamp("ms", "UTC")),
        ("f", pa.float32()),
        ("x", pa.float64()),
        ("price", pa.decimal128(12, 2)),
        ("born", pa.date32()),
    ]
)
FIRST = {"id": "0", "day": "d", "ts": 1, "x": 1.0}


def typed(spark: SparkSession, path: Path, key: str) -> lw.Table:
    """A table with types that Spark has not, or that are wider than those of its rows."""
    made = WrittenTable(LocalStorage(str(path)), SystemClock(), NO_SERVICES, STORED)
    made.create(key=(key,))
    made.upsert([{**FIRST, "at": datetime(2026, 1, 1, tzinfo=UTC)}])
    return lw.open(str(path), spark=spark)


def narrow(spark: SparkSession, *values: tuple[str, str, int]) -> DataFrame:
    """Rows in narrower types than the table's: id, time and number."""
    rows = [(id, "d", 2, at, 5, number, "1.50", date(1, 1, 1)) for id, at, number in values]
    ddl = "id STRING, day STRING, ts INT, at STRING, f INT, x LONG, price STRING, born DATE"
    made = spark.createDataFrame(rows, ddl)
    made = made.withColumn("at", F.col("at").cast("timestamp"))
    return made.withColumn("price", F.col("price").cast("decimal(5,2)"))


@pytest.mark.parametrize("index", some(["SIMPLE", "GLOBAL_SIMPLE"], 0))
def test_times_that_milliseconds_cut_are_refused_as_keys(
    spark: SparkSession, tmp_path: Path, index: str
) -> None:
    table = typed(spark, tmp_path / "t", "at")
    before = table.timeline()
    by = {"hoodie.index.type": index}
    # To a column of milliseconds both keys are one.
    with pytest.raises(InvalidError, match=r"would change.*column='at'.*000001"):
        table.upsert(narrow(spark, ("1", WHOLE, 1), ("2", SPLIT, 1)), by)
    with pytest.raises(InvalidError, match="would change"):
        table.delete(narrow(spark, ("2", SPLIT, 1)), by)
    assert table.timeline() == before
    table.upsert(narrow(spark, ("1", WHOLE, 1)), by)
    assert table.read().count() == 2
    assert table.delete(narrow(spark, ("1", WHOLE, 1)), by).deleted == 1


def test_values_of_all_types_are_taken_if_they_stay_the_same(
    spark: SparkSession, tmp_path: Path
) -> None:
    table = typed(spark, tmp_path / "t", "id")
    table.upsert(narrow(spark, ("1", WHOLE, 2**54)))
    [row] = table.read().where("id = '1'").collect()
    assert (row.ts, row.f, row.x) == (2, 5.0, float(2**54))
    assert (row.price, row.born) == (Decimal("1.50"), date(1, 1, 1))
    assert table.read().where(f"at = '{WHOLE}'").count() == 1
    for bad in (("1", WHOLE, 2**53 + 1), ("1", SPLIT, 1)):
        with pytest.raises(InvalidError, match="would change"):
            table.upsert(narrow(spark, bad))
        with pytest.raises(InvalidError, match="would change"):
            table.bulk_insert(narrow(spark, bad))


def test_statements_assign_as_spark_does(spark: SparkSession, tmp_path: Path) -> None:
    typed(spark, tmp_path / "t", "id")
    spark.sql(f"CREATE TABLE millis USING hudi LOCATION '{tmp_path / 't'}'")
    try:
        spark.sql("UPDATE millis SET x = 7, f = 1, price = 2, born = DATE'2026-01-02'")
        source = (
            f"SELECT '1' id, 'd' day, 5 ts, TIMESTAMP'{WHOLE}' at, 1 f, 2 x, 3.1 price, NULL born"
        )
        spark.sql(
            f"MERGE INTO millis t USING ({source}) s ON t.id = s.id WHEN NOT MATCHED THEN INSERT *"
        )
        spark.sql(
            "MERGE INTO millis t USING (SELECT '0' id) s ON t.id = s.id WHEN MATCHED THEN DELETE"
        )
        rows = spark.sql("SELECT id, x, price FROM millis").collect()
        assert [tuple(row) for row in rows] == [("1", 2.0, Decimal("3.10"))]
        with pytest.raises(InvalidError, match=r"date_trunc\('MILLISECOND', column\)"):
            spark.sql(f"UPDATE millis SET at = TIMESTAMP'{SPLIT}'")
        spark.sql(f"UPDATE millis SET at = date_trunc('MILLISECOND', TIMESTAMP'{SPLIT}')")
    finally:
        spark.sql("DROP TABLE millis")


AMBIGUOUS: dict[str, tuple[dict[str, Any], tuple[str, str], str]] = {
    "a key": ({"record_key": ["a", "b"], "partition_by": "c"}, ("x,b:y", "z"), "of another row"),
    "a partition": ({"record_key": "c", "partition_by": ["a", "b"]}, ("x/y", "z"), "for another"),
}


@pytest.mark.parametrize(("how", "values", "message"), AMBIGUOUS.values(), ids=list(AMBIGUOUS))
@pytest.mark.parametrize("index", some(["SIMPLE", "GLOBAL_SIMPLE"], 1))
def test_values_that_could_be_others_are_refused(
    spark: SparkSession,
    tmp_path: Path,
    index: str,
    how: dict[str, Any],
    values: tuple[str, str],
    message: str,
) -> None:
    options = {"hoodie.index.type": index}
    table = lw.create(str(tmp_path / "t"), spark=spark, name="t", options=options, **how)
    table.upsert(spark.createDataFrame([("a", "b", "c")], "a STRING, b STRING, c STRING"))
    with pytest.raises(InvalidError, match=message):
        table.upsert(spark.createDataFrame([(*values, "c")], "a STRING, b STRING, c STRING"))
    assert [tuple(row) for row in table.read().select("a", "b", "c").collect()] == [("a", "b", "c")]


ODD = ["50%", "%41", "A", "a b", "a+b", "a#b", "a?b=c&d", "*", "[x]", "{a,b}", "ø~", "a;b'c"]
TABLES = {
    "plain paths by name": ("50% a+b#c?d=e", "COPY_ON_WRITE", "false", "true"),
    "encoded paths with logs": ("{x,y}*[z] %41ø", "MERGE_ON_READ", "true", "false"),
}


@pytest.mark.parametrize(
    ("root", "table_type", "encoded", "hive"), TABLES.values(), ids=list(TABLES)
)
def test_odd_letters_in_partitions_and_in_the_paths_of_tables(
    spark: SparkSession, tmp_path: Path, root: str, table_type: str, encoded: str, hive: str
) -> None:
    ddl = "id STRING, day STRING, n INT, ts BIGINT"
    options = {
        "hoodie.datasource.write.partitionpath.urlencode": encoded,
        "hoodie.datasource.write.hive_style_partitioning": hive,
    }
    path = str(tmp_path / root)
    table = lw.create(
        path,
        spark=spark,
        name="odd",
        table_type=table_type,
        record_key="id",
        partition_by=["day", "n"],
        ordering="ts",
        options=options,
    )
    rows = [(str(i), value, i % 2, 1) for i, value in enumerate(ODD)]
    table.bulk_insert(spark.createDataFrame(rows, ddl))
    # Every other row has a newer version, in a log file where there are some.
    changed = [(id, day, n, ts + n) for id, day, n, ts in rows]
    table.upsert(spark.createDataFrame([row for row in changed if row[2]], ddl))
    for frame in (table.read(), spark.read.format("hudi").load(path), table.changes().dataframe):
        read_rows = frame.select("id", "day", "n", "ts").collect()
        assert sorted(map(tuple, read_rows)) == sorted(changed)
    # A filter on the column in the path, on the other one, and on both.
    read = table.read()
    picked = {row.day: row.id for row in read.where("n = 1").collect()}
    assert picked == {day: id for id, day, n, _ in changed if n}
    for id, day, n, ts in changed[:8]:
        match = read.where((F.col("day") == day) & (F.col("n") == n)).select("id", "ts").collect()
        assert [tuple(row) for row in match] == [(id, ts)]
    first = changed[0]
    assert table.delete(spark.createDataFrame([first], ddl)).deleted == 1
    assert table.read().count() == len(ODD) - 1
