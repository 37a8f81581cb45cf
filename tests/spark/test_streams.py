"""`spark.readStream.format("hudi")`: a table's changes as a stream, and into another table."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

import lakewright as lw
from lakewright.clock import SystemClock
from lakewright.storage.local import LocalStorage
from support.golden import GoldenTables
from support.soak import some
from support.spark import start_query
from support.tables import NO_SERVICES, WrittenTable, row

START = "hoodie.datasource.streaming.startOffset"
LIMIT = "lakewright.streaming.max.instants.per.trigger"
FALLBACK = "hoodie.datasource.read.incr.fallback.fulltablescan.enable"
TARGET = {
    "hoodie.table.name": "target",
    "hoodie.datasource.write.recordkey.field": "id",
    "hoodie.datasource.write.partitionpath.field": "day",
    "hoodie.datasource.write.precombine.field": "ts",
}

of_files, of_logs = (
    pytest.mark.parametrize("kind", some(["COPY_ON_WRITE", "MERGE_ON_READ"], place))
    for place in (0, 1)
)


@dataclass
class Stream:
    """A query that is started again and again, and the ids of the rows of each of its batches."""

    spark: SparkSession
    source: Path
    checkpoint: Path
    options: Mapping[str, str] = field(default_factory=dict)
    batches: dict[int, list[str]] = field(default_factory=dict)
    dies: bool = False

    def run(self, format: str = "hudi", *, once: bool = False) -> list[list[str]]:
        frame = self.spark.readStream.format(format).options(**self.options).load(str(self.source))
        assert frame.isStreaming
        writer = frame.writeStream.foreachBatch(self._take)
        writer = writer.option("checkpointLocation", str(self.checkpoint))
        writer = writer.trigger(once=True) if once else writer.trigger(availableNow=True)
        start_query(writer).awaitTermination()
        return [rows for _, rows in sorted(self.batches.items())]

    def _take(self, frame: DataFrame, number: int) -> None:
        self.batches[number] = sorted(record.id for record in frame.collect())
        if self.dies:
            raise RuntimeError("killed")

    def ends(self) -> list[dict[str, Any]]:
        """What Spark keeps of the ends of batches."""
        files = sorted((self.checkpoint / "offsets").glob("[0-9]*"), key=lambda f: int(f.name))
        return [json.loads(file.read_text().splitlines()[-1]) for file in files]


def made(folder: Path, kind: str, commits: int) -> WrittenTable:
    table = WrittenTable(LocalStorage(str(folder)), SystemClock(), NO_SERVICES).create(kind)
    for number in range(1, commits + 1):
        table.upsert([row("a", number), row(f"k{number}", number, day="2026-01-02")])
    return table


@of_logs
def test_a_stream_goes_on_from_its_checkpoint(
    spark: SparkSession, tmp_path: Path, kind: str
) -> None:
    table = made(tmp_path / "t", kind, 2)
    stream = Stream(spark, tmp_path / "t", tmp_path / "c")
    assert stream.run() == [["a", "k1", "k2"]]
    assert stream.run() == [["a", "k1", "k2"]]
    table.upsert([row("b", 3)])
    assert stream.run("org.apache.hudi") == [["a", "k1", "k2"], ["b"]]
    first, second = stream.ends()
    assert list(first) == ["offsetCommitTime", "since"]
    assert list(second) == ["offsetCommitTime"]


@pytest.mark.thorough
def test_available_now_keeps_to_the_limit(spark: SparkSession, tmp_path: Path) -> None:
    made(tmp_path / "t", "COPY_ON_WRITE", 5)
    stream = Stream(spark, tmp_path / "t", tmp_path / "c", {LIMIT: "2"})
    assert stream.run() == [["a", "k1", "k2"], ["a", "k3", "k4"], ["a", "k5"]]
    at_once = Stream(spark, tmp_path / "t", tmp_path / "d", {LIMIT: "2"})
    assert at_once.run(once=True) == [["a", "k1", "k2", "k3", "k4", "k5"]]


@pytest.mark.thorough
def test_a_stream_from_the_latest_on(spark: SparkSession, tmp_path: Path) -> None:
    table = made(tmp_path / "t", "MERGE_ON_READ", 2)
    stream = Stream(spark, tmp_path / "t", tmp_path / "c", {START: "latest"})
    assert stream.run() == [[]]
    table.upsert([row("b", 3)])
    assert stream.run() == [[], ["b"]]


@of_files
def test_a_batch_that_failed_is_the_same_afterwards(
    spark: SparkSession, tmp_path: Path, kind: str
) -> None:
    table = made(tmp_path / "t", kind, 2)
    stream = Stream(spark, tmp_path / "t", tmp_path / "c", dies=True)
    with pytest.raises(PySparkException, match="killed"):
        stream.run()
    table.upsert([row("b", 3)])
    stream.dies, stream.batches = False, {}
    stream.options = {START: "latest"}
    assert stream.run() == [["a", "k1", "k2"], ["b"]]


def test_a_running_stream_takes_what_comes(spark: SparkSession, tmp_path: Path) -> None:
    table = made(tmp_path / "t", "COPY_ON_WRITE", 1)
    frame = spark.readStream.format("hudi").load(str(tmp_path / "t"))
    writer = frame.select("id", "ts").writeStream.format("memory").queryName("taken")
    query = start_query(writer)
    try:
        query.processAllAvailable()
        for number in (2, 3):
            table.upsert([row("a", number)])
            query.processAllAvailable()
        rows = sorted((record.id, record.ts) for record in spark.table("taken").collect())
        assert rows == [("a", 1), ("a", 2), ("a", 3), ("k1", 1)]
    finally:
        query.stop()
        query.awaitTermination()


@pytest.mark.thorough
def test_a_cleaned_range_ends_the_query_and_names_the_option(
    spark: SparkSession, tmp_path: Path
) -> None:
    table = made(tmp_path / "t", "COPY_ON_WRITE", 2)
    stream = Stream(spark, tmp_path / "t", tmp_path / "c", {LIMIT: "1", FALLBACK: "false"})
    for number in range(3, 6):
        table.upsert([row("a", number)])
    table.services({"hoodie.clean.commits.retained": "1"}).run("clean")
    with pytest.raises(PySparkException, match=FALLBACK):
        stream.run()
    assert stream.batches == {}
    stream.options = {LIMIT: "1"}
    batches = stream.run()
    # The clean has retained the last two versions of `a`.
    assert sorted(key for rows in batches for key in rows) == ["a", "a", "k1", "k2"]


def test_a_new_column_ends_the_query_and_comes_with_the_next(
    spark: SparkSession, tmp_path: Path
) -> None:
    table = lw.create(
        str(tmp_path / "t"), spark, name="t", record_key="id", schema="id STRING, x INT"
    )
    frame = spark.readStream.format("hudi").load(str(tmp_path / "t"))
    table.insert(spark.createDataFrame([("a", 1, 2.5)], "id STRING, x INT, y DOUBLE"))
    received: list[Any] = []

    def run(data: DataFrame) -> None:
        writer = data.writeStream.foreachBatch(lambda rows, _: received.extend(rows.collect()))
        writer = writer.option("checkpointLocation", str(tmp_path / "c"))
        start_query(writer.trigger(availableNow=True)).awaitTermination()

    with pytest.raises(PySparkException, match=r"new columns.*'y'"):
        run(frame)
    run(spark.readStream.format("hudi").load(str(tmp_path / "t")))
    assert [(record.id, record.y) for record in received] == [("a", 2.5)]


def test_named_columns(spark: SparkSession, golden: GoldenTables, tmp_path: Path) -> None:
    path = str(golden["mor_avro"])
    frame = spark.readStream.format("hudi").schema("x double, id string").load(path)
    assert frame.columns == ["x", "id"]
    writer = frame.writeStream.format("parquet").option("path", str(tmp_path / "out"))
    writer = writer.option("checkpointLocation", str(tmp_path / "c")).trigger(availableNow=True)
    start_query(writer).awaitTermination()
    expected = spark.read.format("hudi").load(path).select("x", "id")
    assert sorted(spark.read.parquet(str(tmp_path / "out")).collect()) == sorted(expected.collect())


def test_every_type_comes_through(spark: SparkSession, golden: GoldenTables) -> None:
    path = str(golden["mor_avro"])
    frame = spark.readStream.format("hudi").load(path)
    assert frame.schema == spark.read.format("hudi").load(path).schema
    received: list[Any] = []
    writer = frame.writeStream.foreachBatch(lambda rows, _: received.extend(rows.collect()))
    start_query(writer.trigger(availableNow=True)).awaitTermination()
    assert len(received) == 26
    assert set(map(str, received)) == set(map(str, spark.read.format("hudi").load(path).collect()))


def test_what_is_wrong_is_reported_before_anything_starts(
    spark: SparkSession, golden: GoldenTables, tmp_path: Path
) -> None:
    path = str(golden["mor_avro"])
    stream = spark.readStream.format("hudi")
    with pytest.raises(lw.UnsupportedError, match=r"streaming\.table\.version"):
        stream.option("hoodie.datasource.read.streaming.table.version", 6).load(path)
    with pytest.raises(lw.InvalidError, match="one path of a table"):
        spark.readStream.format("hudi").load()
    with pytest.raises(lw.InvalidError, match="no table at this path"):
        spark.readStream.format("hudi").load(str(tmp_path))
    with pytest.warns(UserWarning, match="hoodie.metadata.enable"):
        spark.readStream.format("hudi").option("hoodie.metadata.enable", True).load(path)


def test_other_streams_are_not_changed(spark: SparkSession, tmp_path: Path) -> None:
    spark.range(3).write.json(str(tmp_path / "plain"))
    frame = spark.readStream.schema("id LONG").format("json").load(str(tmp_path / "plain"))
    assert frame.isStreaming
    assert spark.readStream.format("rate").option("rowsPerSecond", 1).load().isStreaming


@of_logs
def test_one_table_into_another(spark: SparkSession, tmp_path: Path, kind: str) -> None:
    table = made(tmp_path / "a", kind, 3)

    def run() -> None:
        frame = spark.readStream.format("hudi").option(LIMIT, 1).load(str(tmp_path / "a"))
        writer = frame.writeStream.format("hudi").options(**TARGET)
        writer = writer.option("checkpointLocation", str(tmp_path / "c"))
        start_query(writer.trigger(availableNow=True), str(tmp_path / "b")).awaitTermination()

    run()
    table.upsert([row("k1", 9, "changed", "2026-01-02"), row("z", 9)])
    run()
    target = WrittenTable(LocalStorage(str(tmp_path / "b")))
    assert target.rows() == table.rows()
    assert len(lw.open(str(tmp_path / "b")).snapshot().timeline.completed_writes) == 4
