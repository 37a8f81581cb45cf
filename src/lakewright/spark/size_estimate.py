"""Spark's estimate of how many bytes a DataFrame has, from its plan."""

from __future__ import annotations

import io
import re
import sys
from threading import Lock, get_ident
from typing import TYPE_CHECKING, TextIO

from lakewright.spark.worker_environment import SPARK_ERRORS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_STATISTICS = re.compile(r"Statistics\(sizeInBytes=([0-9.E+]+) (B|[KMGTPE]iB)")
_UNITS = {unit: 1 << 10 * power for power, unit in enumerate(("B", *(f"{u}iB" for u in "KMGTPE")))}
# What Spark does not know it takes for as large as can be.
_UNKNOWN = 1 << 60
_ONE_AT_A_TIME = Lock()


def estimated_bytes(frame: DataFrame) -> int | None:
    """Return the size that Spark expects, None if it has no idea.

    `explain` prints, and is the only public way to ask that Spark Connect has as well.
    """
    with _ONE_AT_A_TIME:
        printed = _OwnOutput(sys.stdout)
        sys.stdout = printed
        try:
            frame.explain(mode="cost")
        except SPARK_ERRORS:
            # The write evaluates the same plan, and reports what is wrong with it.
            return None
        finally:
            sys.stdout = printed.others
    return parse_estimate(printed.own.getvalue())


def parse_estimate(plan: str) -> int | None:
    """Return the size of the first operator in a plan that was explained with its costs.

    >>> parse_estimate("Relation [id#0L] parquet, Statistics(sizeInBytes=2.0 MiB)")
    2097152
    >>> parse_estimate("LogicalRDD [id#0L], Statistics(sizeInBytes=8.0 EiB)")
    """
    match = _STATISTICS.search(plan)
    if match is None:
        return None
    size = int(float(match[1]) * _UNITS[match[2]])
    return size if size < _UNKNOWN else None


class _OwnOutput(io.TextIOBase):
    """Keeps what this thread prints, and passes on what other threads print."""

    def __init__(self, others: TextIO) -> None:
        self.own = io.StringIO()
        self.others = others
        self._thread = get_ident()

    def write(self, text: str) -> int:
        target = self.own if get_ident() == self._thread else self.others
        return target.write(text)

    def flush(self) -> None:
        self.others.flush()
