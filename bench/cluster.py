"""The load test of partition TTL on a cluster: Spark with two workers, and a real HDFS."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

import lakewright as lw
from bench import aged
from bench.plan import AGED_FIELD, RETAINED_ROWS
from bench.systems.base import COLUMNS, total_rows
from lakewright.testing.hdfs import HdfsServer, hdfs_server
from lakewright.testing.spark_cluster import spark_cluster

ROOT = Path(__file__).parents[1]
WORKERS = 2
# What the race adds to the rows of the generator.
_MORE = ("0L AS ts", "cast(year(l_shipdate) AS string) AS ship_year")


def load_test(
    lineitem: Sequence[Path], work: Path, *, count: int, cores: int, memory: str
) -> dict[str, Any]:
    """Take the table through its life; gives seconds of each step, and the rows that are left.

    RuntimeError if a step was about other partitions than it should be, or left other rows.
    """
    with _session(work, cores, memory) as (spark, server):
        rows = _rows(spark, lineitem, count)
        expected = total_rows(rows.where(RETAINED_ROWS))
        path = server.uri("lake/lineitem")
        seconds: dict[str, float] = {}
        _timed(seconds, "load", count, lambda: aged.load(path, rows))
        table = lw.open(path, spark=spark)
        for name, job in aged.jobs(table, count):
            _timed(seconds, name, count if name == "update" else count // 2, job)
        actual = total_rows(table.read(columns=COLUMNS))
        if actual != expected:
            raise RuntimeError(f"{actual} rows and sum are left, expected {expected}")
        return {"partitions": count, "rows_left": actual[0], "seconds": seconds}


def _timed(seconds: dict[str, float], name: str, expected: int, job: aged.Job) -> None:
    started = time.perf_counter()
    partitions = job()
    seconds[name] = round(time.perf_counter() - started, 3)
    print(f"  {name}: {seconds[name]:.1f} s, {partitions} partitions", file=sys.stderr)
    if partitions != expected:
        raise RuntimeError(f"{name} was about {partitions} partitions, expected {expected}")


def _rows(spark: SparkSession, lineitem: Sequence[Path], count: int) -> DataFrame:
    rows = spark.read.parquet(*(f"file://{file.resolve()}" for file in lineitem))
    return rows.where(f"{AGED_FIELD} <= {count}").selectExpr("*", *_MORE)


@contextmanager
def _session(work: Path, cores: int, memory: str) -> Iterator[tuple[SparkSession, HdfsServer]]:
    jar = os.environ.get("LAKEWRIGHT_HDFS_JAR")
    if jar is None:
        raise ValueError("the servers of HDFS are not there: start it by ./dev bench")
    # Executors have the environment of the workers, and those that of this process.
    os.environ["PYTHONPATH"] = str(ROOT)
    with (
        hdfs_server(jar, work / "hdfs") as server,
        spark_cluster(
            work / "spark", workers=WORKERS, cores=max(1, cores // WORKERS), memory=memory
        ) as cluster,
    ):
        settings = {
            **cluster.settings(),
            "spark.sql.session.timeZone": "UTC",
            "spark.sql.shuffle.partitions": str(cores),
            "spark.ui.enabled": "false",
            "spark.ui.showConsoleProgress": "false",
            "spark.local.dir": str(work / "local"),
        }
        builder = SparkSession.builder.appName("bench")
        for key, value in settings.items():
            builder = builder.config(key, value)
        spark = builder.getOrCreate()
        spark.sparkContext.setLogLevel("ERROR")
        try:
            yield spark, server
        finally:
            spark.stop()
