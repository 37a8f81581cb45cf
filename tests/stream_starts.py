"""Starting queries over sources in Python on a machine that is busy."""

from __future__ import annotations

import time

from pyspark.errors import PySparkException
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

_TOO_LATE = "failed to connect back"


def started(writer: DataStreamWriter, path: str | None = None) -> StreamingQuery:
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
