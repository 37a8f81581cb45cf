"""Apache Iceberg with its defaults: copy-on-write, or merge-on-read where that is raced."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from bench.plan import Kind
from bench.systems.base import CLUSTERED_BY, PARTITION, merge_delete, merge_upsert


def session_settings(jars: str, cores: int, folder: Path) -> dict[str, str]:
    """A catalog of files that remembers no table: the files are exchanged behind its back."""
    return {
        "spark.jars": jars,
        "spark.sql.extensions": (
            "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions"
        ),
        "spark.sql.catalog.ice": "org.apache.iceberg.spark.SparkCatalog",
        "spark.sql.catalog.ice.type": "hadoop",
        "spark.sql.catalog.ice.warehouse": str(folder),
        "spark.sql.catalog.ice.cache-enabled": "false",
    }


class Racer:
    """Iceberg by MERGE."""

    plans = "all"

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self._spark = spark

    def load(self, kind: Kind, rows: DataFrame) -> None:
        mode = "merge-on-read" if kind is Kind.MOR else "copy-on-write"
        writer = rows.writeTo(_table(kind)).using("iceberg").partitionedBy(F.col(PARTITION))
        for change in ("merge", "update", "delete"):
            writer = writer.tableProperty(f"write.{change}.mode", mode)
        writer.create()

    def upsert(self, kind: Kind, rows: DataFrame, partitions: Sequence[str]) -> None:
        rows.createOrReplaceTempView("incoming")
        self._spark.sql(merge_upsert(_table(kind), partitions))

    def delete(self, kind: Kind, keys: DataFrame) -> None:
        keys.createOrReplaceTempView("incoming")
        self._spark.sql(merge_delete(_table(kind)))

    def read(self, kind: Kind, *, optimized: bool, columns: Sequence[str]) -> DataFrame:
        return self._spark.table(_table(kind))

    def position(self, kind: Kind, back: int) -> str:
        raise NotImplementedError

    def changes(self, kind: Kind, position: str) -> DataFrame:
        raise NotImplementedError

    def compact(self, kind: Kind) -> None:
        raise NotImplementedError

    def cluster(self, kind: Kind) -> None:
        table = _table(kind).removeprefix("ice.")
        self._spark.sql(
            f"CALL ice.system.rewrite_data_files(table => '{table}', strategy => 'sort', "
            f"sort_order => '{CLUSTERED_BY}', options => map('rewrite-all', 'true'))"
        ).collect()

    def schedule(self, table: Path, *, incremental: bool) -> None:
        raise NotImplementedError

    def ttl(self, table: Path, max_partitions: int) -> Iterable[tuple[str, Callable[[], int]]]:
        raise NotImplementedError

    def forget(self) -> None:
        self._spark.catalog.clearCache()


def _table(kind: Kind) -> str:
    # The catalog keeps it in the folder that `place` names.
    return f"ice.tables.{kind}"
