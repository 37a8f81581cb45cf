"""An ingestion of files that goes on until it is killed: `ingest_process.py FOLDER TABLE MODE`.

Prints a line when it begins, and for each round that has ended.
"""

from __future__ import annotations

import sys

from quick_spark import quick_session

import lakewright as lw

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
    # Who is killed must not keep others waiting for long.
    "hoodie.write.lock.filesystem.expire": "1",
}


def main(folder: str, table: str, services: str) -> None:
    """Go on for ever."""
    spark = quick_session()

    def report(done: lw.IngestRound) -> None:
        left = done.waiting or 0
        print("idle" if done.commit is None and not left else f"round {done.number}", flush=True)

    print("begin", flush=True)
    lw.ingest(
        spark,
        "files",
        table,
        options={**OPTIONS, "hoodie.streamer.source.dfs.root": folder},
        continuous=True,
        min_interval_s=0.1,
        services=services,
        report=report,
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
