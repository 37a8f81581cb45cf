"""Streams a table into others, by an operation each: `stream_process.py FOLDER WAY OPERATION...`.

Says READY when all queries run. With the way `on` they run until somebody kills them, with `out`
until they have read all that is there; then it says DONE.
"""

from __future__ import annotations

import sys
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from quick_spark import quick_session

import lakewright as lw

_TARGET = {
    "hoodie.datasource.write.recordkey.field": "id",
    "hoodie.datasource.write.partitionpath.field": "day",
    "hoodie.datasource.write.precombine.field": "ts",
}


def start(spark: SparkSession, folder: Path, operation: str, way: str) -> StreamingQuery:
    """Every write of the source is a batch of its own, so that there are many to die in."""
    limit = {"lakewright.streaming.max.instants.per.trigger": "1"}
    frame = spark.readStream.format("hudi").options(**limit).load(str(folder / "source"))
    writer = frame.writeStream.format("hudi").options(**_TARGET)
    writer = writer.option("hoodie.table.name", operation)
    writer = writer.option("hoodie.datasource.write.operation", operation)
    writer = writer.option("checkpointLocation", str(folder / f"checkpoint-{operation}"))
    if way == "out":
        writer = writer.trigger(availableNow=True)
    return writer.start(str(folder / operation))


def main(folder: str, way: str, *operations: str) -> None:
    spark = quick_session()
    lw.install(spark)
    queries = [start(spark, Path(folder), operation, way) for operation in operations]
    print("READY", flush=True)
    for query in queries:
        query.awaitTermination()
    spark.stop()
    print("DONE", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
