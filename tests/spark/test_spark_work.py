"""How far Spark says it is, while a job runs."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
from pyspark.sql import SparkSession

from lakewright.interfaces.cli.spark_work import spark_work


def test_tasks_and_rows_are_told_while_a_job_runs(spark: SparkSession, tmp_path: Path) -> None:
    def slow(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            time.sleep(0.7)
            yield batch

    path = str(tmp_path / "rows")
    spark.range(400).repartition(6).write.parquet(path)
    spark.conf.set("spark.sql.files.maxPartitionBytes", "10000")
    look = spark_work(spark)
    assert look() == ""
    told = set()
    try:
        frame = spark.read.parquet(path).mapInArrow(slow, "id long")
        with ThreadPoolExecutor(1) as threads:
            job = threads.submit(frame.collect)
            while not job.done():
                told.add(look())
                time.sleep(0.05)
            assert len(job.result()) == 400
    finally:
        spark.conf.unset("spark.sql.files.maxPartitionBytes")
    counts = [re.match(r"(\d+) of (\d+) tasks(, (\d+) rows, .+)?", text) for text in told if text]
    assert any(found and found[4] for found in counts), told
    assert look() == ""
