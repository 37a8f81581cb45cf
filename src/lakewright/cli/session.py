"""The Spark session of the command line; to be imported only when it is needed."""

from __future__ import annotations

import os
from collections.abc import Mapping

from pyspark import SparkConf, SparkContext
from pyspark.sql import SparkSession
from pyspark.sql.utils import is_remote

from lakewright.spark.engine import SparkEngine
from lakewright.storage.redaction import is_secret

__all__ = ["SparkEngine", "start_session"]

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
