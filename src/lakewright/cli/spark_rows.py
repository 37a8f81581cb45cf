"""Rows of a query by Spark; to be imported only when it is needed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.errors import AnalysisException, ParseException
from pyspark.sql import functions as F

from lakewright.cli.progress import waiting
from lakewright.cli.session import start_session
from lakewright.cli.spark_work import spark_work
from lakewright.client.command_options import spark_options
from lakewright.engine.local import plan_bytes
from lakewright.errors import InvalidError
from lakewright.spark.reader import scan

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from lakewright.cli.rows import Reading, ReadRequest

_ANYWHERE = "local[*]"


@contextmanager
def spark_rows(
    wanted: ReadRequest, reading: Reading
) -> Iterator[Callable[[], Iterator[pa.RecordBatch]]]:
    """What gives the rows that are asked for, as long as its session lives."""
    spark = start_session(wanted.master or _ANYWHERE, spark_options(wanted.options))
    try:
        frame = _chosen(scan(spark, reading.storage, reading.plan), wanted, reading)

        def rows() -> Iterator[pa.RecordBatch]:
            with waiting("reading with Spark", plan_bytes(reading.plan), spark_work(spark)):
                found = frame.toArrow()
            yield from found.cast(reading.schema).to_batches()

        yield rows
    finally:
        spark.stop()


def _chosen(frame: DataFrame, wanted: ReadRequest, reading: Reading) -> DataFrame:
    if wanted.where is not None:
        try:
            frame = frame.where(F.expr(wanted.where))
        except (AnalysisException, ParseException) as error:
            cause = str(error).partition("\n")[0]
            raise InvalidError(
                "not a condition on rows", filter=wanted.where, cause=cause
            ) from error
    frame = frame.select(*(F.col(f"`{name.replace('`', '``')}`") for name in reading.names))
    return frame if reading.limit is None else frame.limit(reading.limit)
