"""The work of services on Spark's workers, dealt out by size."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from lakewright.read.run import SPARK_ERRORS
from lakewright.write.run import failure_of, on_workers
from lakewright.write.task import Token

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Item = TypeVar("Item")
Answer = TypeVar("Answer")


class SparkHands:
    """The workers of a Spark session."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark

    def work(
        self,
        do: Callable[[Item, Token], Answer],
        items: Sequence[Item],
        size: Callable[[Item], int],
    ) -> list[Answer]:
        """Let workers do something with each item; see `Hands`."""
        try:
            bundles = on_workers(self._spark, partial(_each, do), items, size)
        except SPARK_ERRORS as error:
            raise failure_of(error) from error
        return [answer for bundle in bundles for answer in bundle]


def _each(do: Callable[[Item, Token], Answer], items: Sequence[Item], token: Token) -> list[Answer]:
    return [do(item, token) for item in items]
