"""A small local Spark session for the demo and the first examples."""

from __future__ import annotations

import os
from pathlib import Path

from pyspark.errors import PySparkRuntimeError
from pyspark.sql import SparkSession

from lakewright.errors import UnavailableError

# Without a file of its own Spark tells of warnings before it can be told not to.
_LOGGING = Path(__file__).with_name("log4j2.properties").as_uri()
# For a few thousand rows it costs more to compile and to grow than it saves.
_JAVA = (
    "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:MetaspaceSize=256m "
    f"-Dlog4j2.configurationFile={_LOGGING}"
)
_SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.session.timeZone": "UTC",
    # A machine need not be able to resolve its own name.
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.extraJavaOptions": _JAVA,
}


def start_spark() -> SparkSession:
    """A local session on two cores."""
    # Spark's Python imports nothing from the folder that the demo is started in.
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
