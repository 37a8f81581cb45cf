"""Writes on a session with speculation, whose jobs are cancelled at random moments."""

from __future__ import annotations

import os
import random
import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar, cast

from pyspark.sql import DataFrame, SparkSession

import lakewright as lw
from lakewright.clock import SystemClock
from lakewright.errors import LakewrightError
from lakewright.model.file_group import parse_data_file
from lakewright.model.instant import Action
from lakewright.storage.base import FileStatus, Storage
from lakewright.storage.factory import storage_for
from lakewright.table.doctor.doctor import examine, repair
from lakewright.table.options import HeartbeatSettings
from lakewright.table.snapshot import load_snapshot
from lakewright.table.transaction import TransactionManager, TransactionSpec
from lakewright.testing.storage import _Wrapped

Result = TypeVar("Result")

# Its sitecustomize.py makes attempts on executors crash.
FAULTS = Path(__file__).parent / "lost_attempts"
PARTITIONS, KEYS = 6, 60
COMMITTED = "committed"
ALLOW = {"hoodie.block.writes.on.speculative.execution": "false"}
QUIET = {"hoodie.clean.automatic": "false", "hoodie.archive.automatic": "false"}


@dataclass(frozen=True)
class LaterClock(SystemClock):
    """A clock so late that no task can be running."""

    later_ms: int = HeartbeatSettings().expires_after_ms + 60_000

    def now_ms(self) -> int:
        return super().now_ms() + self.later_ms


class LaterStorage(_Wrapped):
    """A storage whose clock is as late, by the file with which a process asks for its time."""

    __slots__ = ()

    def _call(self, method: Callable[..., Result], *arguments: Any) -> Result:
        result: Any = method(*arguments)
        if isinstance(result, FileStatus) and result.path.endswith("lakewright_clock"):
            result = replace(result, modified_ms=result.modified_ms + LaterClock().later_ms)
        return cast(Result, result)


@dataclass
class Play:
    """A table, and the rows that it must have."""

    spark: SparkSession
    address: str
    options: dict[str, str]
    rows: dict[str, tuple[str, int]] = field(default_factory=dict)
    version: int = 0

    def create(self, table_type: str) -> None:
        lw.create(
            self.address,
            name="plays",
            table_type=table_type,
            record_key=["id"],
            partition_by=["day"],
            ordering=["ts"],
            options=self.options,
        )

    def write(self, chance: random.Random) -> str:
        """One write of some rows; one in three is cancelled at a random moment."""
        self.version += 1
        operation = chance.choice(["upsert", "upsert", "insert", "bulk_insert"])
        days = chance.sample(range(PARTITIONS), chance.randint(2, PARTITIONS))
        fresh = operation != "upsert"
        changed = {
            (f"n{self.version}-{n}" if fresh else f"k{n}"): (f"d{n % PARTITIONS}", self.version)
            for n in range(KEYS)
            if n % PARTITIONS in days
        }
        cancelled = chance.random() < 1 / 3
        group = uuid.uuid4().hex
        ended = self._run(operation, changed, group, chance.uniform(0.1, 2.5) if cancelled else 0)
        if ended == COMMITTED:
            self.rows |= changed
        return ended

    def _run(
        self, operation: str, rows: dict[str, tuple[str, int]], group: str, after: float
    ) -> str:
        context = self.spark.sparkContext
        context.setJobGroup(group, operation, interruptOnCancel=True)
        timer = threading.Timer(after, lambda: context.cancelJobGroup(group))
        if after:
            timer.start()
        try:
            table = lw.open(self.address, spark=self.spark, options={**self.options})
            getattr(table, operation)(self._frame(rows), {**ALLOW, **QUIET})
        except LakewrightError as error:
            # A compaction after the write may be cancelled as well.
            return (
                f"{type(error).__name__}: {error}"[:200] if error.committed is None else COMMITTED
            )
        finally:
            timer.cancel()
        return COMMITTED

    def _frame(self, rows: dict[str, tuple[str, int]]) -> DataFrame:
        data = [(key, day, version) for key, (day, version) in rows.items()]
        return self.spark.createDataFrame(data, "id string, day string, ts long").repartition(3)

    def wrong(self) -> list[str]:
        """What is wrong with the table right now."""
        if not self.rows:
            return []  # nothing was committed yet, so there are no columns
        table = lw.open(self.address, spark=self.spark, options=self.options)
        read = [
            (row.id, row.day, row.ts) for row in table.read().select("id", "day", "ts").collect()
        ]
        expected = sorted((key, *value) for key, value in self.rows.items())
        if sorted(read) == expected:
            return []
        return [
            f"{len(read)} rows, {len(expected)} expected: {sorted(set(read) ^ set(expected))[:3]}"
        ]

    def wrong_in_the_end(self) -> list[str]:
        """What is wrong when no task runs any more and another writer has begun a transaction."""
        storage = LaterStorage(storage_for(self.address, self.options))
        writer = TransactionManager(storage, LaterClock())
        transaction, _ = writer.begin(lambda snapshot: TransactionSpec(Action.COMMIT))
        transaction.abort()
        # Temporary files of attempts that were killed go with the next clean, or repair.
        unsafe = [
            str(finding) for finding in examine(storage, LaterClock()).findings if not finding.safe
        ]
        mended = repair(writer, examine(storage, LaterClock()))
        problems = [*unsafe, *map(str, mended.findings)]
        problems += [f"marker {file.path}" for file in storage.list_tree(".hoodie/.temp")]
        return [*self.wrong(), *problems, *(f"unlisted {path}" for path in unlisted(storage))]


def unlisted(storage: Storage) -> list[str]:
    """Data files that no commit on the timeline lists; nothing is archived here."""
    snapshot = load_snapshot(storage)
    commits = snapshot.commits(snapshot.timeline.completed_writes)
    listed = {name for commit in commits for name in commit.referenced_file_names()}
    files = [file for file in storage.list_tree("") if not file.path.startswith(".hoodie/")]
    return [file.path for file in files if parse_data_file(file.name) and file.name not in listed]


# Two executors in processes of their own: Spark does not speculate on a local master.
MASTER = "local-cluster[2,2,1024]"
SETTINGS = {
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.multiplier": "1.1",
    "spark.speculation.quantile": "0.2",
    "spark.speculation.minTaskRuntime": "200ms",
    "spark.task.maxFailures": "8",
    "spark.executorEnv.PYTHONPATH": f"{FAULTS}:{os.environ.get('PYTHONPATH', '')}",
    "spark.executor.memory": "512m",
    "spark.sql.shuffle.partitions": "4",
}


@dataclass(frozen=True)
class Outcome:
    """How a write ended, or the last look at a table, and what is wrong with the table."""

    table: str
    wrong: list[str]
    ended: str = ""


def play_all(
    spark: SparkSession, addresses: Sequence[tuple[str, dict[str, str]]], seed: int, plays: int
) -> Iterator[Outcome]:
    """Write to tables in turn, and look at each in the end."""
    chance = random.Random(seed)
    tables = []
    for number, (address, options) in enumerate(addresses):
        play = Play(spark, address, options)
        play.create("COPY_ON_WRITE" if number % 2 == 0 else "MERGE_ON_READ")
        tables.append(play)
    for number in range(plays):
        play = tables[number % len(tables)]
        ended = play.write(chance)
        yield Outcome(play.address, play.wrong(), ended)
    for play in tables:
        yield Outcome(play.address, play.wrong_in_the_end())
