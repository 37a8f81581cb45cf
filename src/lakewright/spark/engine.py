"""The work of services on Spark's workers, dealt out by size."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import pyarrow as pa

from lakewright.scan.scan_plan import ReadPlan
from lakewright.spark.reader import scan, spark_schema
from lakewright.spark.worker_environment import SPARK_ERRORS
from lakewright.spark.writer import SparkRows, failure_of, on_workers
from lakewright.storage.base import Storage
from lakewright.write.task import Token

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Item = TypeVar("Item")
Answer = TypeVar("Answer")


class SparkHands:
    """The workers of a Spark session."""

    def __init__(self, spark: SparkSession) -> None:
        self.spark = spark

    def work(
        self,
        do: Callable[[Item, Token], Answer],
        items: Sequence[Item],
        size: Callable[[Item], int],
    ) -> list[Answer]:
        """Let workers do something with each item; see `Hands`."""
        try:
            bundles = on_workers(self.spark, partial(_each, do), items, size)
        except SPARK_ERRORS as error:
            raise failure_of(error) from error
        return [answer for bundle in bundles for answer in bundle]

    def rows(
        self,
        storage: Storage,
        plan: ReadPlan,
        pick: Callable[[pa.RecordBatch], pa.RecordBatch],
        schema: pa.Schema,
    ) -> SparkRows:
        """What `pick` leaves of the rows of a query; see `Hands`."""
        frame = scan(self.spark, storage, plan)
        return SparkRows(frame.mapInArrow(partial(_picked, pick), spark_schema(schema)))


def _picked(
    pick: Callable[[pa.RecordBatch], pa.RecordBatch], batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    return map(pick, batches)


def _each(do: Callable[[Item, Token], Answer], items: Sequence[Item], token: Token) -> list[Answer]:
    return [do(item, token) for item in items]
