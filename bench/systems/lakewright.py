"""Lakewright, with the table options that real Hudi is given too."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

import lakewright as lw
from bench.aged import jobs
from bench.plan import Kind
from bench.systems.base import (
    CLUSTERED_BY,
    KEYS,
    ORDERING,
    PARTITION,
    completion_times,
    table_folder,
)
from bench.systems.hudi_options import (
    COMPACT_NOW,
    INCREMENTAL,
    SORT_COLUMNS,
    TABLE_TYPES,
    index_options,
)


def session_settings(jars: str, cores: int, folder: Path) -> dict[str, str]:
    """No JAR, no setting."""
    return {}


class Racer:
    """Lakewright by its own interface."""

    plans = "incremental"

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self._spark = spark
        self._folder = folder

    def load(self, kind: Kind, rows: DataFrame) -> None:
        table = lw.create(
            str(table_folder(self._folder, kind)),
            self._spark,
            name="lineitem",
            table_type=TABLE_TYPES[kind],
            record_key=KEYS,
            partition_by=PARTITION,
            ordering=ORDERING,
            options={**index_options(kind), **_storage_options(kind)},
        )
        table.bulk_insert(rows)

    def upsert(self, kind: Kind, rows: DataFrame, partitions: Sequence[str]) -> None:
        self._open(kind).upsert(rows)

    def delete(self, kind: Kind, keys: DataFrame) -> None:
        self._open(kind).delete(keys.select(*KEYS, PARTITION, ORDERING))

    def read(self, kind: Kind, *, optimized: bool, columns: Sequence[str]) -> DataFrame:
        table = self._open(kind)
        return table.read_optimized(columns=columns) if optimized else table.read(columns=columns)

    def position(self, kind: Kind, back: int) -> str:
        return completion_times(table_folder(self._folder, kind))[-back - 1]

    def changes(self, kind: Kind, position: str) -> DataFrame:
        return self._open(kind).changes(since=position).dataframe

    def compact(self, kind: Kind) -> None:
        self._require(self._open(kind).run("compaction", COMPACT_NOW))

    def cluster(self, kind: Kind) -> None:
        self._require(self._open(kind).run("clustering", {SORT_COLUMNS: CLUSTERED_BY}))

    def schedule(self, table: Path, *, incremental: bool) -> None:
        options = {**COMPACT_NOW, INCREMENTAL: str(incremental).lower()}
        self._require(lw.open(str(table), spark=self._spark).schedule("compaction", options))

    def ttl(self, table: Path, max_partitions: int) -> Iterable[tuple[str, Callable[[], int]]]:
        return jobs(lw.open(str(table), spark=self._spark), max_partitions)

    def _require(self, result: object) -> None:
        if not result:
            raise RuntimeError(f"nothing was done: {result}")

    def forget(self) -> None:
        self._spark.catalog.clearCache()

    def _open(self, kind: Kind) -> lw.Table:
        path = str(table_folder(self._folder, kind))
        return lw.open(path, spark=self._spark, options=_storage_options(kind))


def _storage_options(kind: Kind) -> dict[str, str]:
    """What the storage of a table is opened with; a commit that survives a power cut has a cost."""
    return {"durable": str(kind is not Kind.TINY_NOT_DURABLE).lower()}
