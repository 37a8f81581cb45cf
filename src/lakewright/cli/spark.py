"""Spark for commands: the session, the progress of its stages, and the rows of a query.

Imported only by commands that need Spark.
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

_DEFAULT_MASTER = "local[*]"
_DEFAULT_CONFIGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "ERROR",
    "spark.sql.session.timeZone": "UTC",
}


def start_session(master: str, configs: Mapping[str, str]) -> SparkSession:
    """Start a session on a master; `configs` override the default settings."""
    settings = {
        "spark.master": master,
        "spark.app.name": "lakewright",
        **_DEFAULT_CONFIGS,
        **configs,
    }
    # Python workers import nothing from the current folder, like the command `lakewright` itself.
    os.environ.setdefault("PYTHONSAFEPATH", "1")
    if any(map(is_secret, settings)) and not is_remote():
        _start_jvm({key: value for key, value in settings.items() if not is_secret(key)})
    builder = SparkSession.builder
    for key, value in settings.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


def _start_jvm(configs: Mapping[str, str]) -> None:
    """Start the JVM with settings that are not secret: every user can read its arguments.

    The session passes its other settings to the JVM through a socket.
    """
    SparkContext._ensure_initialized(conf=SparkConf().setAll(list(configs.items())))


@dataclass(frozen=True, slots=True)
class SparkWork:
    """The active stages: their tasks, and the rows and bytes that completed tasks have read.

    `rows` and `bytes` do not include what Python workers read by themselves.
    """

    stages: tuple[int, ...] = ()
    tasks: int = 0
    completed_tasks: int = 0
    rows: int = 0
    bytes: int = 0

    def text(self, running_s: float = 0) -> str:
        """Return the known figures as text; empty if no stage is active."""
        if not self.tasks:
            return ""
        rows = f", {self.rows} rows" if self.rows else ""
        size = f", {size_text(self.bytes)}" if self.bytes else ""
        remaining_s = (
            running_s * (self.tasks - self.completed_tasks) / self.completed_tasks
            if self.completed_tasks
            else 0
        )
        remaining = f", about {remaining_s:.0f} s left" if remaining_s >= 1 else ""
        return f"{self.completed_tasks} of {self.tasks} tasks{rows}{size}{remaining}"


def spark_work(spark: SparkSession) -> Callable[[], str]:
    """Return a function that returns the progress of a session as text, empty if it is idle.

    The text is always empty on Spark Connect, where the driver is another process.
    """
    if is_remote():
        return str
    active_stages: tuple[int, ...] = ()
    started_at = 0.0

    def progress() -> str:
        nonlocal active_stages, started_at
        try:
            work = _sum_stages(spark._jsc.sc().statusStore().activeStages())
        except (Py4JError, OSError):  # the session is stopping
            return ""
        now = time.monotonic()
        if work.stages != active_stages:
            active_stages, started_at = work.stages, now
        return work.text(now - started_at)

    return progress


def _sum_stages(stages: Any) -> SparkWork:
    work = SparkWork()
    for number in range(stages.size()):
        stage = stages.apply(number)
        work = SparkWork(
            (*work.stages, stage.stageId()),
            work.tasks + stage.numTasks(),
            work.completed_tasks + stage.numCompleteTasks(),
            work.rows + stage.inputRecords(),
            work.bytes + stage.inputBytes(),
        )
    return work


@contextmanager
def spark_rows(
    request: ReadRequest, reading: Reading
) -> Iterator[Callable[[], Iterator[pa.RecordBatch]]]:
    """Return a function that reads the rows; the session is stopped at the end of the block."""
    spark = start_session(request.master or _DEFAULT_MASTER, spark_options(request.options))
    try:
        frame = _select(scan(spark, reading.storage, reading.plan), request, reading)

        def rows() -> Iterator[pa.RecordBatch]:
            with waiting("reading with Spark", plan_bytes(reading.plan), spark_work(spark)):
                table = frame.toArrow()
            yield from table.cast(reading.schema).to_batches()

        yield rows
    finally:
        spark.stop()


def _select(frame: DataFrame, request: ReadRequest, reading: Reading) -> DataFrame:
    if request.where is not None:
        try:
            frame = frame.where(F.expr(request.where))
        except (AnalysisException, ParseException) as error:
            cause = str(error).partition("\n")[0]
            raise InvalidError(
                "not a condition on rows", filter=request.where, cause=cause
            ) from error
    frame = frame.select(*(F.col(f"`{name.replace('`', '``')}`") for name in reading.names))
    return frame if reading.limit is None else frame.limit(reading.limit)
