"""Real Hudi's part in the load test of partition TTL, on a table that Lakewright made for it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from itertools import count
from pathlib import Path

from pyspark.sql import Row, SparkSession

from bench.plan import RETAINED_DAYS

_NAMES = count()
_METADATA = "hoodie.metadata.enable"

Job = Callable[[], int]


def jobs(spark: SparkSession, table: Path, max_partitions: int) -> Iterator[tuple[str, Job]]:
    """What is timed, in order; each gives how many partitions it was about.

    Finding is its own strategy, asked as `run_ttl` asks it. It lists files here, as Lakewright
    does: the table that it is given has no metadata table, and building one would be timed.
    """
    options = {
        "hoodie.partition.ttl.strategy.days.retain": str(RETAINED_DAYS),
        "hoodie.partition.ttl.strategy.max.delete.partitions": str(max_partitions),
        "hoodie.clean.automatic": "false",
        "hoodie.archive.automatic": "false",
        _METADATA: "false",
    }
    name = f"aged_{next(_NAMES)}"
    spark.sql(f"create table {name} using hudi location '{table}'")
    yield "find", lambda: len(expired(spark, table, options))
    yield (
        "run",
        lambda: len(_call(spark, "run_ttl", name, options, f"retain_days => {RETAINED_DAYS}")),
    )
    policy = "clean_policy => 'KEEP_LATEST_FILE_VERSIONS', file_versions_retained => 1"
    yield "clean", lambda: _cleaned(spark, name, options, policy)


def expired(spark: SparkSession, table: Path, options: Mapping[str, str]) -> list[str]:
    """What its strategy for TTL finds; the table is looked at anew."""
    java = spark.sparkContext._jvm.org.apache.hudi  # type: ignore[union-attr]
    properties = spark.sparkContext._jvm.java.util.Properties()  # type: ignore[union-attr]
    for key, value in options.items():
        properties.setProperty(key, value)
    builder = java.config.HoodieWriteConfig.newBuilder().withPath(str(table)).forTable("lineitem")
    config = builder.withProperties(properties).build()
    context = java.client.common.HoodieSparkEngineContext(spark.sparkContext._jsc)
    handle = java.table.HoodieSparkTable.create(config, context)
    factory = java.table.action.ttl.strategy.HoodiePartitionTTLStrategyFactory
    now = time.strftime("%Y%m%d%H%M%S000", time.gmtime())
    return list(factory.createStrategy(handle, config.getProps(), now).getExpiredPartitionPaths())


def _cleaned(spark: SparkSession, name: str, options: Mapping[str, str], policy: str) -> int:
    rows = _call(spark, "run_clean", name, options, policy)
    return int(rows[0]["total_files_deleted"]) if rows else 0


def _call(
    spark: SparkSession, procedure: str, name: str, options: Mapping[str, str], more_arguments: str
) -> list[Row]:
    option_text = ",".join(f"{key}={value}" for key, value in options.items())
    return spark.sql(
        f"call {procedure}(table => '{name}', {more_arguments}, options => '{option_text}')"
    ).collect()
