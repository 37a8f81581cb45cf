"""The Spark session of the command line; to be imported only when it is needed."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import SparkSession

from lakewright.services.hands.run import SparkHands

__all__ = ["SparkHands", "start_session"]

_QUIET = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "ERROR",
    "spark.sql.session.timeZone": "UTC",
}


def start_session(master: str, configs: Mapping[str, str]) -> SparkSession:
    """A session at a master; `configs` go before what is usual here."""
    builder = SparkSession.builder.master(master).appName("lakewright")
    for key, value in {**_QUIET, **configs}.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()
