"""Ingestion on Spark: files, tables, queries on the way, and what the figures say."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pyarrow.csv
import pyarrow.orc
import pyarrow.parquet
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import lakewright as lw
from lakewright.ingestion.files import FilesSource
from lakewright.model.plans import Skip

Row = dict[str, Any]

DDL = "id string, day string, ts long, note string"
TABLE = {
    "hoodie.table.name": "t",
    "hoodie.datasource.write.recordkey.field": "id",
    "hoodie.datasource.write.partitionpath.field": "day",
    "hoodie.datasource.write.precombine.field": "ts",
}


def row(key: int, ts: int = 1, note: str = "first") -> Row:
    return {"id": f"k{key:03}", "day": f"d{key % 2}", "ts": ts, "note": note}


def put(path: Path, rows: list[Row], at: int) -> None:
    """A file of JSON lines, written at a second long ago."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(record) + "\n" for record in rows))
    os.utime(path, (at, at))


def files(folder: Path, **more: str) -> dict[str, str]:
    return {
        **TABLE,
        "hoodie.streamer.source.dfs.root": str(folder),
        "lakewright.source.files.format": "json",
        **more,
    }


def read(spark: SparkSession, path: Path) -> list[Row]:
    frame = lw.open(str(path), spark).read().select("id", "day", "ts", "note")
    return sorted((record.asDict() for record in frame.collect()), key=lambda record: record["id"])


def test_files_batch_after_batch(spark: SparkSession, tmp_path: Path) -> None:
    source, target = tmp_path / "in", tmp_path / "table"
    # All of one second: a time alone would not identify what was read.
    for number in range(3):
        put(source / f"{number}.json", [row(2 * number), row(2 * number + 1)], at=1_000_000)
    options = files(source, **{"lakewright.source.files.max.files": "2"})
    first = lw.ingest(spark, "files", str(target), options=options)
    assert (first.rows, first.inserted, first.updated, first.waiting) == (4, 4, 0, 1)
    assert first.bytes == sum((source / f"{n}.json").stat().st_size for n in (0, 1))
    assert first.after is not None
    assert first.after.text == "1000000000#1.json"
    put(source / "sub [x]" / "a b.json", [row(0, 2, "second"), row(9)], at=1_000_001)
    second = lw.ingest(spark, "files", lw.open(str(target), spark), options=options)
    assert (second.rows, second.inserted, second.updated) == (4, 3, 1)
    third = lw.ingest(spark, "files", str(target), options=options)
    assert isinstance(third.outcome, Skip)
    expected = [row(0, 2, "second"), *(row(n) for n in (1, 2, 3, 4, 5, 9))]
    assert read(spark, target) == expected


def as_avro(rows: list[Row], path: Path) -> None:
    fields = [{"name": n, "type": "long" if n == "ts" else "string"} for n in rows[0]]
    with path.open("wb") as file:
        fastavro.writer(file, {"type": "record", "name": "r", "fields": fields}, rows)


def as_json(rows: list[Row], path: Path) -> None:
    path.write_text("".join(json.dumps(record) + "\n" for record in rows))


FORMATS: dict[str, Callable[[list[Row], Path], object]] = {
    "json": as_json,
    "csv": lambda rows, path: pa.csv.write_csv(pa.Table.from_pylist(rows), path),
    "parquet": lambda rows, path: pa.parquet.write_table(pa.Table.from_pylist(rows), path),
    "orc": lambda rows, path: pa.orc.write_table(pa.Table.from_pylist(rows), path),
    "avro": as_avro,
}


@pytest.mark.parametrize("kind", FORMATS)
def test_every_format(spark: SparkSession, tmp_path: Path, kind: str) -> None:
    (tmp_path / "in").mkdir()
    FORMATS[kind]([row(n) for n in range(3)], tmp_path / "in" / "rows")
    more = {
        "lakewright.source.files.format": kind,
        "lakewright.source.files.settle.ms": "0",
        "lakewright.source.schema": DDL if kind in ("json", "csv") else "",
        "hoodie.streamer.source.cloud.data.datasource.options": json.dumps({"header": "true"}),
    }
    options = {key: value for key, value in more.items() if value}
    result = lw.ingest(
        spark, "files", tmp_path / "table", options=files(tmp_path / "in", **options)
    )
    assert result.rows == 3
    assert read(spark, tmp_path / "table") == [row(n) for n in range(3)]


def by_function(frame: DataFrame) -> DataFrame:
    return frame.where("ts > 1").withColumn("note", F.upper("note"))


TRANSFORMS: dict[str, Any] = {
    "a query": "SELECT id, day, ts, upper(note) note FROM <SRC> WHERE ts > 1 AND note != '{x}'",
    "a function": by_function,
}


@pytest.mark.parametrize("transform", TRANSFORMS.values(), ids=list(TRANSFORMS))
def test_rows_are_changed_on_their_way(spark: SparkSession, tmp_path: Path, transform: Any) -> None:
    put(tmp_path / "in" / "1", [row(1), row(2, 2, "second")], at=1_000_000)
    put(tmp_path / "in" / "2", [row(3)], at=1_000_001)
    options = files(tmp_path / "in", **{"lakewright.source.files.max.files": "1"})
    arguments: dict[str, Any] = {"options": options, "transform": transform}
    first = lw.ingest(spark, "files", str(tmp_path / "table"), **arguments)
    assert (first.rows, first.inserted) == (1, 1)
    # The transform drops all rows of the next file: a commit without rows advances the checkpoint.
    second = lw.ingest(spark, "files", str(tmp_path / "table"), **arguments)
    assert second.commit is not None
    assert (second.rows, second.inserted) == (0, 0)
    assert lw.ingest(spark, "files", str(tmp_path / "table"), **arguments).commit is None
    assert read(spark, tmp_path / "table") == [row(2, 2, "SECOND")]


