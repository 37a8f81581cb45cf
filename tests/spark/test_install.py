"""`format("hudi")` and SQL on a session, with Hudi's own options."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import lakewright as lw
from support.golden import GoldenTables, queries

ROWS = 26  # of mor_avro


@pytest.fixture
def path(golden: GoldenTables) -> str:
    return str(golden["mor_avro"])


def test_load_returns_the_rows_of_the_table(spark: SparkSession, path: str) -> None:
    for name in ("hudi", "org.apache.hudi"):
        frame = spark.read.format(name).load(path)
        assert frame.schema == lw.open(path, spark=spark).read().schema
        assert frame.count() == ROWS


def test_the_meta_columns_come_first(spark: SparkSession, path: str) -> None:
    columns = spark.read.format("hudi").load(path).columns
    assert columns[:6] == [
        "_hoodie_commit_time",
        "_hoodie_commit_seqno",
        "_hoodie_record_key",
        "_hoodie_partition_path",
        "_hoodie_file_name",
        "id",
    ]


def test_types_are_those_of_real_hudi(spark: SparkSession, path: str) -> None:
    frame = spark.read.format("hudi").load(path)
    assert dict(frame.dtypes)["amount"] == "decimal(12,2)"
    assert dict(frame.dtypes)["at"] == "timestamp"
    assert dict(frame.dtypes)["tags"] == "array<bigint>"
    assert dict(frame.dtypes)["info"] == "struct<a:bigint,b:string>"


def test_a_given_schema_prunes_columns(spark: SparkSession, path: str) -> None:
    frame = spark.read.format("hudi").schema("id string, x double").load(path)
    assert frame.columns == ["id", "x"]
    assert frame.count() == ROWS


def test_read_takes_columns(spark: SparkSession, path: str) -> None:
    frame = lw.open(path, spark=spark).read(columns=["x", "day"])
    assert frame.columns == ["x", "day"]
    assert frame.where("day = '2026-01-02'").count() == 9


def test_changes_take_columns(spark: SparkSession, path: str) -> None:
    changes = lw.open(path, spark=spark).changes(since="20261115212222887", columns=["x", "id"])
    assert changes.dataframe.columns == ["x", "id"]
    assert changes.dataframe.count() == 18


def test_the_options_of_a_query(spark: SparkSession, path: str) -> None:
    reader = spark.read.format("hudi").option("hoodie.datasource.query.type", "incremental")
    since, rows = "20261115212222887", 18
    begin = "hoodie.datasource.read.begin.instanttime"
    assert reader.option(begin, since).load(path).count() == rows
    assert reader.load(path, **{begin: "earliest"}).count() == ROWS


def test_a_range_without_beginning_is_an_error(spark: SparkSession, path: str) -> None:
    options = {"hoodie.datasource.query.type": "incremental"}
    with pytest.raises(lw.InvalidError, match=r"read\.begin\.instanttime"):
        spark.read.format("hudi").options(**options).load(path)


def test_statements_that_are_not_ours_or_cannot_be_carried_out(
    spark: SparkSession, path: str
) -> None:
    with pytest.raises(lw.InvalidError, match="there is a table at this LOCATION"):
        spark.sql(f"CREATE TABLE s USING hudi LOCATION '{path}' AS SELECT 1 AS id")
    with pytest.raises(lw.InvalidError, match="no such column"):
        spark.sql(f"CREATE TABLE s (other INT) USING hudi LOCATION '{path}'")
    spark.sql("CREATE TABLE plain USING parquet AS SELECT ' USING hudi' AS text")
    assert spark.table("plain").count() == 1
    spark.sql("DROP TABLE plain")


OPTIONS = {
    "a name that does not exist": (
        {"hoodie.datasource.query.tipe": "snapshot"},
        lw.InvalidError,
        "did_you_mean='hoodie.datasource.query.type'",
    ),
    "a value that does not parse": (
        {"hoodie.datasource.query.type": "upside_down"},
        lw.InvalidError,
        "one of snapshot",
    ),
    "an option that would change the rows": (
        {"hoodie.datasource.merge.type": "skip_merge"},
        lw.UnsupportedError,
        "skip_merge",
    ),
    "a point in time for a range": (
        {"hoodie.datasource.query.type": "incremental", "AS.OF.INSTANT": "20260101000000000"},
        lw.InvalidError,
        "end.instanttime",
    ),
    "an end that is no time": (
        {
            "hoodie.datasource.query.type": "incremental",
            "hoodie.datasource.read.end.instanttime": "earliest",
        },
        lw.InvalidError,
        "earliest",
    ),
    "a beginning that is no time": (
        {
            "hoodie.datasource.query.type": "incremental",
            "hoodie.datasource.read.begin.instanttime": "monday",
        },
        lw.InvalidError,
        "monday",
    ),
    "a time to travel to that is none": ({"as.of.instant": "monday"}, lw.InvalidError, "monday"),
    "the requested-time mode of old": (
        {"hoodie.datasource.read.incr.table.version": "6"},
        lw.UnsupportedError,
        "incr.table.version",
    ),
}


@pytest.mark.parametrize(("options", "kind", "message"), OPTIONS.values(), ids=list(OPTIONS))
def test_wrong_options_are_reported(
    options: dict[str, str],
    kind: type[lw.LakewrightError],
    message: str,
    spark: SparkSession,
    path: str,
) -> None:
    with pytest.raises(kind, match=message):
        spark.read.format("hudi").options(**options).load(path)


def test_an_option_that_does_not_matter_is_a_warning(spark: SparkSession, path: str) -> None:
    with pytest.warns(UserWarning, match="hoodie.metadata.enable"):
        frame = spark.read.format("hudi").option("hoodie.metadata.enable", True).load(path)
    assert frame.count() == ROWS


def test_no_path_and_no_table_are_reported(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(lw.InvalidError, match="one path of a table"):
        spark.read.format("hudi").load()
    with pytest.raises(lw.InvalidError, match="no table at this path"):
        spark.read.format("hudi").load(str(tmp_path))
    with pytest.raises(lw.InvalidError, match="no table at this path"):
        lw.open(str(tmp_path), spark=spark)


def test_other_formats_are_not_changed(spark: SparkSession, tmp_path: Path) -> None:
    spark.range(3).write.parquet(str(tmp_path / "plain"))
    assert spark.read.format("parquet").load(str(tmp_path / "plain")).count() == 3
    assert spark.read.load(str(tmp_path / "plain"), format="parquet", mergeSchema=True).count() == 3
    assert spark.sql("SELECT :n AS n", args={"n": 7}).collect()[0].n == 7


def test_views_and_catalog_tables(spark: SparkSession, path: str) -> None:
    spark.sql(f"CREATE OR REPLACE TEMP VIEW v USING hudi OPTIONS (path '{path}')")
    spark.sql(f"CREATE TABLE IF NOT EXISTS t USING org.apache.hudi LOCATION '{path}'")
    spark.sql(f"CREATE TABLE IF NOT EXISTS t USING hudi LOCATION '{path}'")
    spark.sql(
        f"CREATE TABLE o USING hudi OPTIONS (path '{path}', "
        "`hoodie.datasource.query.type`='read_optimized')"
    )
    optimized = len(queries("mor_avro")[1].rows or ())
    for source, rows in (("v", ROWS), ("t", ROWS), ("o", optimized)):
        assert spark.sql(f"SELECT count(*) AS n FROM {source}").collect()[0].n == rows
    assert spark.table("t").where("day = '2026-01-02' AND x > 1").count() == 9
    with pytest.raises(lw.InvalidError, match="LOCATION"):
        spark.sql("CREATE TABLE nowhere USING hudi")
    for name in ("t", "o"):
        spark.sql(f"DROP TABLE {name}")


def test_uninstalled_the_session_is_as_before(spark: SparkSession, path: str) -> None:
    lw.uninstall(spark)
    try:
        # Spark refuses to load by itself now: it does not call the library.
        with pytest.raises(PySparkException):
            spark.read.format("hudi").load().count()
    finally:
        lw.install(spark)
    assert spark.read.format("hudi").load(path).count() == ROWS
