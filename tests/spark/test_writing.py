"""Writes on Spark: every operation, through tables and through `df.write`."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import product
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import lakewright as lw
from lakewright.client.stream_sink import StreamSink
from lakewright.storage.factory import storage_for
from support.soak import some

DDL = "id STRING, day STRING, ts BIGINT, note STRING"
TYPES = ("COPY_ON_WRITE", "MERGE_ON_READ")
BOTH = pytest.mark.parametrize("table_type", TYPES)


def frame(spark: SparkSession, *rows: tuple[str, str, int, str]) -> DataFrame:
    return spark.createDataFrame(list(rows), DDL)


def notes(table: lw.Table) -> dict[str, str]:
    return {row.id: row.note for row in table.read().select("id", "note").collect()}


def create(spark: SparkSession, path: Path, table_type: str, **more: object) -> lw.Table:
    options = {"partition_by": "day", "ordering": "ts", **more}
    return lw.create(
        str(path), spark=spark, name="t", table_type=table_type, record_key="id", **options
    )


@BOTH
def test_a_history(spark: SparkSession, tmp_path: Path, table_type: str) -> None:
    table = create(spark, tmp_path / "t", table_type)
    first = frame(spark, ("a", "d1", 1, "1"), ("b", "d1", 1, "1"), ("c", "d2", 1, "1"))
    commit = table.bulk_insert(first)
    assert (commit.inserted, commit.partitions) == (3, ("d1", "d2"))
    commit = table.upsert(
        frame(spark, ("a", "d1", 2, "2"), ("b", "d1", 0, "late"), ("d", "d3", 1, "new"))
    )
    assert commit.inserted == 1
    assert notes(table) == {"a": "2", "b": "1", "c": "1", "d": "new"}
    assert table.delete(frame(spark, ("c", "d2", 0, ""))).deleted == 1
    table.insert(frame(spark, ("e", "d2", 1, "ins")))
    assert set(notes(table)) == {"a", "b", "d", "e"}
    table.insert_overwrite(frame(spark, ("f", "d1", 1, "over")))
    assert set(notes(table)) == {"d", "e", "f"}
    assert table.delete_partitions(["d2", "d3"]).partitions == ("d2", "d3")
    assert set(notes(table)) == {"f"}
    table.insert_overwrite_table(frame(spark, ("g", "d9", 1, "all")))
    assert set(notes(table)) == {"g"}
    last = table.timeline()[-1]
    table.rollback(last)
    assert set(notes(table)) == {"f"}


@pytest.mark.parametrize(
    ("table_type", "index"),
    some(list(product(TYPES, ("GLOBAL_SIMPLE", "GLOBAL_BLOOM"))), 0, 3),
)
def test_a_global_index_moves_rows(
    spark: SparkSession, tmp_path: Path, table_type: str, index: str
) -> None:
    table = create(spark, tmp_path / "t", table_type, options={"hoodie.index.type": index})
    table.upsert(frame(spark, ("a", "d1", 5, "1"), ("b", "d1", 5, "1"), ("c", "d1", 5, "1")))
    table.upsert(
        frame(
            spark,
            ("a", "d2", 6, "moved"),
            ("b", "d2", 4, "late"),
            ("new", "d1", 1, "older"),
            ("new", "d2", 2, "newer"),
        )
    )
    rows = {(row.id, row.day, row.note) for row in table.read().collect()}
    assert rows == {
        ("a", "d2", "moved"),
        ("b", "d1", "1"),
        ("c", "d1", "1"),
        ("new", "d2", "newer"),
    }
    table.delete(spark.createDataFrame([("a",), ("c",), ("unknown",)], "id STRING"))
    assert set(notes(table)) == {"b", "new"}


def test_a_global_index_may_keep_rows_where_they_are(spark: SparkSession, tmp_path: Path) -> None:
    options = {"hoodie.index.type": "GLOBAL_SIMPLE"}
    table = create(spark, tmp_path / "t", "COPY_ON_WRITE", options=options)
    table.upsert(frame(spark, ("a", "d1", 5, "1")))
    table.upsert(
        frame(spark, ("a", "d2", 6, "2")), {"hoodie.simple.index.update.partition.path": "false"}
    )
    rows = table.read().select("_hoodie_partition_path", "note").collect()
    assert [tuple(row) for row in rows] == [("d1", "2")]


SORT_MODES = (
    "NONE",
    "GLOBAL_SORT",
    "PARTITION_SORT",
    "PARTITION_PATH_REPARTITION",
    "PARTITION_PATH_REPARTITION_AND_SORT",
)


@pytest.mark.parametrize("mode", SORT_MODES)
def test_sort_modes_of_bulk_inserts(spark: SparkSession, tmp_path: Path, mode: str) -> None:
    table = create(spark, tmp_path / "t", "COPY_ON_WRITE")
    many = spark.range(200).select(
        F.lpad(((F.col("id") * 37) % 200).cast("string"), 4, "0").alias("id"),
        F.concat(F.lit("d"), F.col("id") % 3).alias("day"),
        F.col("id").alias("ts"),
        F.lit("x").alias("note"),
    )
    table.bulk_insert(many, {"hoodie.bulkinsert.sort.mode": mode})
    assert table.read().count() == 200
    files = [file for file in (tmp_path / "t").rglob("*.parquet") if ".hoodie" not in file.parts]
    if mode not in ("NONE", "PARTITION_PATH_REPARTITION"):
        for file in files:
            keys = pq.read_table(file, columns=["id"])["id"].to_pylist()
            assert keys == sorted(keys)
    if "REPARTITION" in mode:
        assert len(files) == 3


OPTIONS = {
    "hoodie.table.name": "jobs",
    "hoodie.datasource.write.recordkey.field": "id",
    "hoodie.datasource.write.partitionpath.field": "day",
    "hoodie.datasource.write.precombine.field": "ts",
    "hoodie.datasource.write.table.type": "MERGE_ON_READ",
    "hoodie.upsert.shuffle.parallelism": "2",
}


def save(data: DataFrame, path: Path, mode: str = "append", **more: str) -> None:
    options = {**OPTIONS, **{key.replace("_", "."): value for key, value in more.items()}}
    data.write.format("hudi").options(**options).mode(mode).save(str(path))


def test_a_job_written_for_hudi(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "jobs"
    operation = "hoodie.datasource.write.operation"
    save(frame(spark, ("a", "d1", 1, "1"), ("b", "d2", 1, "1")), path, "overwrite")
    save(frame(spark, ("a", "d1", 2, "2")), path)
    frame(spark, ("b", "d2", 0, "")).write.format("org.apache.hudi").options(
        **OPTIONS, **{operation: "delete"}
    ).save(str(path), mode="append")
    table = lw.open(str(path), spark=spark)
    assert notes(table) == {"a": "2"}
    assert [i.action for i in table.timeline()] == ["deltacommit"] * 3
    with pytest.raises(lw.InvalidError, match="already"):
        save(frame(spark), path, "errorifexists")
    save(frame(spark, ("z", "d1", 1, "no")), path, "ignore")
    assert notes(table) == {"a": "2"}
    # The same table again: its rows are replaced, its history stays.
    save(frame(spark, ("n", "d5", 1, "new")), path, "overwrite")
    assert notes(table) == {"n": "new"}
    assert len(table.timeline()) == 4
    drop = {operation: "delete_partition", "hoodie.datasource.write.partitions.to.delete": "d*"}
    frame(spark).write.format("hudi").options(**OPTIONS, **drop).mode("append").save(str(path))
    assert notes(table) == {}


def test_overwriting_with_another_table(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "jobs"
    save(frame(spark, ("a", "d1", 1, "1")), path, "overwrite")
    other = {**OPTIONS, "hoodie.datasource.write.table.type": "COPY_ON_WRITE"}
    data = frame(spark, ("n", "d5", 1, "new"))
    data.write.format("hudi").options(**other).mode("overwrite").save(str(path))
    table = lw.open(str(path), spark=spark)
    assert table.config.table_type == "COPY_ON_WRITE"
    assert notes(table) == {"n": "new"}


def test_partition_by_on_the_writer(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "jobs"
    options = {k: v for k, v in OPTIONS.items() if "partitionpath" not in k}
    writer = frame(spark, ("a", "d1", 1, "1")).write.format("hudi").options(**options)
    writer.partitionBy("day").mode("append").save(str(path))
    assert lw.open(str(path)).config.partition_fields == ("day",)


def test_other_formats_are_not_changed(spark: SparkSession, tmp_path: Path) -> None:
    frame(spark, ("a", "d1", 1, "1")).write.mode("overwrite").parquet(str(tmp_path / "p"))
    frame(spark, ("a", "d1", 1, "1")).write.format("json").save(str(tmp_path / "j"))
    assert spark.read.parquet(str(tmp_path / "p")).count() == 1
    assert spark.read.json(str(tmp_path / "j")).count() == 1


def test_bad_rows_are_an_error_and_change_nothing(spark: SparkSession, tmp_path: Path) -> None:
    table = create(spark, tmp_path / "t", "COPY_ON_WRITE")
    table.upsert(frame(spark, ("a", "d1", 1, "1")))
    before = sorted(path for path in (tmp_path / "t").rglob("*"))
    bad = frame(spark, ("b", "d1", 1, "1")).union(
        frame(spark, ("c", "d1", 1, "1")).withColumn("id", F.lit(None).cast("string"))
    )
    with pytest.raises(lw.InvalidError, match="no record key"):
        table.upsert(bad)
    assert sorted(path for path in (tmp_path / "t").rglob("*")) == before
    assert notes(table) == {"a": "1"}


def test_a_frame_without_rows_or_columns(spark: SparkSession, tmp_path: Path) -> None:
    table = create(spark, tmp_path / "t", "COPY_ON_WRITE")
    table.upsert(frame(spark, ("a", "d1", 1, "1")))
    assert table.upsert(frame(spark)).partitions == ()
    for write in (table.upsert, table.insert_overwrite_table):
        with pytest.raises(lw.InvalidError, match="no columns"):
            write(spark.createDataFrame([], ""))
    assert notes(table) == {"a": "1"}


TYPES = (
    "id INT, day DATE, ts TIMESTAMP, b BOOLEAN, f FLOAT, d DOUBLE, n DECIMAL(30,10), "
    "m DECIMAL(8,2), at TIMESTAMP_NTZ, bytes BINARY, list ARRAY<STRING>, map MAP<STRING,BIGINT>, "
    "deep STRUCT<x: INT, ys: ARRAY<STRUCT<z: STRING>>>"
)


@BOTH
def test_all_kinds_of_values(spark: SparkSession, tmp_path: Path, table_type: str) -> None:
    table = create(spark, tmp_path / "t", table_type)
    text = (
        "SELECT 1 AS id, DATE'2026-01-01' AS day, TIMESTAMP'2026-01-01 01:02:03.004005' AS ts, "
        "true AS b, CAST(1.5 AS FLOAT) AS f, 2.25D AS d, CAST(12345.678 AS DECIMAL(30,10)) AS n, "
        "CAST(1.25 AS DECIMAL(8,2)) AS m, TIMESTAMP_NTZ'2026-01-01 00:00:00' AS at, X'0102' AS "
        "bytes, array('x', 'y') AS list, map('one', 1L) AS map, "
        "named_struct('x', 1, 'ys', array(named_struct('z', 'q'))) AS deep"
    )
    one = spark.sql(text)
    nulls = spark.createDataFrame([(2, *[None] * 12)], TYPES)
    both = one.unionByName(nulls.withColumn("day", F.lit("2026-01-02").cast("date")))
    table.upsert(both)
    table.upsert(both)
    written = table.read().drop(*[c for c in table.read().columns if c.startswith("_hoodie")])
    assert as_texts(written) == as_texts(both)


def as_texts(data: DataFrame) -> list[str]:
    return sorted(text for (text,) in data.selectExpr("to_json(struct(*))").collect())


def test_a_stream_compacts_in_a_thread_beside_its_batches(
    spark: SparkSession, tmp_path: Path
) -> None:
    options = {
        **OPTIONS,
        "hoodie.datasource.write.table.type": "MERGE_ON_READ",
        "hoodie.datasource.compaction.async.enable": "true",
        "hoodie.compact.inline.max.delta.commits": "1",
        "hoodie.datasource.write.streaming.checkpoint.identifier": "compacted",
    }
    path = str(tmp_path / "table")
    frame(spark, ("a", "d1", 1, "1")).write.format("hudi").options(**options).save(path)
    sink = StreamSink(storage_for(path), options)
    for batch in range(2):
        sink(frame(spark, ("a", "d1", batch + 2, str(batch + 2))), batch)
    sink.close()
    table = lw.open(path, spark=spark)
    assert notes(table) == {"a": "3"}
    compactions = [i for i in table.timeline() if i.action == "commit" and i.is_completed]
    assert compactions
    assert not [i for i in table.timeline() if i.action == "compaction"]


def test_a_stream_is_written_once(spark: SparkSession, tmp_path: Path) -> None:
    source, path, checkpoint = (tmp_path / name for name in ("source", "table", "checkpoint"))

    def arrive(*rows: tuple[str, str, int, str]) -> None:
        frame(spark, *rows).coalesce(1).write.mode("append").json(str(source))

    def run() -> None:
        stream = spark.readStream.schema(DDL).json(str(source))
        writer = stream.writeStream.format("hudi").options(**OPTIONS)
        query = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True)
        query.start(str(path)).awaitTermination()

    arrive(("a", "d1", 1, "1"))
    run()
    arrive(("a", "d1", 2, "2"), ("b", "d1", 1, "1"))
    run()
    table = lw.open(str(path), spark=spark)
    assert notes(table) == {"a": "2", "b": "1"}
    assert len(table.timeline()) == 2
    # Spark dies after our commit and before it has noted the end of the batch: it replays it.
    newest = max((checkpoint / "commits").glob("[0-9]*"), key=lambda file: int(file.name))
    newest.unlink()
    (newest.parent / f".{newest.name}.crc").unlink(missing_ok=True)
    with pytest.warns(RuntimeWarning, match="batch=1"):
        run()
    assert len(table.timeline()) == 2
    snapshot = table.snapshot()
    extra = snapshot.commits([snapshot.timeline.completed_writes[-1]])[0].extra
    assert json.loads(extra["_hudi_streaming_sink_checkpoint"]) == {"default_single_writer": "1"}


def test_a_sink_for_foreach_batch(spark: SparkSession, tmp_path: Path) -> None:
    table = create(spark, tmp_path / "t", "COPY_ON_WRITE")
    with pytest.raises(lw.InvalidError, match="checkpoint"):
        table.stream_sink()
    sink = table.stream_sink(
        {"hoodie.datasource.write.streaming.checkpoint.identifier": "of_this_test"}
    )
    sink(frame(spark, ("a", "d1", 1, "1")), 0)
    with pytest.warns(RuntimeWarning, match="batch=0"):
        sink(frame(spark, ("a", "d1", 1, "1")), 0)
    sink(frame(spark, ("a", "d1", 2, "2")), 1)
    assert len(table.timeline()) == 2
    assert notes(table) == {"a": "2"}


def jobs_of(spark: SparkSession, name: str, run: Callable[[], object]) -> int:
    spark.sparkContext.setJobGroup(name, name)
    try:
        run()
    finally:
        spark.sparkContext.setLocalProperty("spark.jobGroup.id", None)  # type: ignore[arg-type]
    return len(spark.sparkContext.statusTracker().getJobIdsForGroup(name))


def test_a_session_keeps_its_settings_and_need_not_be_adaptive(
    spark: SparkSession, tmp_path: Path
) -> None:
    parts = "spark.sql.adaptive.coalescePartitions.initialPartitionNum"
    adaptive = "spark.sql.adaptive.enabled"
    table = create(spark, tmp_path / "t", "COPY_ON_WRITE")
    spark.conf.set(parts, "7")
    try:
        table.upsert(frame(spark, ("a", "d1", 1, "1"), ("b", "d2", 1, "1")))
        assert spark.conf.get(parts) == "7"
        spark.conf.unset(parts)
        table.upsert(frame(spark, ("a", "d1", 2, "2")))
        assert spark.conf.get(parts, None) is None
        spark.conf.set(adaptive, "false")
        table.upsert(frame(spark, ("b", "d2", 2, "2"), ("c", "d3", 2, "2")))
    finally:
        spark.conf.unset(parts)
        spark.conf.set(adaptive, "true")
    assert notes(table) == {"a": "2", "b": "2", "c": "2"}


@BOTH
def test_spark_jobs_of_a_small_batch(spark: SparkSession, tmp_path: Path, table_type: str) -> None:
    """A hundred rows into three partitions: one job shuffles them, one lets the workers write."""
    table = create(spark, tmp_path / "t", table_type)
    rows = spark.range(100).select(
        F.col("id").cast("string").alias("id"),
        F.concat(F.lit("d"), F.col("id") % 3).alias("day"),
        F.lit(1).cast("bigint").alias("ts"),
        F.lit("x").alias("note"),
    )
    table.upsert(rows)
    assert jobs_of(spark, table_type, lambda: table.upsert(rows)) == 2