def test_a_query_that_is_wrong_leaves_the_position(spark: SparkSession, tmp_path: Path) -> None:
    put(tmp_path / "in" / "1", [row(1)], at=1_000_000)
    with pytest.raises(lw.InvalidError, match="nowhere"):
        lw.ingest(
            spark,
            "files",
            str(tmp_path / "table"),
            transform="SELECT nowhere FROM <SRC>",
            options=files(tmp_path / "in"),
        )
    assert not (tmp_path / "table").exists()


@pytest.mark.parametrize(
    ("index", "kind"),
    [("GLOBAL_SIMPLE", "COPY_ON_WRITE"), ("BUCKET", "MERGE_ON_READ"), ("SIMPLE", "MERGE_ON_READ")],
)
def test_rows_are_counted_whatever_the_index(
    spark: SparkSession, tmp_path: Path, index: str, kind: str
) -> None:
    put(tmp_path / "in" / "1", [row(n) for n in range(5)], at=1_000_000)
    more = {"hoodie.index.type": index, "hoodie.datasource.write.table.type": kind}
    options = files(tmp_path / "in", **more)
    assert lw.ingest(spark, "files", str(tmp_path / "table"), options=options).rows == 5
    put(tmp_path / "in" / "2", [row(n, 2) for n in range(3)] * 2, at=1_000_001)
    again = lw.ingest(spark, "files", str(tmp_path / "table"), options=options)
    # Of two rows with one key one is written.
    assert (again.rows, again.inserted) == (6, 0)
    assert [record["ts"] for record in read(spark, tmp_path / "table")] == [2, 2, 2, 1, 1]


def test_a_table_into_a_table(spark: SparkSession, tmp_path: Path) -> None:
    source = lw.create(
        str(tmp_path / "a"), spark, name="a", record_key="id", partition_by="day", ordering="ts"
    )
    options = {
        **TABLE,
        "hoodie.streamer.source.hoodieincr.path": str(tmp_path / "a"),
        "hoodie.streamer.source.hoodieincr.missing.checkpoint.strategy": "READ_UPTO_LATEST_COMMIT",
        "hoodie.streamer.source.hoodieincr.num_instants": "2",
    }
    for number in range(5):
        rows = [row(number), row(number + 1, number + 2, f"of {number}")]
        source.upsert(spark.createDataFrame(rows, DDL))
        if number % 2:
            result = lw.ingest(spark, "hudi", str(tmp_path / "b"), options=options)
            assert result.commit is not None
            assert result.lag_ms == 0
    lw.ingest(spark, "hudi", str(tmp_path / "b"), options=options)
    assert lw.ingest(spark, "hudi", str(tmp_path / "b"), options=options).commit is None
    assert read(spark, tmp_path / "b") == read(spark, tmp_path / "a")


# A quarter of an hour: only what hangs gets there.
MOST_ROUNDS = 1800


def test_async_services_run_during_the_rounds(spark: SparkSession, tmp_path: Path) -> None:
    for number in range(6):
        put(tmp_path / "in" / str(number), [row(n, number) for n in range(4)], 1_000_000 + number)
    more = {
        "hoodie.datasource.write.table.type": "MERGE_ON_READ",
        "hoodie.compact.inline.max.delta.commits": "2",
        "lakewright.source.files.max.files": "1",
    }
    rounds: list[lw.IngestResult] = []

    def is_compacted_and_idle() -> bool:
        steps = [step for result in rounds for step in result.services]
        compacted = any(
            s.service == "compaction" and isinstance(s.outcome, lw.Commit) for s in steps
        )
        return len(rounds) > MOST_ROUNDS or (compacted and rounds[-1].commit is None)

    lw.ingest(
        spark,
        "files",
        str(tmp_path / "table"),
        options=files(tmp_path / "in", **more),
        continuous=True,
        min_interval_s=0.5,
        services="async",
        report=rounds.append,
        stop=is_compacted_and_idle,
    )
    assert len(rounds) <= MOST_ROUNDS
    assert not [result for result in rounds if result.error is not None]
    assert read(spark, tmp_path / "table") == [row(n, 5) for n in range(4)]


def test_a_session_without_connector_gets_an_error_that_names_it(
    spark: SparkSession, tmp_path: Path
) -> None:
    options = {
        **TABLE,
        "hoodie.streamer.source.kafka.topic": "t",
        "bootstrap.servers": "127.0.0.1:1",
    }
    with pytest.raises(lw.UnsupportedError, match="spark-sql-kafka"):
        lw.ingest(spark, "kafka", str(tmp_path / "table"), options=options)


def test_an_object_is_a_source_too(spark: SparkSession, tmp_path: Path) -> None:
    put(tmp_path / "in" / "1", [row(1)], at=1_000_000)
    source = FilesSource.from_options(files(tmp_path / "in"))
    result = lw.ingest(spark, source, str(tmp_path / "table"), options=TABLE, operation="insert")
    assert (result.source, result.rows) == ("files", 1)
    assert result.commit is not None
    assert result.commit.operation == "INSERT"
