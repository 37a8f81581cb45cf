"""How far Spark says it is, while a job runs."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import SparkSession

from lakewright.cli.spark import spark_work

# Ten minutes: only what hangs gets there.
POLLS = 30_000
PROGRESS = re.compile(r"2 of \d+ tasks, \d+ rows, ")


def test_tasks_and_rows_are_reported_while_a_job_runs(spark: SparkSession, tmp_path: Path) -> None:
    """Two of its tasks end at once; the others wait until Spark has reported that."""
    gate = tmp_path / "gate"

    def waiting(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        task = TaskContext.get()
        while task is not None and task.partitionId() > 1 and not gate.exists():
            time.sleep(0.02)
        yield from batches

    def wait_for_rows(job: Future[list[Any]]) -> str:
        progress = ""
        for _ in range(POLLS):
            progress = look()
            if PROGRESS.match(progress) or job.done():
                break
            time.sleep(0.02)
        gate.touch()
        return progress

    path = str(tmp_path / "rows")
    spark.range(400).repartition(6).write.parquet(path)
    spark.conf.set("spark.sql.files.maxPartitionBytes", "10000")
    look = spark_work(spark)
    assert look() == ""
    try:
        frame = spark.read.parquet(path).mapInArrow(waiting, "id long")
        with ThreadPoolExecutor(1) as threads:
            job = threads.submit(frame.collect)
            progress = wait_for_rows(job)
            assert len(job.result()) == 400
    finally:
        spark.conf.unset("spark.sql.files.maxPartitionBytes")
    assert PROGRESS.match(progress), progress
    assert look() == ""
