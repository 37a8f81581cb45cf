"""The same reads and writes on any kind of Spark session.

A process holds one kind of session: `session_check.py SERVER FOLDER` does it on Spark Connect, and
prints OK when all rows are right.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

import lakewright as lw
from support.golden import queries, some_queries
from support.soak import SOAK, sized
from support.spark import start_query

_FEW = ("mor_avro",)
TABLES = sized(_FEW, soak=(*_FEW, "cow_hive_complex", "mor_parquet"))


def check(spark: SparkSession, path: Path) -> None:
    """All ways of reading one table against what real Hudi reads."""
    lw.install(spark)
    lw.install(spark)
    table = lw.open(str(path), spark=spark)
    for query in some_queries(path.name):
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
        same = spark.read.format("hudi").options(**options).load(str(path))
        expected = sorted(query.rows or ())
        # Both are one plan: in a check a job for one of them is enough, but for the changes.
        if SOAK or query.kind == "changes":
            assert as_texts(frame) == expected, f"{path.name} {query}"
        assert as_texts(same) == expected, f"{path.name} {query} by format"
    check_sql(spark, path, sorted(queries(path.name)[0].rows or ()))


def check_sql(spark: SparkSession, path: Path, expected: list[str]) -> None:
    """Views and catalog tables, whole and with a filter on the partition column."""
    name = path.name
    spark.sql(f"CREATE OR REPLACE TEMP VIEW v_{name} USING hudi OPTIONS (path '{path}')")
    spark.sql(f"CREATE TABLE IF NOT EXISTS t_{name} USING hudi LOCATION '{path}'")
    some = sorted(text for text in expected if json.loads(text)["day"] == "2026-01-02")
    for source in (f"v_{name}", f"t_{name}"):
        assert as_texts(spark.sql(f"SELECT * FROM {source}")) == expected
        assert as_texts(spark.sql(f"SELECT * FROM {source} WHERE day = '2026-01-02'")) == some
    spark.sql(f"DROP TABLE t_{name}")


def check_writes(spark: SparkSession, folder: Path) -> None:
    """Every way to write, on a table of each type in a soak run."""
    for table_type in sized(("MERGE_ON_READ",), soak=("COPY_ON_WRITE", "MERGE_ON_READ")):
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
        rows = sorted((row.id, row.ts) for row in table.read().collect())
        assert rows == [("a", 2), ("c", 1), ("d", 1)], rows
        with pytest.raises(lw.InvalidError, match="no record key"):
            table.upsert(spark.createDataFrame([(None, "x", 1)], ddl))


def check_streams(spark: SparkSession, folder: Path) -> None:
    """A table into another and, in a soak run, into files: the second run brings what is new."""
    place = folder / f"streamed-{os.getpid()}"
    source = lw.create(str(place / "a"), spark=spark, name="a", record_key="id", ordering="ts")
    target = lw.create(str(place / "b"), spark=spark, name="b", record_key="id", ordering="ts")

    def run(sink: str) -> None:
        stream = spark.readStream.format("org.apache.hudi").load(str(place / "a"))
        writer = stream.select("id", "ts").writeStream.format(sink)
        writer = writer.option("checkpointLocation", str(place / f"checkpoint-{sink}"))
        path = str(place / ("b" if sink == "hudi" else sink))
        start_query(writer.trigger(availableNow=True), path).awaitTermination()

    for rows in ([("a", 1), ("b", 1)], [("a", 2), ("c", 1)]):
        source.upsert(spark.createDataFrame(rows, "id STRING, ts BIGINT"))
        run("hudi")
        if SOAK:
            run("parquet")
    if SOAK:
        files = spark.read.parquet(str(place / "parquet")).collect()
        versions = sorted((row.id, row.ts) for row in files)
        assert versions == [("a", 1), ("a", 2), ("b", 1), ("c", 1)], versions
    target_rows = sorted((row.id, row.ts) for row in target.read().collect())
    assert target_rows == [("a", 2), ("b", 1), ("c", 1)], target_rows
    version = "hoodie.datasource.read.streaming.table.version"
    with pytest.raises(lw.UnsupportedError, match=version):
        spark.readStream.format("hudi").option(version, "6").load(str(place / "a"))


def check_statements(spark: SparkSession, folder: Path) -> None:
    """Statements and calls, with values for markers, and views in the places of tables."""
    path = folder / f"statements-{os.getpid()}"
    spark.sql(
        "CREATE TABLE statements (id STRING, v INT, ts BIGINT, day STRING) USING hudi "
        "TBLPROPERTIES "
        "(type = 'mor', primaryKey = 'id', orderingFields = 'ts') PARTITIONED BY (day) "
        f"LOCATION '{path}'"
    )
    spark.sql("INSERT INTO statements VALUES ('a', 1, 1, 'x'), ('b', 2, 1, 'y'), ('c', 3, 1, 'y')")
    spark.createDataFrame([("a", 10), ("b", None), ("z", 26)], "id STRING, v INT").createTempView(
        "s"
    )
    counts = spark.sql(
        "MERGE INTO statements t USING s ON t.id = s.id WHEN MATCHED AND s.v IS NULL THEN DELETE "
        "WHEN MATCHED THEN UPDATE SET v = s.v + :more "
        "WHEN NOT MATCHED THEN INSERT (id, v, ts, day) VALUES (s.id, s.v, 1, 'z')",
        {"more": 1},
    ).collect()
    assert [tuple(row) for row in counts] == [(3, 1, 1, 1)], counts
    spark.sql("UPDATE statements SET v = ? WHERE id = ?", [4, "c"])
    spark.sql("DELETE FROM statements WHERE id IN (SELECT id FROM s WHERE v = 26)")
    rows = sorted(tuple(row) for row in spark.sql("SELECT id, v FROM statements").collect())
    assert rows == [("a", 11), ("c", 4)], rows
    commits = spark.sql("CALL show_commits('statements')").collect()
    assert len(commits) == 4, commits
    first = commits[-1].commit_time
    before = spark.sql(
        f"SELECT count(*) AS n FROM statements TIMESTAMP AS OF '{first}' WHERE v > 1"
    )
    assert before.collect()[0].n == 2
    spark.sql("DROP TABLE statements")


def as_texts(frame: DataFrame) -> list[str]:
    """Rows as sorted JSON, without meta columns."""
    spark_json = frame.selectExpr("to_json(struct(*)) AS row").collect()
    texts = []
    for (text,) in spark_json:
        row = {k: v for k, v in json.loads(text).items() if not k.startswith("_hoodie")}
        texts.append(json.dumps(row, sort_keys=True))
    return sorted(texts)


def check_session(spark: SparkSession, folder: Path) -> None:
    """All checks; the golden tables are below the folder."""
    for name in TABLES:
        check(spark, folder / name)
    check_writes(spark, folder)
    check_statements(spark, folder)
    if SOAK:
        check_streams(spark, folder)


def main(server: str, folder: str) -> None:
    spark = SparkSession.builder.remote(server).getOrCreate()
    check_session(spark, Path(folder))
    spark.stop()
    sys.stdout.write("OK\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
