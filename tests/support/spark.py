"""Spark sessions that start soon, and streaming queries on them."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from pyspark import SparkContext
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

# For a few rows it costs more to compile well than it saves: Java compiles soon and simply. Room
# for Spark's classes and for their code needs no growing and no sweeping.
_JAVA_OPTIONS = (
    "-XX:TieredStopAtLevel=1 -XX:CompileThresholdScaling=0.2 -XX:+UseSerialGC "
    "-XX:MetaspaceSize=256m -XX:ReservedCodeCacheSize=256m"
)
_SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "ERROR",
    # Only a process that hangs takes that long to answer, even on a busy machine.
    "spark.network.timeout": "900s",
    "spark.python.authenticate.socketTimeout": "900s",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}


def speed_up_java() -> None:
    """Set options for every Java that this process or its children start."""
    options = [os.environ.get("JAVA_TOOL_OPTIONS", ""), _JAVA_OPTIONS]
    archive = os.environ.get("LAKEWRIGHT_CLASSES", "")
    if Path(archive).is_file() and Path(archive).stat().st_size:
        # Java ignores an archive of other classes, and must not warn of it.
        options.append(f"-XX:SharedArchiveFile={archive} -Xlog:disable")
    os.environ["JAVA_TOOL_OPTIONS"] = " ".join(options).strip()


def lean_hadoop(folder: Path) -> str:
    """A folder for the class path of a long session: empty defaults of what is not used there.

    Spark compresses some thousand settings of Hadoop anew for every scan and every task otherwise.
    """
    folder.mkdir()
    for name in ("mapred", "yarn", "hdfs", "hdfs-rbf"):
        (folder / f"{name}-default.xml").write_text("<configuration/>")
    return str(folder)


def quick_session(
    settings: Mapping[str, str] | None = None, builder: SparkSession.Builder | None = None
) -> SparkSession:
    """A session with some settings more, on two cores of this process by default."""
    builder = builder or SparkSession.builder.master("local[2]")
    for key, value in {**_SETTINGS, **(settings or {})}.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


@contextmanager
def next_session(settings: Mapping[str, str], master: str = "local[2]") -> Iterator[SparkSession]:
    """A session with a SparkContext of its own, in the JVM of this process.

    It ends the session before it. A second JVM would start cold.
    """
    # The settings of the context with which a JVM starts are those of all that follow.
    SparkContext._ensure_initialized()
    if SparkContext._active_spark_context is not None:
        SparkSession.builder.getOrCreate().stop()
    session = quick_session(settings, SparkSession.builder.master(master))
    try:
        yield session
    finally:
        session.stop()


_TOO_LATE = "failed to connect back"


def start_query(writer: DataStreamWriter, path: str | None = None) -> StreamingQuery:
    """A query whose source runs.

    Spark starts a Python for each, and gives up on one that is not there within ten seconds, which
    no setting changes: nothing was read by then, and it is tried again.
    """
    while True:
        try:
            query = writer.start(path)
        except PySparkException as error:
            if _TOO_LATE not in str(error):
                raise
            continue
        while query.isActive and query.status["message"].startswith("Initializing"):
            time.sleep(0.02)
        failed = None if query.isActive else query.exception()
        if failed is None or _TOO_LATE not in str(failed):
            return query
