"""How far the jobs of a Spark session have come, as its driver knows it; classic sessions only."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JError
from pyspark.sql.utils import is_remote

from lakewright.cli.printing import size_text

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


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
