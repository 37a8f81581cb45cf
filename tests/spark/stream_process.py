"""Streams tables into others until it is killed: `stream_process.py FOLDER OPERATION ...`.

Each folder has a table `source`, which goes into a table that is called as the operation. Says
READY when all queries run.
"""

from __future__ import annotations

import sys
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import lakewright as lw
from support.spark import quick_session, start_query

_TARGET = {
    "hoodie.datasource.write.recordkey.field": "id",
    "hoodie.datasource.write.partitionpath.field": "day",
    "hoodie.datasource.write.precombine.field": "ts",
}


def start(
    spark: SparkSession, folder: Path, operation: str, *, all_there_is: bool = False
) -> StreamingQuery:
    """Every write of the source is a batch of its own, so that there are many to die in.

    With `all_there_is` the query ends when it has read what the source has now.
    """
    limit = {"lakewright.streaming.max.instants.per.trigger": "1"}
    frame = spark.readStream.format("hudi").options(**limit).load(str(folder / "source"))
    writer = frame.writeStream.format("hudi").options(**_TARGET)
    writer = writer.option("hoodie.table.name", operation)
    writer = writer.option("hoodie.datasource.write.operation", operation)
    writer = writer.option("checkpointLocation", str(folder / f"checkpoint-{operation}"))
    if all_there_is:
        writer = writer.trigger(availableNow=True)
    return start_query(writer, str(folder / operation))


def main(*arguments: str) -> None:
    spark = quick_session()
    lw.install(spark)
    targets = zip(arguments[::2], arguments[1::2], strict=True)
    queries = [start(spark, Path(folder), operation) for folder, operation in targets]
    print("READY", flush=True)
    for query in queries:
        query.awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
