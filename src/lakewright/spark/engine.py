"""The engine on Spark: scans, writes and maps on its executors."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import pyarrow as pa

from lakewright.engine.local import LocalEngine
from lakewright.model.partition_paths import PartitionRule
from lakewright.scan.scan_plan import ScanPlan
from lakewright.spark.reader import scan_slices, spark_schema
from lakewright.spark.tagging import arrow_schema
from lakewright.spark.worker_environment import SPARK_ERRORS
from lakewright.spark.writer import (
    SparkRows,
    map_on_workers,
    raise_if_unavailable,
    translate_spark_error,
    write_rows,
)
from lakewright.storage.base import Storage
from lakewright.write.task import WriteStatus, WriteTask, WriteToken
from lakewright.write.writer import RowSource

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Item = TypeVar("Item")
Answer = TypeVar("Answer")


class SparkEngine:
    """The executors of a Spark session: see `engine.base.Engine`."""

    def __init__(self, spark: SparkSession) -> None:
        self.spark = spark

    def scan(self, storage: Storage, plan: ScanPlan) -> ScannedRows:
        """Return the rows of a scan; Spark reads them when they are used."""
        return ScannedRows(scan_slices(self.spark, storage, plan))

    def write(self, task: WriteTask, rows: RowSource) -> Sequence[WriteStatus]:
        """Write the rows of a DataFrame on Spark's executors, Arrow rows in this process."""
        if isinstance(rows, ScannedRows):
            rows = SparkRows(rows.frame)
        if isinstance(rows, SparkRows):
            return write_rows(task, rows)
        return LocalEngine().write(task, rows)

    def map(
        self,
        function: Callable[[Item, WriteToken], Answer],
        items: Sequence[Item],
        size: Callable[[Item], int],
    ) -> list[Answer]:
        """Call `function` on each item, on Spark's executors; see `Engine`."""
        try:
            bundles = map_on_workers(self.spark, partial(_call_each, function), items, size)
        except SPARK_ERRORS as error:
            raise translate_spark_error(error) from error
        return [answer for bundle in bundles for answer in bundle]


@dataclass(frozen=True)
class ScannedRows:
    """The rows of a scan, as a DataFrame with the meta columns."""

    frame: DataFrame

    @property
    def schema(self) -> pa.Schema:
        """The columns of the scan."""
        return arrow_schema(self.frame.schema)

    def known_partitions(self, rule: PartitionRule) -> frozenset[str] | None:
        """See `RowSource`."""
        return SparkRows(self.frame).known_partitions(rule)

    def map_batches(
        self, function: Callable[[pa.RecordBatch], pa.RecordBatch], schema: pa.Schema
    ) -> SparkRows:
        """Return the rows that `function` makes of each batch."""
        mapped = self.frame.mapInArrow(partial(_map_batches, function), spark_schema(schema))
        return SparkRows(mapped)


def _map_batches(
    function: Callable[[pa.RecordBatch], pa.RecordBatch], batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    return map(function, batches)


def _call_each(
    function: Callable[[Item, WriteToken], Answer], items: Sequence[Item], token: WriteToken
) -> list[Answer]:
    return [raise_if_unavailable(function(item, token)) for item in items]
