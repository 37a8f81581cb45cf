"""The work of services on Spark's workers, dealt out by size."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import pyarrow as pa

from lakewright.scan.scan_plan import ScanPlan
from lakewright.spark.reader import scan_slices, spark_schema
from lakewright.spark.worker_environment import SPARK_ERRORS
from lakewright.spark.writer import SparkRows, map_on_workers, translate_spark_error
from lakewright.storage.base import Storage
from lakewright.write.task import WriteToken

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Item = TypeVar("Item")
Answer = TypeVar("Answer")


class SparkEngine:
    """The workers of a Spark session."""

    def __init__(self, spark: SparkSession) -> None:
        self.spark = spark

    def map(
        self,
        do: Callable[[Item, WriteToken], Answer],
        items: Sequence[Item],
        size: Callable[[Item], int],
    ) -> list[Answer]:
        """Let workers do something with each item; see `Engine`."""
        try:
            bundles = map_on_workers(self.spark, partial(_each, do), items, size)
        except SPARK_ERRORS as error:
            raise translate_spark_error(error) from error
        return [answer for bundle in bundles for answer in bundle]

    def select(
        self,
        storage: Storage,
        plan: ScanPlan,
        pick: Callable[[pa.RecordBatch], pa.RecordBatch],
        schema: pa.Schema,
    ) -> SparkRows:
        """What `pick` leaves of the rows of a query; see `Engine`."""
        frame = scan_slices(self.spark, storage, plan)
        return SparkRows(frame.mapInArrow(partial(_picked, pick), spark_schema(schema)))


def _picked(
    pick: Callable[[pa.RecordBatch], pa.RecordBatch], batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    return map(pick, batches)


def _each(
    do: Callable[[Item, WriteToken], Answer], items: Sequence[Item], token: WriteToken
) -> list[Answer]:
    return [do(item, token) for item in items]
