"""A small local Spark session for the demo and the first examples."""

from __future__ import annotations

import os
from pathlib import Path

from pyspark.errors import PySparkRuntimeError
from pyspark.sql import SparkSession

from lakewright.errors import UnavailableError

# Spark logs warnings at its start, before the log level can be set on the session.
_LOG_CONFIGURATION = Path(__file__).with_name("log4j2.properties").as_uri()
# For a few thousand rows a fast start matters more than peak performance.
_JAVA_OPTIONS = (
    "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:MetaspaceSize=256m "
    f"-Dlog4j2.configurationFile={_LOG_CONFIGURATION}"
)
_SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.session.timeZone": "UTC",
    # The host name of the machine may not be resolvable.
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.extraJavaOptions": _JAVA_OPTIONS,
}


def start_spark() -> SparkSession:
    """Start a local session on two cores."""
    # Spark's Python workers do not import modules from the working directory.
    os.environ.setdefault("PYTHONSAFEPATH", "1")
    builder = SparkSession.builder.master("local[2]").appName("lakewright demo")
    for key, value in _SETTINGS.items():
        builder = builder.config(key, value)
    try:
        return builder.getOrCreate()
    except PySparkRuntimeError as error:
        raise UnavailableError(
            "Spark does not start: it needs Java 17 or later, on PATH or in JAVA_HOME",
            reason=str(error),
        ) from error
