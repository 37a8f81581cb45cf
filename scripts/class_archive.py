"""Archive the classes that Spark loads, for Java to map instead of loading and verifying them.

`class_archive.py FILE`: with it a JVM of Spark starts in about half of the time. Java uses it for
the class path it was made with alone, and passes over it for any other.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

import lakewright as lw

_ROWS = "id STRING, day STRING, ts BIGINT"


def load_classes(spark: SparkSession, folder: Path) -> None:
    """Do a little of everything, so that its classes are loaded."""
    lw.install(spark)
    path = str(folder / "table")
    table = lw.create(
        path, spark=spark, name="t", table_type="MERGE_ON_READ", record_key="id",
        partition_by="day", ordering="ts",
    )  # fmt: skip
    for ts in (1, 2):
        table.upsert(spark.createDataFrame([("a", "x", ts), ("b", "y", ts)], _ROWS))
    table.read().collect()
    spark.read.format("hudi").load(path).createOrReplaceTempView("v")
    spark.sql("SELECT day, count(*), max(ts) FROM v WHERE day = 'x' GROUP BY day").collect()
    table.schedule("compaction")
    stream = spark.readStream.format("hudi").load(path).writeStream.format("parquet")
    stream = stream.option("checkpointLocation", str(folder / "checkpoint"))
    stream.trigger(availableNow=True).start(str(folder / "rows")).awaitTermination()
    spark.read.parquet(str(folder / "rows")).collect()


def make_archive(file: Path) -> None:
    """Run Spark once; its JVM writes the archive when it ends."""
    part = file.with_suffix(f".{os.getpid()}")
    options = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xlog:disable"
    os.environ["JAVA_TOOL_OPTIONS"] = f"{options} -XX:ArchiveClassesAtExit={part}"
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    with tempfile.TemporaryDirectory() as folder:
        spark = builder.config("spark.sql.warehouse.dir", folder).getOrCreate()
        gateway: Any = spark.sparkContext._gateway
        load_classes(spark, Path(folder))
        spark.stop()
    gateway.proc.stdin.close()
    gateway.proc.wait()
    part.rename(file)


if __name__ == "__main__":
    make_archive(Path(sys.argv[1]))
