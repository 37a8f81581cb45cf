"""Both stages of cloud events, round after round: `cloud_process.py FOLDER OPTIONS`.

Says READY when Spark runs, and goes on until it is killed. OPTIONS are those of queue and store,
as JSON.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path

from pyspark.sql import SparkSession

import lakewright as lw
from support.spark import quick_session

_SERVICES = {
    "hoodie.compact.inline": "true",
    "hoodie.compact.inline.max.delta.commits": "2",
    "hoodie.clean.commits.retained": "2",
    "hoodie.keep.min.commits": "4",
    "hoodie.keep.max.commits": "6",
}
_EVENTS = {
    "hoodie.table.name": "events",
    "hoodie.datasource.write.recordkey.field": "s3.bucket.name,s3.object.key,eventTime",
    # A message that comes twice is an event that is there.
    "hoodie.datasource.write.operation": "insert",
    "hoodie.datasource.insert.dup.policy": "drop",
}
_TARGET = {
    "hoodie.table.name": "target",
    "hoodie.datasource.write.table.type": "MERGE_ON_READ",
    "hoodie.datasource.write.recordkey.field": "id",
    # Only of an insert one sees that rows came twice.
    "hoodie.datasource.write.operation": "insert",
}
_QUEUE = ("hoodie.streamer.s3.source.", "lakewright.source.queue.")


def run(spark: SparkSession, folder: Path, options: Mapping[str, str]) -> bool:
    """One round of each stage; whether anything was brought."""
    queue = {k: v for k, v in options.items() if k.startswith((*_QUEUE, "fs."))}
    store = {k: v for k, v in options.items() if not k.startswith(_QUEUE)}
    events = str(folder / "events")
    first = lw.ingest(
        spark, "s3-events", events, options={**_EVENTS, **_SERVICES, **queue}, operation="insert"
    )
    if not (folder / "events" / ".hoodie" / "hoodie.properties").exists():
        return False
    second = lw.ingest(
        spark,
        "cloud",
        str(folder / "target"),
        options={
            **_TARGET,
            **_SERVICES,
            **store,
            "hoodie.streamer.source.hoodieincr.path": events,
            "hoodie.streamer.source.cloud.data.datafile.format": "json",
            "hoodie.streamer.source.cloud.data.max.files.per.sync": "3",
            "lakewright.source.work.folder": str(folder / "work"),
        },
        operation="insert",
    )
    return first.commit is not None or second.commit is not None


def main(folder: str, options: str) -> None:
    spark = quick_session()
    print("READY", flush=True)
    while True:
        run(spark, Path(folder), json.loads(options))


if __name__ == "__main__":
    main(*sys.argv[1:])
