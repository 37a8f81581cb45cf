"""Settings of a session and SQL sent to it change no rows and execute no code."""

from __future__ import annotations

import base64
import os
import pickle
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import fastavro
import pytest
from pyspark.sql import SparkSession

import lakewright as lw
from lakewright.clock import SystemClock
from lakewright.ingestion.cloud.objects import ObjectReader
from lakewright.ingestion.cloud.options import ObjectSettings
from lakewright.ingestion.cloud.selection import CloudObject
from lakewright.spark.reader import NATIVE_OPTIONS
from lakewright.spark.worker_environment import SPARK_ERRORS

DDL = "id STRING, day STRING, ts BIGINT"
LENIENT = {
    "spark.sql.files.ignoreMissingFiles": "true",
    "spark.sql.files.ignoreCorruptFiles": "true",
}
LEGACY = {
    "spark.sql.parquet.datetimeRebaseModeInRead": "LEGACY",
    "spark.sql.parquet.int96RebaseModeInRead": "LEGACY",
}
HEADER = "/* made by a tool */\n-- for a report\n" * 10_000


@contextmanager
def session_set_to(spark: SparkSession, settings: dict[str, str]) -> Iterator[None]:
    for key, value in settings.items():
        spark.conf.set(key, value)
    try:
        yield
    finally:
        for key in settings:
            spark.conf.unset(key)


def two_partitions(spark: SparkSession, path: Path, table_type: str = "COPY_ON_WRITE") -> lw.Table:
    table = lw.create(
        str(path), spark=spark, name="t", table_type=table_type, record_key="id",
        partition_by="day", ordering="ts",
    )  # fmt: skip
    table.bulk_insert(spark.createDataFrame([("a", "x", 1), ("b", "y", 1)], DDL))
    return table


def base_file_of(path: Path, day: str) -> Path:
    (file,) = (path / day).glob("*.parquet")
    return file


def test_a_missing_base_file_is_an_error_in_every_session(
    spark: SparkSession, tmp_path: Path
) -> None:
    path = tmp_path / "t"
    table = two_partitions(spark, path)
    with session_set_to(spark, LENIENT):
        rows = table.read()
        base_file_of(path, "y").unlink()
        with pytest.raises(SPARK_ERRORS):
            rows.collect()


def test_a_damaged_base_file_is_an_error_in_every_session(
    spark: SparkSession, tmp_path: Path
) -> None:
    path = tmp_path / "t"
    table = two_partitions(spark, path)
    damaged = base_file_of(path, "y")
    damaged.write_bytes(b"\0" * damaged.stat().st_size)
    with session_set_to(spark, LENIENT), pytest.raises(SPARK_ERRORS):
        table.read().collect()


def test_old_dates_are_the_same_in_every_session(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "t"
    table = lw.create(str(path), spark=spark, name="t", record_key="id")
    old = "SELECT 'a' AS id, DATE'1500-01-01' AS d, TIMESTAMP'1890-01-01 12:00:00' AS t"
    table.insert(spark.sql(old))
    with session_set_to(spark, LEGACY):
        (row,) = table.read().selectExpr("id", "string(d)", "string(t)").collect()
    assert tuple(row) == ("a", "1500-01-01", "1890-01-01 12:00:00")


def test_old_dates_of_avro_objects_are_the_same_in_every_session(
    spark: SparkSession, tmp_path: Path
) -> None:
    schema = {
        "type": "record", "name": "r",
        "fields": [{"name": "d", "type": {"type": "int", "logicalType": "date"}}],
    }  # fmt: skip
    with (tmp_path / "a.avro").open("wb") as file:
        fastavro.writer(file, schema, [{"d": -171_664}])
    reader = ObjectReader(spark, ObjectSettings(format="avro"), "{bucket}", {}, SystemClock())
    with session_set_to(spark, LEGACY):
        objects = reader.read([CloudObject("", str(tmp_path), "a.avro", "a.avro", 1)])
        assert objects.rows is not None
        (row,) = objects.rows.selectExpr("string(d)").collect()
        objects.delete_copies()
    assert tuple(row) == ("1500-01-01",)
    assert "mergeSchema" not in NATIVE_OPTIONS


class Evil:
    """What a pickle of an attacker looks like: loading it makes a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, ...]:
        return os.mkdir, (str(self.path),)


def source_names(spark: SparkSession) -> set[str]:
    """The names of the sources that reading has made."""
    prefix = "spark.lakewright.source."
    return {key.removeprefix(prefix) for key in spark.conf.getAll if key.startswith(prefix)}


def test_options_that_are_given_in_sql_execute_nothing(spark: SparkSession, tmp_path: Path) -> None:
    table = two_partitions(spark, tmp_path / "t", "MERGE_ON_READ")
    table.upsert(spark.createDataFrame([("a", "x", 2)], DDL))
    before = source_names(spark)
    assert table.read().count() == 2
    assert table.changes(since=None).dataframe.count() == 2
    made = tmp_path / "made-by-a-pickle"
    evil = pickle.dumps(Evil(made))
    texts = {
        "storage.secret": base64.b64encode(evil).decode(),
        "plan": base64.b64encode(zlib.compress(evil)).decode(),
        "part": "merged",
    }
    options = ", ".join(f"`{key}` '{value}'" for key, value in texts.items())
    # Under the names that every session has, and under those that reading has just made.
    new_names = source_names(spark) - before
    assert new_names
    for name in ("lakewright_slices", "lakewright_changes", *new_names):
        view = f"CREATE OR REPLACE TEMP VIEW v (id STRING) USING {name} OPTIONS ({options})"
        with pytest.raises(SPARK_ERRORS):
            spark.sql(view) and spark.sql("SELECT * FROM v").collect()
    assert not made.exists()


def test_a_query_that_begins_with_thousands_of_comments(
    spark: SparkSession, tmp_path: Path
) -> None:
    assert spark.sql(f"{HEADER} SELECT 1 AS one").collect()[0].one == 1
    path = tmp_path / "t"
    two_partitions(spark, path)
    spark.sql(f"{HEADER} CREATE TABLE commented USING hudi LOCATION '{path}'")
    spark.sql(f"{HEADER} DELETE FROM commented WHERE id = 'a'")
    assert spark.sql(f"{HEADER} SELECT id FROM commented").collect() == [("b",)]
    assert len(spark.sql(f"{HEADER} CALL show_commits('commented')").collect()) == 2
    spark.sql("DROP TABLE commented")
