"""Ingestions of files that go on until they are killed: `ingest_process.py SOURCE TABLES`.

One for each mode of services, each into a table of its own. Says READY when Spark runs.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from pyspark.sql import SparkSession

import lakewright as lw
from support.spark import quick_session

MODES = ("inline", "async")
OPTIONS = {
    "hoodie.table.name": "t",
    "hoodie.datasource.write.recordkey.field": "id",
    "hoodie.datasource.write.partitionpath.field": "day",
    "hoodie.datasource.write.precombine.field": "ts",
    # Of an upsert one would not see that rows came twice.
    "hoodie.datasource.write.operation": "insert",
    "hoodie.datasource.write.table.type": "MERGE_ON_READ",
    "hoodie.compact.inline.max.delta.commits": "3",
    "lakewright.source.files.format": "json",
    "lakewright.source.files.max.files": "2",
}


def ingest(
    spark: SparkSession,
    source: Path,
    table: Path,
    services: str,
    *,
    report: Callable[[lw.IngestResult], None] | None = None,
    stop: Callable[[], bool] | None = None,
) -> None:
    lw.ingest(
        spark,
        "files",
        table,
        options={**OPTIONS, "hoodie.streamer.source.dfs.root": str(source)},
        continuous=True,
        min_interval_s=0.1,
        services=services,
        report=report,
        stop=stop,
    )


def main(source: str, tables: str) -> None:
    """Go on for ever."""
    spark = quick_session()
    print("READY", flush=True)
    with ThreadPoolExecutor(len(MODES)) as threads:
        running = [
            threads.submit(ingest, spark, Path(source), Path(tables) / mode, mode) for mode in MODES
        ]
        for ingestion in running:
            ingestion.result()


if __name__ == "__main__":
    main(*sys.argv[1:])
