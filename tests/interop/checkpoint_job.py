"""What real Hudi's classes find of checkpoints in a table; runs in the process of real Hudi."""

from __future__ import annotations

from typing import Any

from pyspark.sql import SparkSession

SOURCES = ("S3EventsHoodieIncrSource", "GcsEventsHoodieIncrSource", "HoodieIncrSource")


def job(spark: SparkSession, path: str) -> dict[str, list[list[Any]]]:
    """Return the checkpoint of each commit, and the version of checkpoints of some sources."""
    hudi = spark._jvm.org.apache.hudi
    conf = hudi.hadoop.fs.HadoopFSUtils.getStorageConf(spark._jsc.hadoopConfiguration())
    client = hudi.common.table.HoodieTableMetaClient.builder().setBasePath(path).setConf(conf)
    meta = client.build()
    timeline = meta.getActiveTimeline().getCommitsTimeline().filterCompletedInstants()
    utils = hudi.common.table.checkpoint.CheckpointUtils
    found = []
    for instant in timeline.getInstants():
        metadata = hudi.common.table.timeline.TimelineUtils.getCommitMetadata(instant, timeline)
        checkpoint = utils.getCheckpoint(metadata)
        found.append([checkpoint.getClass().getSimpleName(), checkpoint.getCheckpointKey()])
    package = "org.apache.hudi.utilities.sources"
    versions = [
        [source, utils.shouldTargetCheckpointV2(9, f"{package}.{source}")] for source in SOURCES
    ]
    return {"checkpoints": found, "targets_v2": versions}
