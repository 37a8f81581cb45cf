"""Options of storage through every interface on a session, and options that there are not.

The table's checksum file is wrong: reading its properties needs `verify_sidecars=false`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

import lakewright as lw
from support.cli import STORAGE_OPTIONS, OpenedStorages, all_have_options, read_tree

TABLE = {
    "hoodie.table.name": "t",
    "hoodie.datasource.write.recordkey.field": "id",
    "hoodie.datasource.write.precombine.field": "ts",
}
TYPO = {"duable": "true"}
SQL = ", ".join(f"{key} = {value}" for key, value in STORAGE_OPTIONS.items())


def frame(spark: SparkSession, key: str = "b") -> DataFrame:
    return spark.createDataFrame([(key, 1)], "id STRING, ts INT")


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> OpenedStorages:
    return OpenedStorages(monkeypatch)


@pytest.fixture
def place(spark: SparkSession, tmp_path: Path) -> Path:
    """A table of one row, whose properties have a wrong checksum."""
    folder = tmp_path / "t"
    frame(spark, "a").write.format("hudi").options(**TABLE).save(str(folder))
    (folder / ".hoodie" / ".hoodie.properties.crc").write_bytes(b"crc\0 is wrong")
    return folder


def ids(rows: DataFrame) -> list[str]:
    return sorted(row.id for row in rows.collect())


def opened_table(spark: SparkSession, place: Path) -> lw.Table:
    return lw.open(str(place), spark, options=STORAGE_OPTIONS)


def save(spark: SparkSession, place: Path, extra: dict[str, str]) -> None:
    writer = frame(spark).write.format("hudi").options(**TABLE, **extra)
    writer.mode("append").save(str(place))


def read(spark: SparkSession, place: Path, extra: dict[str, str]) -> None:
    ids(spark.read.format("hudi").options(**extra).load(str(place)))


def read_a_stream(spark: SparkSession, place: Path, extra: dict[str, str]) -> None:
    rows = spark.readStream.format("hudi").options(**extra).load(str(place))
    writer = rows.writeStream.format("parquet").trigger(availableNow=True)
    writer = writer.option("checkpointLocation", f"{place}-c").option("path", f"{place}-out")
    writer.start().awaitTermination()
    assert ids(spark.read.parquet(f"{place}-out")) == ["a"]


def write_a_stream(spark: SparkSession, place: Path, extra: dict[str, str]) -> None:
    source = f"{place}-in"
    frame(spark).write.mode("overwrite").parquet(source)
    rows = spark.readStream.schema("id STRING, ts INT").parquet(source)
    writer = rows.writeStream.format("hudi").options(**TABLE, **extra).trigger(availableNow=True)
    writer.option("checkpointLocation", f"{place}-c").start(str(place)).awaitTermination()


def upsert(spark: SparkSession, place: Path, extra: dict[str, str]) -> None:
    opened_table(spark, place).upsert(frame(spark), options=extra)


def run_service(spark: SparkSession, place: Path, extra: dict[str, str]) -> None:
    opened_table(spark, place).run("clean", options=extra)


def sink(spark: SparkSession, place: Path, extra: dict[str, str]) -> None:
    name = {"hoodie.datasource.write.streaming.checkpoint.identifier": "s"}
    opened_table(spark, place).stream_sink({**name, **extra})(frame(spark), 0)


def freshness(spark: SparkSession, place: Path, extra: dict[str, str]) -> None:
    opened_table(spark, place).freshness(extra)


def call(spark: SparkSession, place: Path, extra: dict[str, str]) -> None:
    listed = ", ".join(f"{key}={value}" for key, value in extra.items())
    spark.sql(f"CALL run_service(path => '{place}', service => 'clean', options => '{listed}')")


def explain_ttl(spark: SparkSession, place: Path, extra: dict[str, str]) -> None:
    listed = ", ".join(f"{key}={value}" for key, value in {**STORAGE_OPTIONS, **extra}.items())
    try:
        spark.sql(f"CALL ttl_explain(path => '{place}', options => '{listed}')")
    except lw.InvalidError as error:
        if "option" in error.facts:
            raise


def statements(spark: SparkSession, place: Path, extra: dict[str, str]) -> None:
    """The catalog keeps the options of a name, for each statement on it."""
    listed = ", ".join(f"{key} = {value}" for key, value in extra.items())
    spark.sql("DROP TABLE IF EXISTS named")
    try:
        spark.sql(f"CREATE TABLE named USING hudi OPTIONS ({listed}) LOCATION '{place}'")
        assert ids(spark.table("named")) == ["a"]
        spark.sql("INSERT INTO named VALUES ('c', 1)")
        spark.sql("UPDATE named SET ts = 2 WHERE id = 'a'")
        spark.sql("DELETE FROM named WHERE id = 'c'")
        spark.sql("CALL run_clean(table => 'named')")
        assert ids(spark.sql("SELECT * FROM named VERSION AS OF '99991231235959999'")) == ["a"]
    finally:
        spark.sql("DROP TABLE IF EXISTS named")


def temporary_view(spark: SparkSession, place: Path, extra: dict[str, str]) -> None:
    listed = ", ".join(f"{key} '{value}'" for key, value in extra.items())
    try:
        spark.sql(f"CREATE TEMP VIEW viewed USING hudi OPTIONS (path '{place}', {listed})")
        assert ids(spark.table("viewed")) == ["a"]
    finally:
        spark.catalog.dropTempView("viewed")


def ingest_files(spark: SparkSession, place: Path, extra: dict[str, str]) -> None:
    file = Path(f"{place}-files") / "f.json"
    file.parent.mkdir(exist_ok=True)
    file.write_text(json.dumps({"id": "b", "ts": 1}))
    os.utime(file, (1, 1))
    options = {
        **TABLE,
        "hoodie.streamer.source.dfs.root": str(file.parent),
        "lakewright.source.files.format": "json",
        "lakewright.source.schema": "id STRING, ts INT",
    }
    lw.ingest(spark, "files", str(place), options={**options, **extra})


def ingest_from(spark: SparkSession, place: Path, extra: dict[str, str]) -> None:
    options = {
        **TABLE,
        "hoodie.streamer.source.hoodieincr.path": str(place),
        "hoodie.streamer.source.hoodieincr.missing.checkpoint.strategy": "READ_UPTO_LATEST_COMMIT",
    }
    lw.ingest(spark, "hudi", f"{place}-copy", options={**options, **extra})


Interface = Callable[[SparkSession, Path, dict[str, str]], None]
# Those that open the table in the process of the test; the others in a worker of Spark.
HERE: list[Interface] = [
    save,
    read,
    read_a_stream,
    write_a_stream,
    upsert,
    run_service,
    sink,
    freshness,
    call,
    statements,
    ingest_files,
    ingest_from,
]
NEEDING = [f for f in (*HERE, temporary_view) if f not in (upsert, run_service, sink, freshness)]
REFUSING = [*HERE, explain_ttl, temporary_view]


@pytest.mark.parametrize("interface", HERE, ids=lambda interface: interface.__name__)
def test_options_of_storage_arrive(
    interface: Interface, spark: SparkSession, place: Path, opened: OpenedStorages
) -> None:
    interface(spark, place, STORAGE_OPTIONS)
    assert all_have_options(opened.of(place))


@pytest.mark.parametrize("interface", NEEDING, ids=lambda interface: interface.__name__)
def test_without_them_the_checksum_counts(
    interface: Interface, spark: SparkSession, place: Path
) -> None:
    with pytest.raises((lw.CorruptError, PySparkException), match="checksum"):
        interface(spark, place, {"durable": "false"})


@pytest.mark.parametrize("interface", REFUSING, ids=lambda interface: interface.__name__)
def test_an_unknown_option_is_refused_and_changes_nothing(
    interface: Interface, spark: SparkSession, place: Path
) -> None:
    before = read_tree(place)
    with pytest.raises((lw.InvalidError, PySparkException), match="no such option") as raised:
        interface(spark, place, {**STORAGE_OPTIONS, **TYPO})
    assert "duable" in str(raised.value)
    assert "did_you_mean='durable'" in str(raised.value)
    assert read_tree(place) == before


def test_a_temporary_view_gets_options_of_storage(spark: SparkSession, place: Path) -> None:
    temporary_view(spark, place, STORAGE_OPTIONS)


def test_a_session_may_say_it_for_all(
    spark: SparkSession, place: Path, opened: OpenedStorages
) -> None:
    for key, value in STORAGE_OPTIONS.items():
        spark.conf.set(key, value)
    try:
        spark.sql(f"INSERT INTO hudi.`{place}` VALUES ('c', 1)")
        assert ids(spark.read.format("hudi").load(str(place))) == ["a", "c"]
        assert all_have_options(opened.of(place))
    finally:
        for key in STORAGE_OPTIONS:
            spark.conf.unset(key)


def test_a_table_is_created_with_them_and_does_not_store_them(
    spark: SparkSession, tmp_path: Path, opened: OpenedStorages
) -> None:
    made = lw.create(
        str(tmp_path / "one"), spark, name="one", record_key="id", options=STORAGE_OPTIONS
    )
    assert all_have_options(opened.of(tmp_path / "one"))
    assert not made.config.properties.keys() & STORAGE_OPTIONS.keys()
    properties = f"TBLPROPERTIES (primaryKey = 'id', {SQL})"
    spark.sql("DROP TABLE IF EXISTS two")
    spark.sql(f"CREATE TABLE two (id STRING, ts INT) USING hudi {properties} "
              f"LOCATION '{tmp_path / 'two'}'")  # fmt: skip
    try:
        spark.sql("INSERT INTO two VALUES ('a', 1)")
        assert all_have_options(opened.of(tmp_path / "two"))
    finally:
        spark.sql("DROP TABLE two")


def unknown_in_create(spark: SparkSession, place: Path) -> Any:
    lw.create(str(place), spark, name="t", record_key="id", options={"hoodie.tabel.name": "t"})


def unknown_in_sql(spark: SparkSession, place: Path) -> Any:
    properties = "TBLPROPERTIES (primaryKey = 'id', hoodie.tabel.name = 't')"
    spark.sql(f"CREATE TABLE t (id STRING) USING hudi {properties} LOCATION '{place}'")


def unknown_in_open(spark: SparkSession, place: Path) -> Any:
    lw.open(str(place), spark, options={"hoodie.tabel.name": "t"})


@pytest.mark.parametrize("made", [unknown_in_create, unknown_in_sql, unknown_in_open])
def test_an_unknown_option_makes_no_table(
    made: Callable[[SparkSession, Path], Any], spark: SparkSession, tmp_path: Path
) -> None:
    with pytest.raises(lw.InvalidError, match=r"no such option.*hoodie\.tabel\.name"):
        made(spark, tmp_path / "t")
    assert read_tree(tmp_path) == {}
