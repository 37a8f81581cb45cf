"""The load test of partition TTL: a table half of whose partitions are a month old, step by step.

Used by the race, on local disk beside real Hudi, and by `bench.cluster`, on HDFS.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import lakewright as lw
from bench.plan import AGED_DAYS, AGED_FIELD, RETAINED_DAYS, RETAINED_ROWS
from bench.systems.base import KEYS, ORDERING
from lakewright.client.write_client import WriteClient, spark_rows
from lakewright.clock import Clock, SystemClock
from lakewright.model.plans import Skip
from lakewright.write.task import Operation

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_DAY_MS = 86_400_000
# A file has some 600 keys: a filter for 60 000 would be most of it.
_LOADING = {
    "hoodie.index.bloom.num_entries": "1000",
    "hoodie.bulkinsert.sort.mode": "PARTITION_PATH_REPARTITION_AND_SORT",
    "hoodie.clean.automatic": "false",
}
_CLEAN_NOW = {
    "hoodie.clean.policy": "KEEP_LATEST_FILE_VERSIONS",
    "hoodie.clean.fileversions.retained": "1",
}

Job = Callable[[], int]


@dataclass(frozen=True, slots=True)
class EarlierClock(SystemClock):
    """The clock of this machine, some days behind."""

    days: int

    def now_ms(self) -> int:
        return SystemClock().now_ms() - self.days * _DAY_MS


def load(path: str, rows: DataFrame) -> int:
    """Make the table, whose even partitions are old and whose odd ones are new.

    Gives how many partitions it has.
    """
    table = lw.create(
        path,
        rows.sparkSession,
        name="lineitem",
        table_type="COPY_ON_WRITE",
        record_key=KEYS,
        partition_by=AGED_FIELD,
        ordering=ORDERING,
    )
    clocks: dict[str, Clock] = {
        f"not ({RETAINED_ROWS})": EarlierClock(AGED_DAYS),
        RETAINED_ROWS: SystemClock(),
    }
    count = 0
    for kind, clock in clocks.items():
        writer = WriteClient.create(table.storage, _LOADING, clock, rows.sparkSession)
        part = spark_rows(rows.where(kind))
        count += len(writer.write(Operation.BULK_INSERT, part).partitions)
    return count


def jobs(table: lw.Table, max_partitions: int) -> Iterator[tuple[str, Job]]:
    """What is timed on a loaded table, in order; each gives how many partitions it was about.

    `max_partitions` is how many partitions may go in one run.
    """
    options = {"hoodie.ttl.max.partitions.per.run": str(max_partitions)}
    yield "update", table.ttl.update_partitions
    table.ttl.save({"spec": "*", "units": "DAYS", "value": RETAINED_DAYS})
    table.ttl.enable(run_inline=False)
    yield "find", lambda: _count(table.preview("ttl", options))
    yield "run", lambda: _count(table.run("ttl", options))
    yield "clean", lambda: _count(table.run("clean", _CLEAN_NOW))


def _count(result: object) -> int:
    """How many partitions a plan or a commit has."""
    if isinstance(result, Skip):
        raise RuntimeError(f"nothing was done: {result}")
    partitions: tuple[str, ...] = result.partitions  # type: ignore[attr-defined]
    return len(partitions)
