"""Delta Lake with its defaults; deletion vectors where others merge on read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from bench.plan import Kind
from bench.systems.base import CLUSTERED_BY, PARTITION, merge_delete, merge_upsert, table_folder


def session_settings(jars: str, cores: int, folder: Path) -> dict[str, str]:
    """What Delta's own guide asks for; its log is read by as many tasks as there are cores."""
    return {
        "spark.jars": jars,
        "spark.databricks.delta.snapshotPartitions": str(cores),
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    }


class Racer:
    """Delta by MERGE."""

    plans = "all"

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self._spark = spark
        self._folder = folder

    def load(self, kind: Kind, rows: DataFrame) -> None:
        vectors = "true" if kind is Kind.MOR else "false"
        writer = rows.write.format("delta").partitionBy(PARTITION)
        writer = writer.option("delta.enableDeletionVectors", vectors)
        feed = "true" if kind is Kind.FEED else "false"
        writer.option("delta.enableChangeDataFeed", feed).save(
            str(table_folder(self._folder, kind))
        )

    def upsert(self, kind: Kind, rows: DataFrame, partitions: Sequence[str]) -> None:
        rows.createOrReplaceTempView("incoming")
        self._spark.sql(merge_upsert(self._table(kind), partitions))

    def delete(self, kind: Kind, keys: DataFrame) -> None:
        keys.createOrReplaceTempView("incoming")
        self._spark.sql(merge_delete(self._table(kind)))

    def read(self, kind: Kind, *, optimized: bool, columns: Sequence[str]) -> DataFrame:
        return self._spark.read.format("delta").load(str(table_folder(self._folder, kind)))

    def position(self, kind: Kind, back: int) -> str:
        log = table_folder(self._folder, kind) / "_delta_log"
        return str(max(int(file.stem) for file in log.glob("*.json")) - back)

    def changes(self, kind: Kind, position: str) -> DataFrame:
        reader = self._spark.read.format("delta").option("readChangeFeed", "true")
        reader = reader.option("startingVersion", str(int(position) + 1))
        feed = reader.load(str(table_folder(self._folder, kind)))
        return feed.where("_change_type in ('insert', 'update_postimage')")

    def compact(self, kind: Kind) -> None:
        raise NotImplementedError

    def cluster(self, kind: Kind) -> None:
        self._spark.sql(f"OPTIMIZE {self._table(kind)} ZORDER BY ({CLUSTERED_BY})").collect()

    def schedule(self, table: Path, *, incremental: bool) -> None:
        raise NotImplementedError

    def ttl(self, table: Path, max_partitions: int) -> Iterable[tuple[str, Callable[[], int]]]:
        raise NotImplementedError

    def forget(self) -> None:
        self._spark.catalog.clearCache()
        jvm = self._spark.sparkContext._jvm
        assert jvm is not None
        jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()

    def _table(self, kind: Kind) -> str:
        return f"delta.`{table_folder(self._folder, kind)}`"
