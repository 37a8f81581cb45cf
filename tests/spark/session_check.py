"""The same reads and writes on one kind of Spark session: `session_check.py KIND FOLDER [MASTER]`.

A process holds one kind of session, so each kind but the classic one, which tests have already,
has a process. Prints OK when all rows are right.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from functools import reduce
from pathlib import Path

import pytest
from golden_tables import Query, queries
from pyspark.sql import DataFrame, SparkSession

import lakewright as lw

TABLES = ("cow_hive_complex", "mor_avro", "mor_parquet")


def start(kind: str, master: str, folder: Path) -> SparkSession:
    builder = SparkSession.builder
    builder = builder.remote("local[2]") if kind == "connect" else builder.master(master)
    settings = {
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.warehouse.dir": str(folder / f"warehouse-{kind}"),
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.log.level": "ERROR",
    }
    for key, value in settings.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


def check(spark: SparkSession, path: Path) -> None:
    """All ways of reading one table against what real Hudi reads."""
    lw.install(spark)
    lw.install(spark)
    table = lw.open(str(path), spark=spark)
    asked = queries(path.name)
    frames = [frame for query in asked for frame in ask(spark, table, path, query)]
    found = answers(frames)
    for query, called, loaded in zip(asked, found[::2], found[1::2], strict=True):
        expected = sorted(query.rows or ())
        assert called == expected, f"{path.name} {query}"
        assert loaded == expected, f"{path.name} {query} by format"
    check_sql(spark, path, sorted(queries(path.name)[0].rows or ()))


def ask(
    spark: SparkSession, table: lw.Table, path: Path, query: Query
) -> tuple[DataFrame, DataFrame]:
    """The rows that answer a query, by the call and by format."""
    options = {}
    if query.kind == "changes":
        frame = table.changes(since=query.since, until=query.until).dataframe
        options["hoodie.datasource.query.type"] = "incremental"
        options["hoodie.datasource.read.begin.instanttime"] = query.since or "000"
        if query.until:
            options["hoodie.datasource.read.end.instanttime"] = query.until
    elif query.kind == "read_optimized":
        frame = table.read_optimized()
        options["hoodie.datasource.query.type"] = "read_optimized"
    else:
        frame = table.read(as_of=query.as_of)
        options |= {"as.of.instant": query.as_of} if query.as_of else {}
    return frame, spark.read.format("hudi").options(**options).load(str(path))


def check_sql(spark: SparkSession, path: Path, expected: list[str]) -> None:
    """Views and catalog tables, whole and with a filter on the partition column."""
    name = path.name
    spark.sql(f"CREATE OR REPLACE TEMP VIEW v_{name} USING hudi OPTIONS (path '{path}')")
    spark.sql(f"CREATE TABLE IF NOT EXISTS t_{name} USING hudi LOCATION '{path}'")
    some = sorted(text for text in expected if json.loads(text)["day"] == "2026-01-02")
    texts = [
        f"SELECT * FROM {source}{where}"
        for source in (f"v_{name}", f"t_{name}")
        for where in ("", " WHERE day = '2026-01-02'")
    ]
    found = answers([spark.sql(text) for text in texts])
    for text, rows, right in zip(texts, found, (expected, some) * 2, strict=True):
        assert rows == right, text
    spark.sql(f"DROP TABLE t_{name}")


def check_writes(spark: SparkSession, folder: Path) -> None:
    """Every way to write, on a table of each type."""
    for table_type in ("COPY_ON_WRITE", "MERGE_ON_READ"):
        path = folder / f"written-{table_type}-{os.getpid()}"
        table = lw.create(
            str(path), spark=spark, name="w", table_type=table_type, record_key="id",
            partition_by="day", ordering="ts",
        )  # fmt: skip
        ddl = "id STRING, day STRING, ts BIGINT"
        table.bulk_insert(spark.createDataFrame([("a", "x", 1), ("b", "y", 1)], ddl))
        table.upsert(spark.createDataFrame([("a", "x", 2), ("c", "z", 1)], ddl))
        table.delete(spark.createDataFrame([("b", "y", 0)], ddl))
        more = spark.createDataFrame([("d", "z", 1)], ddl)
        more.write.format("hudi").option("hoodie.table.name", "w").mode("append").save(str(path))
        found = sorted((row.id, row.ts) for row in table.read().collect())
        assert found == [("a", 2), ("c", 1), ("d", 1)], found
        with pytest.raises(lw.InvalidError, match="no record key"):
            table.upsert(spark.createDataFrame([(None, "x", 1)], ddl))


def check_streams(spark: SparkSession, folder: Path) -> None:
    """A table into files and into another table, in two runs: the second brings what is new."""
    place = folder / f"streamed-{os.getpid()}"
    source = lw.create(str(place / "a"), spark=spark, name="a", record_key="id", ordering="ts")
    target = lw.create(str(place / "b"), spark=spark, name="b", record_key="id", ordering="ts")

    def run(sink: str) -> None:
        stream = spark.readStream.format("org.apache.hudi").load(str(place / "a"))
        writer = stream.select("id", "ts").writeStream.format(sink)
        writer = writer.option("checkpointLocation", str(place / f"checkpoint-{sink}"))
        path = str(place / ("b" if sink == "hudi" else sink))
        writer.trigger(availableNow=True).start(path).awaitTermination()

    for rows in ([("a", 1), ("b", 1)], [("a", 2), ("c", 1)]):
        source.upsert(spark.createDataFrame(rows, "id STRING, ts BIGINT"))
        run("parquet")
        run("hudi")
    found = sorted((row.id, row.ts) for row in spark.read.parquet(str(place / "parquet")).collect())
    assert found == [("a", 1), ("a", 2), ("b", 1), ("c", 1)], found
    found = sorted((row.id, row.ts) for row in target.read().collect())
    assert found == [("a", 2), ("b", 1), ("c", 1)], found
    version = "hoodie.datasource.read.streaming.table.version"
    with pytest.raises(lw.UnsupportedError, match=version):
        spark.readStream.format("hudi").option(version, "6").load(str(place / "a"))


def union(one: DataFrame, other: DataFrame) -> DataFrame:
    # By the frame itself: on Connect it is of another class.
    return one.unionAll(other)


def answers(frames: Sequence[DataFrame]) -> list[list[str]]:
    """The rows of each frame as sorted JSON without meta columns, all by one Spark job."""
    texts = [
        frame.selectExpr(f"{number} AS frame", "to_json(struct(*)) AS row")
        for number, frame in enumerate(frames)
    ]
    found: list[list[str]] = [[] for _ in frames]
    for number, text in reduce(union, texts).collect():
        row = {k: v for k, v in json.loads(text).items() if not k.startswith("_hoodie")}
        found[number].append(json.dumps(row, sort_keys=True))
    return [sorted(rows) for rows in found]


def check_all(spark: SparkSession, folder: Path) -> None:
    """Reads, writes and streams."""
    for name in TABLES:
        check(spark, folder / name)
    check_writes(spark, folder)
    check_streams(spark, folder)


def main(kind: str, folder: str, master: str = "local[2]") -> None:
    spark = start(kind, master, Path(folder))
    check_all(spark, Path(folder))
    spark.stop()
    sys.stdout.write("OK\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
