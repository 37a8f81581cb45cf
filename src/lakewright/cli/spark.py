"""What the command line does with Spark: its session, the progress of jobs, rows of a query.

Imported only by the command that needs it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark import SparkConf, SparkContext
from pyspark.errors import AnalysisException, ParseException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.utils import is_remote

from lakewright.cli.output import size_text
from lakewright.cli.progress import waiting
from lakewright.client.command_options import spark_options
from lakewright.engine.local import plan_bytes
from lakewright.errors import InvalidError
from lakewright.spark.engine import SparkEngine
from lakewright.spark.reader import scan
from lakewright.storage.redaction import is_secret

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from lakewright.cli.rows import Reading, ReadRequest

__all__ = ["SparkEngine", "spark_rows", "spark_work", "start_session"]

_QUIET = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "ERROR",
    "spark.sql.session.timeZone": "UTC",
}


def start_session(master: str, configs: Mapping[str, str]) -> SparkSession:
    """A session at a master; `configs` go before what is usual here."""
    told = {"spark.master": master, "spark.app.name": "lakewright", **_QUIET, **configs}
    # Spark's Python imports nothing from the current folder, nor does the command `lakewright`.
    os.environ.setdefault("PYTHONSAFEPATH", "1")
    if any(map(is_secret, told)) and not is_remote():
        _start_jvm({key: value for key, value in told.items() if not is_secret(key)})
    builder = SparkSession.builder
    for key, value in told.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


def _start_jvm(configs: Mapping[str, str]) -> None:
    """Start Spark's JVM, which gets its settings as arguments, and every user can read these.

    What the session is told beyond them goes through a socket.
    """
    SparkContext._ensure_initialized(conf=SparkConf().setAll(list(configs.items())))


@dataclass(frozen=True, slots=True)
class SparkWork:
    """The stages that run now: their tasks, and what was read by those that have ended.

    What Python workers read by themselves is in neither `rows` nor `bytes`.
    """

    stages: tuple[int, ...] = ()
    tasks: int = 0
    done: int = 0
    rows: int = 0
    bytes: int = 0

    def text(self, running_s: float = 0) -> str:
        """In words, without what is not known; empty if nothing runs."""
        if not self.tasks:
            return ""
        rows = f", {self.rows} rows" if self.rows else ""
        size = f", {size_text(self.bytes)}" if self.bytes else ""
        left_s = running_s * (self.tasks - self.done) / self.done if self.done else 0
        left = f", about {left_s:.0f} s left" if left_s >= 1 else ""
        return f"{self.done} of {self.tasks} tasks{rows}{size}{left}"


def spark_work(spark: SparkSession) -> Callable[[], str]:
    """What tells how far a session is, whenever it is called; nothing while it rests.

    On Spark Connect, where the driver is elsewhere, it tells nothing.
    """
    if is_remote():
        return str
    running: tuple[int, ...] = ()
    since = 0.0

    def look() -> str:
        nonlocal running, since
        try:
            work = _added(spark._jsc.sc().statusStore().activeStages())
        except (Py4JError, OSError):  # it stops
            return ""
        now = time.monotonic()
        if work.stages != running:
            running, since = work.stages, now
        return work.text(now - since)

    return look


def _added(stages: Any) -> SparkWork:
    work = SparkWork()
    for number in range(stages.size()):
        stage = stages.apply(number)
        work = SparkWork(
            (*work.stages, stage.stageId()),
            work.tasks + stage.numTasks(),
            work.done + stage.numCompleteTasks(),
            work.rows + stage.inputRecords(),
            work.bytes + stage.inputBytes(),
        )
    return work


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
