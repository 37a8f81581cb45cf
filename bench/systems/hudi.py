"""Real Apache Hudi on Spark 3.5: its defaults, with zstd, and no more shuffle tasks than cores."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from bench.plan import Kind
from bench.systems.base import (
    CLUSTERED_BY,
    KEYS,
    ORDERING,
    PARTITION,
    completion_times,
    table_folder,
)
from bench.systems.hudi_options import COMPACT_NOW, INCREMENTAL, TABLE_TYPES, index_options
from bench.systems.hudi_ttl import jobs

NO_METADATA = "hoodie.metadata.enable"
ZSTD = {"hoodie.parquet.compression.codec": "zstd"}


def session_settings(jars: str, cores: int, folder: Path) -> dict[str, str]:
    """What Hudi's own guide asks for."""
    return {
        "spark.jars": jars,
        "spark.serializer": "org.apache.spark.serializer.KryoSerializer",
        "spark.kryo.registrator": "org.apache.spark.HoodieSparkKryoRegistrar",
        "spark.sql.extensions": "org.apache.spark.sql.hudi.HoodieSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.hudi.catalog.HoodieCatalog",
    }


class Racer:
    """Real Hudi as a Spark data source."""

    plans = "all"

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self._spark = spark
        self._folder = folder
        self._cores = str(spark.sparkContext.defaultParallelism)

    def load(self, kind: Kind, rows: DataFrame) -> None:
        self._save(kind, rows, "bulk_insert", "overwrite")

    def upsert(self, kind: Kind, rows: DataFrame, partitions: Sequence[str]) -> None:
        self._save(kind, rows, "upsert", "append")

    def delete(self, kind: Kind, keys: DataFrame) -> None:
        self._save(kind, keys, "delete", "append")

    def read(self, kind: Kind, *, optimized: bool, columns: Sequence[str]) -> DataFrame:
        reader = self._spark.read.format("hudi")
        if optimized:
            reader = reader.option("hoodie.datasource.query.type", "read_optimized")
        return reader.load(str(table_folder(self._folder, kind)))

    def position(self, kind: Kind, back: int) -> str:
        return completion_times(table_folder(self._folder, kind))[-back - 1]

    def changes(self, kind: Kind, position: str) -> DataFrame:
        reader = self._spark.read.format("hudi")
        reader = reader.option("hoodie.datasource.query.type", "incremental")
        reader = reader.option("hoodie.datasource.read.begin.instanttime", position)
        return reader.load(str(table_folder(self._folder, kind)))

    def compact(self, kind: Kind) -> None:
        self._call("run_compaction", kind, {**COMPACT_NOW, **ZSTD}, "op => 'scheduleAndExecute'")

    def cluster(self, kind: Kind) -> None:
        self._call("run_clustering", kind, ZSTD, f"order => '{CLUSTERED_BY}'")

    def schedule(self, table: Path, *, incremental: bool) -> None:
        # Building a metadata table would cost more than planning does.
        compaction_options = {
            **COMPACT_NOW,
            INCREMENTAL: str(incremental).lower(),
            NO_METADATA: "false",
        }
        options = ",".join(f"{key}={value}" for key, value in compaction_options.items())
        self._spark.sql(
            f"call run_compaction(path => '{table}', options => '{options}', op => 'schedule')"
        ).collect()

    def ttl(self, table: Path, max_partitions: int) -> Iterable[tuple[str, Callable[[], int]]]:
        return jobs(self._spark, table, max_partitions)

    def _call(
        self, procedure: str, kind: Kind, options: Mapping[str, str], more_arguments: str
    ) -> None:
        option_text = ",".join(f"{key}={value}" for key, value in options.items())
        table = table_folder(self._folder, kind)
        rows = self._spark.sql(
            f"call {procedure}(path => '{table}', options => '{option_text}', {more_arguments})"
        ).collect()
        if not rows or "COMPLETED" not in str(rows):
            raise RuntimeError(f"nothing was done: {rows}")

    def forget(self) -> None:
        self._spark.catalog.clearCache()

    def _save(self, kind: Kind, rows: DataFrame, operation: str, mode: str) -> None:
        writer = rows.write.format("hudi").options(**self._options(kind, operation)).mode(mode)
        writer.save(str(table_folder(self._folder, kind)))

    def _options(self, kind: Kind, operation: str) -> dict[str, str]:
        parallelism = {
            f"hoodie.{name}.parallelism": self._cores
            for name in ("upsert.shuffle", "delete.shuffle", "insert.shuffle", "simple.index")
        }
        return {
            "hoodie.table.name": "lineitem",
            "hoodie.datasource.write.table.type": TABLE_TYPES[kind],
            "hoodie.datasource.write.operation": operation,
            "hoodie.datasource.write.recordkey.field": ",".join(KEYS),
            "hoodie.datasource.write.partitionpath.field": PARTITION,
            "hoodie.datasource.write.precombine.field": ORDERING,
            **ZSTD,
            **index_options(kind),
            **parallelism,
        }
