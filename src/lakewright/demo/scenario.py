"""The demo on Spark: batches are ingested, services run between and during them, checks follow."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

import pyarrow.parquet as pq
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import lakewright as lw
from lakewright.demo.checks import (
    Check,
    Totals,
    check_completion,
    check_with_hudi_rs,
    compare,
    compare_totals,
    expected_rows,
    expected_totals,
    files_of_instant,
    lateness,
    rows_of,
)
from lakewright.demo.events import FINISHED, Batch, Recipe, make_batches, to_arrow
from lakewright.demo.story import (
    Clustering,
    Compacted,
    Consumed,
    Expired,
    Round,
    Story,
    bars,
    event_time_text,
)
from lakewright.errors import InvalidError
from lakewright.model.instant import Action, InstantTime
from lakewright.services.planning import find_window

Report = Callable[[Story], None]

_CONCURRENCY_OPTIONS = {"hoodie.write.concurrency.mode": "OPTIMISTIC_CONCURRENCY_CONTROL"}
# With no small files to fill up, inserts go to new file groups and only updates to log files, as on
# a busy table.
_INGEST_OPTIONS = {**_CONCURRENCY_OPTIONS, "hoodie.parquet.small.file.limit": "0"}
_CLUSTERING_OPTIONS = {
    "hoodie.table.service.plan.cancellable": "true",
    "hoodie.clustering.plan.strategy.sort.columns": "city,at",
    **_CONCURRENCY_OPTIONS,
}
_TTL_OPTIONS = {
    "hoodie.partition.ttl.management.strategy.type": "KEEP_BY_EVENT_TIME",
    "hoodie.partition.ttl.strategy.days.retain": "14",
    **_CONCURRENCY_OPTIONS,
}
_CHANGE_COLUMNS = ["city", "status", "fare_cents"]
_CHANGE_DDL = "city string, status string, fare_cents bigint"
_LATENESS_MS = 10 * 60_000
# A clustering that completes before the concurrent ingest is tried again during the next ingest.
_CLUSTERING_TRIES = 3
# The part of an ingest after which the clustering starts: before the tasks of the ingest create
# markers, and too late to complete before they do.
_CLUSTERING_DELAY = 0.4
_WAIT_S = 60.0
_POLL_S = 0.02


def play(spark: SparkSession, folder: Path, recipe: Recipe, report: Report) -> Story:
    """Run the demo in a folder; its table stays there."""
    path, landing = make_folders(folder)
    started = time.monotonic()
    batches = make_batches(recipe)
    table = lw.create(
        str(path),
        spark=spark,
        name="rides",
        table_type="MERGE_ON_READ",
        record_key="ride",
        partition_by=["day"],
        ordering="at",
        event_time="at",
    )
    demo = _Demo(spark, table, landing, Consumer(table), Story(str(path), recipe), report)
    for batch in batches:
        _process_batch(demo, batch)
    demo.update(doing="checking the result", lateness=lateness(batches))
    demo.update(checks=_checks(demo, batches))
    demo.update(doing="", took_s=time.monotonic() - started)
    return demo.story


def make_folders(folder: Path) -> tuple[Path, Path]:
    """Create the landing folder; return the path of the table, which must not exist, and of it."""
    path, landing = folder / "rides", folder / "landing"
    if path.exists():
        raise InvalidError("there is a table here already: choose another folder", path=str(path))
    try:
        landing.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidError(
            "this folder cannot be made: choose another one", folder=str(folder), reason=str(error)
        ) from error
    return path, landing


class Consumer:
    """Computes totals by city from the change feed alone.

    It subtracts the row before a change and adds the row after it. Its checkpoint is a completion
    time, so that no write is skipped, however long it took.
    """

    def __init__(self, table: lw.Table) -> None:
        self._table = table
        self.totals: dict[str, Totals] = {}
        self.consumed = Consumed()

    def follow(self) -> int:
        """Read the changes that completed since the checkpoint; return their number."""
        since = self.consumed.checkpoint
        changes = self._table.changes(since=since, format="cdc", columns=_CHANGE_COLUMNS)
        signed = changes.dataframe.select(
            F.explode(
                F.array(
                    F.struct(F.lit(-1).alias("sign"), F.col("before").alias("row")),
                    F.struct(F.lit(1).alias("sign"), F.col("after").alias("row")),
                )
            ).alias("each"),
            (F.col("op") == "d").alias("is_delete"),
        ).where("each.row IS NOT NULL")
        parsed = signed.select(
            "each.sign", "is_delete", F.from_json("each.row", _CHANGE_DDL).alias("row")
        )
        counts = parsed.groupBy("row.city").agg(
            F.sum("sign"),
            F.sum(F.col("sign") * (F.col("row.status") == FINISHED).cast("int")),
            F.sum(F.col("sign") * F.col("row.fare_cents")),
            F.sum(((F.col("sign") > 0) | F.col("is_delete")).cast("int")),
        )
        total = 0
        for city, rides, finished, cents, number in counts.collect():
            previous = self.totals.get(city, Totals())
            self.totals[city] = previous + Totals(rides, finished, cents)
            total += number
        consumed = self.consumed
        self.consumed = Consumed(
            consumed.changes + total, consumed.commits + len(changes.instants), changes.checkpoint
        )
        return total


@dataclass
class _Demo:
    """The table, its landing folder and its consumer; reports the story after every step."""

    spark: SparkSession
    table: lw.Table
    landing: Path
    consumer: Consumer
    story: Story
    report: Report

    def update(self, message: str = "", **fields: Any) -> None:
        """Add a message to the story, replace fields of it, and report it."""
        messages = (*self.story.messages, message) if message else self.story.messages
        self.story = replace(self.story, messages=messages, **fields)
        self.report(self.story)

    def update_from_table(self, message: str = "", **fields: Any) -> None:
        """The same, with the current freshness, compaction debt and timeline of the table."""
        views, debt = self.table.freshness(), self.table.compaction_debt()
        self.update(
            message,
            snapshot=views.snapshot,
            read_optimized=views.read_optimized,
            definition=views.definition,
            log_files=debt.log_files,
            log_bytes=debt.log_bytes,
            bars=bars(self.table.timeline()),
            **fields,
        )

    def ingest(self, batch: Batch) -> str:
        """Write a batch to the landing folder and ingest it; return the instant of the commit."""
        self.update(doing=f"batch {batch.number + 1}: ingesting {len(batch.events):,} events")
        pq.write_table(to_arrow(batch.events), self.landing / f"{batch.number:03d}.parquet")
        result = self._ingest_files()
        if result.commit is None:
            raise InvalidError(
                "the ingest of a batch committed nothing",
                batch=batch.number,
                why=str(result.outcome),
            )
        ingested = Round(
            batch.number, result.rows, result.inserted, result.updated, result.took_ms / 1000
        )
        message = (
            f"ingest: {ingested.rows:,} events, {ingested.inserted:,} new, "
            f"{ingested.updated:,} updates"
        )
        self.update_from_table(message, rounds=(*self.story.rounds, ingested))
        return result.commit.instant

    def _ingest_files(self) -> lw.IngestResult:
        options = {
            "hoodie.streamer.source.dfs.root": str(self.landing),
            "lakewright.source.files.format": "parquet",
            "lakewright.source.files.settle.ms": "0",
            **_INGEST_OPTIONS,
        }
        try:
            return lw.ingest(self.spark, "files", self.table, options=options, services="off")
        except lw.ConflictError:
            # The clustering completed first: the ingest was aborted, its checkpoint is unchanged.
            return lw.ingest(self.spark, "files", self.table, options=options, services="off")

    def read_changes(self) -> None:
        """Let the consumer read the change feed from its checkpoint on."""
        self.update(doing="change feed: reading what completed since the checkpoint")
        changes = self.consumer.follow()
        consumed = self.consumer.consumed
        message = f"change feed: {changes:,} changes, up to {consumed.checkpoint}"
        self.update(message, consumed=consumed)


def _process_batch(demo: _Demo, batch: Batch) -> None:
    """Ingest a batch, during a clustering if one is due, and run the services that follow it."""
    recipe = demo.story.recipe
    if batch.number > recipe.batches - _CLUSTERING_TRIES and demo.story.preempted is None:
        _ingest_during_clustering(demo, batch)
    else:
        demo.ingest(batch)
    demo.read_changes()
    if batch.number and batch.number % 2 == 0:
        _compact(demo, recipe.ends[batch.number - 1] - _LATENESS_MS)
    if batch.number == recipe.batches // 2:
        _run_ttl(demo)


def _ingest_during_clustering(demo: _Demo, batch: Batch) -> None:
    """Ingest a batch while a thread executes a cancellable clustering plan."""
    table = demo.table
    demo.update(doing="clustering: planning, cancellable")
    plan = table.schedule("clustering", _CLUSTERING_OPTIONS)
    if isinstance(plan, lw.Skip):
        demo.update(f"clustering: {plan}")
        demo.ingest(batch)
        return
    planned = table.snapshot().plan_of(plan.requested_at, Action.CLUSTERING)
    groups = 0 if planned is None else len(planned.file_groups)
    is_last = batch.number == demo.story.recipe.batches
    delay_s = (
        None
        if is_last
        else median(result.took_s for result in demo.story.rounds[1:]) * _CLUSTERING_DELAY
    )
    thread = _ClusteringThread(table, plan, demo.story.path, delay_s)
    thread.start()
    commit = demo.ingest(batch)
    thread.join()
    clustering = Clustering(plan.requested_at, groups)
    if thread.conflict is not None:
        rollbacks = [
            rollback
            for rollback in table.rollbacks()
            if rollback.target.requested_at == plan.requested_at
        ]
        clustering = replace(
            clustering,
            winner=commit,
            reason=str(thread.conflict),
            files=sum(rollback.files for rollback in rollbacks),
            left=files_of_instant(demo.story.path, plan.requested_at),
        )
    message = (
        "clustering: completed before the ingest, which was retried"
        if clustering.winner is None
        else f"clustering: preempted by commit {commit}; files rolled back: {clustering.files}"
    )
    demo.update_from_table(message, clusterings=(*demo.story.clusterings, clustering))


class _ClusteringThread(threading.Thread):
    """Executes a plan during a concurrent write; `conflict` is the error that preempted it.

    It starts `delay_s` seconds after the write has started, so that both run at the same time, and
    either of them may complete first. If `delay_s` is None it waits until the write has created a
    marker of a log file in a file group of the plan, and is then certain to be preempted.
    """

    def __init__(self, table: lw.Table, plan: lw.Instant, path: str, delay_s: float | None) -> None:
        super().__init__(name="clustering")
        self._table, self._plan, self._path, self._delay_s = table, plan, path, delay_s
        self.conflict: lw.ConflictError | None = None
        self.failure: lw.LakewrightError | None = None

    def run(self) -> None:
        """Wait for the write, then execute the plan."""
        end = time.monotonic() + _WAIT_S
        while not self._can_start() and time.monotonic() < end:
            time.sleep(_POLL_S)
        time.sleep(self._delay_s or 0.0)
        try:
            self._table.execute(self._plan, _CONCURRENCY_OPTIONS)
        except lw.ConflictError as error:
            self.conflict = error
        except lw.LakewrightError as error:
            self.failure = error

    def join(self, timeout: float | None = None) -> None:
        """Wait until the thread ends, and raise its error unless that is a conflict."""
        super().join(timeout)
        if self.failure is not None:
            raise self.failure

    def _can_start(self) -> bool:
        writes = [
            instant
            for instant in self._table.timeline()
            if instant.action == Action.DELTA_COMMIT
            and instant.requested_at > self._plan.requested_at
        ]
        if self._delay_s is not None:
            return bool(writes)
        return any(i.is_completed or has_announced(self._path, i.requested_at) for i in writes)


def has_announced(path: str, instant: InstantTime) -> bool:
    """Whether a write to a local table has created a marker of a log file."""
    return any(Path(path, ".hoodie", ".temp", instant).rglob("*.log.*.marker.*"))


def _compact(demo: _Demo, until: int) -> None:
    """Compact the log files with rows before an event time, and no others."""
    demo.update(doing=f"compaction by event time, up to {event_time_text(until)}")
    table = demo.table
    partitions = len(demo.table.ttl.explain())
    window = find_window(table.services().planning_context(table.snapshot()), Action.COMPACTION)
    planned = partitions if window.partitions is None else len(window.partitions)
    log_files = table.compaction_debt().log_files
    result = table.run("compaction", _event_time_options(until))
    compaction = Compacted(planned, partitions, until)
    if isinstance(result, lw.Skip):
        compaction = replace(compaction, left=log_files, skipped=result.reason)
        message = f"compaction: {result}"
    else:
        remaining = table.compaction_debt().log_files
        compaction = replace(compaction, folded=log_files - remaining, left=remaining)
        message = f"compaction: {compaction.folded} log files compacted, {remaining} left"
    message = f"{message}; planning considered {planned} of {partitions} partitions"
    demo.update_from_table(message, compactions=(*demo.story.compactions, compaction))


def _event_time_options(until: int) -> Mapping[str, str]:
    """The options of a compaction up to an event time."""
    threshold = datetime.fromtimestamp(until / 1000, UTC).isoformat()
    return {
        "hoodie.compaction.strategy": "event_time",
        "hoodie.compaction.event.time.threshold": threshold,
        **_CONCURRENCY_OPTIONS,
    }


def _run_ttl(demo: _Demo) -> None:
    """Delete the partitions of days older than two weeks, by the day in their paths."""
    demo.update(doing="TTL: looking for days older than 14 days")
    result = demo.table.run("ttl", _TTL_OPTIONS)
    if isinstance(result, lw.Skip):
        demo.update(f"ttl: {result}")
        return
    rows = demo.consumer.follow()
    demo.update_from_table(
        f"ttl: deleted {', '.join(result.partitions)}, {rows:,} rows",
        expired=Expired(result.partitions, rows),
        consumed=demo.consumer.consumed,
    )


def _checks(demo: _Demo, batches: tuple[Batch, ...]) -> tuple[Check, ...]:
    story, table = demo.story, demo.table
    expected = expected_rows(batches, story.expired.partitions)
    snapshot = list(rows_of([table.read().toArrow()]))
    read_optimized = list(rows_of([table.read_optimized().toArrow()]))
    preempted = story.preempted
    return (
        compare("table", snapshot, expected),
        compare_totals("change feed", demo.consumer.totals, expected_totals(expected.values())),
        check_completion(
            "fast view",
            read_optimized,
            batches,
            story.complete_until(story.read_optimized),
            story.recipe.old_day,
        ),
        Check(
            "old day",
            passed=story.expired.partitions == (story.recipe.old_day,),
            seen=f"deleted: {', '.join(story.expired.partitions) or 'none'}",
        ),
        Check(
            "clustering",
            passed=preempted is not None and not preempted.left,
            seen="none was preempted"
            if preempted is None
            else f"{len(preempted.left)} leftover files",
        ),
        check_with_hudi_rs(story.path, snapshot, read_optimized),
    )
