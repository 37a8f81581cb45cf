"""The demo on Spark: batches come in, services work beside them, and the result is checked."""

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

import lakewright as lw
from lakewright.demo.consumer import Consumer
from lakewright.demo.events import Batch, Recipe, make_batches, to_arrow
from lakewright.demo.expected import (
    Check,
    check_completion,
    compare,
    compare_totals,
    expected_rows,
    expected_totals,
    lateness,
)
from lakewright.demo.judge import ask_hudi_rs, has_announced, left_of, rows_of
from lakewright.demo.story import Clustering, Compacted, Expired, Round, Story, bars, moment
from lakewright.errors import InvalidError
from lakewright.services.window import find_window

Tell = Callable[[Story], None]

SEVERAL_WRITERS = {"hoodie.write.concurrency.mode": "OPTIMISTIC_CONCURRENCY_CONTROL"}
# Updates go to log files and new rows to files of their own, as in a table that is busy.
WRITE = {**SEVERAL_WRITERS, "hoodie.parquet.small.file.limit": "0"}
TTL = {
    "hoodie.partition.ttl.management.strategy.type": "KEEP_BY_EVENT_TIME",
    "hoodie.partition.ttl.strategy.days.retain": "14",
    **SEVERAL_WRITERS,
}
STEPS_ASIDE = {
    "hoodie.table.service.plan.cancellable": "true",
    "hoodie.clustering.plan.strategy.sort.columns": "city,at",
    **SEVERAL_WRITERS,
}
_LATENESS_MS = 10 * 60_000
# A clustering that was quicker than the ingest beside it is tried again beside the next.
_TRIES = 3
# In what part of an ingest the clustering begins: before its workers announce files, and too late
# to be done before they do.
_BEGINS_AFTER = 0.4
_PATIENCE_S = 60.0
_POLL_S = 0.02


def play(spark: SparkSession, folder: Path, recipe: Recipe, tell: Tell) -> Story:
    """Run the demo in a folder; the table in it stays."""
    path = folder / "rides"
    if path.exists():
        raise InvalidError("there is a table here already: choose another folder", path=str(path))
    landing = folder / "landing"
    landing.mkdir(parents=True)
    begun = time.monotonic()
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
    stage = Stage(spark, table, landing, Consumer(table), Story(str(path), recipe), tell)
    for batch in batches:
        _act(stage, batch)
    stage.update(doing="checking the result", lateness=lateness(batches))
    stage.update(checks=_checks(stage, batches))
    stage.update(doing="", took_s=time.monotonic() - begun)
    return stage.story


def _act(stage: Stage, batch: Batch) -> None:
    """A batch, and what services do after it or beside it."""
    recipe = stage.story.recipe
    if batch.number > recipe.batches - _TRIES and stage.story.preempted is None:
        cluster_beside(stage, batch)
    else:
        stage.bring(batch)
    stage.follow()
    if batch.number and batch.number % 2 == 0:
        compact(stage, recipe.ends[batch.number - 1] - _LATENESS_MS)
    if batch.number == recipe.batches // 2:
        expire(stage)


@dataclass
class Stage:
    """The table, its feed and its consumer; who watches is told after every step."""

    spark: SparkSession
    table: lw.Table
    landing: Path
    consumer: Consumer
    story: Story
    tell: Tell

    def update(self, said: str = "", **news: Any) -> None:
        """Add to the story, and tell it."""
        more = (*self.story.said, said) if said else self.story.said
        self.story = replace(self.story, said=more, **news)
        self.tell(self.story)

    def look(self, said: str = "", **news: Any) -> None:
        """The same, after a look at the table."""
        views, debt = self.table.freshness(), self.table.debt()
        self.update(
            said,
            snapshot=views.snapshot,
            read_optimized=views.read_optimized,
            log_files=debt.log_files,
            log_bytes=debt.log_bytes,
            bars=bars(self.table.timeline()),
            **news,
        )

    def bring(self, batch: Batch) -> str:
        """Let a batch land as a file, and ingest it; gives its commit."""
        self.update(doing=f"batch {batch.number + 1}: ingesting {len(batch.events):,} events")
        pq.write_table(to_arrow(batch.events), self.landing / f"{batch.number:03d}.parquet")
        done = self._ingest()
        if done.commit is None:
            raise InvalidError("a batch brought nothing", batch=batch.number, why=str(done.outcome))
        told = Round(batch.number, done.rows, done.inserted, done.updated, done.took_ms / 1000)
        said = f"ingest: {told.rows:,} events, {told.inserted:,} new, {told.updated:,} updates"
        self.look(said, rounds=(*self.story.rounds, told))
        return done.commit.instant

    def _ingest(self) -> lw.IngestRound:
        options = {
            "hoodie.streamer.source.dfs.root": str(self.landing),
            "lakewright.source.files.format": "parquet",
            "lakewright.source.files.settle.ms": "0",
            **WRITE,
        }
        try:
            return lw.ingest(self.spark, "files", self.table, options=options, services="off")
        except lw.ConflictError:
            # A clustering was quicker. The table is where it was, and so is the position in it.
            return lw.ingest(self.spark, "files", self.table, options=options, services="off")

    def follow(self) -> None:
        """Let the consumer go on from its checkpoint."""
        self.update(doing="change feed: reading what completed since the checkpoint")
        told = self.consumer.follow()
        consumed = self.consumer.consumed
        said = f"change feed: {told:,} changes, up to {consumed.checkpoint}"
        self.update(said, consumed=consumed)


def compact(stage: Stage, until: int) -> None:
    """Fold what the fast view lacks up to an event time, and no more."""
    stage.update(doing=f"compaction by event time, up to {moment(until)}")
    table = stage.table
    partitions = len(stage.table.ttl.explain())
    window = find_window(table.services().sight(table.snapshot()), "compaction")
    looked_at = partitions if window.partitions is None else len(window.partitions)
    before = table.debt().log_files
    done = table.run("compaction", by_event_time(until))
    told = Compacted(looked_at, partitions, until)
    if isinstance(done, lw.Skip):
        told = replace(told, left=before, skipped=done.reason)
        said = f"compaction: {done}"
    else:
        left = table.debt().log_files
        told = replace(told, folded=before - left, left=left)
        said = f"compaction: {told.folded} log files folded, {left} left"
    said = f"{said}; planning looked at {looked_at} of {partitions} partitions"
    stage.look(said, compactions=(*stage.story.compactions, told))


def by_event_time(until: int) -> Mapping[str, str]:
    """The options of a compaction up to an event time."""
    threshold = datetime.fromtimestamp(until / 1000, UTC).isoformat()
    return {
        "hoodie.compaction.strategy": "event_time",
        "hoodie.compaction.event.time.threshold": threshold,
        **SEVERAL_WRITERS,
    }


def expire(stage: Stage) -> None:
    """Take out the days that are older than two weeks, by the day that their paths name."""
    stage.update(doing="TTL: looking for days older than 14 days")
    done = stage.table.run("ttl", TTL)
    if isinstance(done, lw.Skip):
        stage.update(f"ttl: {done}")
        return
    told = stage.consumer.follow()
    stage.look(
        f"ttl: {', '.join(done.partitions)} taken out, {told:,} rows",
        expired=Expired(done.partitions, told),
        consumed=stage.consumer.consumed,
    )


def cluster_beside(stage: Stage, batch: Batch) -> None:
    """Execute a cancellable clustering in a thread while a batch is ingested."""
    table = stage.table
    stage.update(doing="clustering: planning, cancellable")
    plan = table.schedule("clustering", STEPS_ASIDE)
    if isinstance(plan, lw.Skip):
        stage.update(f"clustering: {plan}")
        stage.bring(batch)
        return
    planned = table.snapshot().plan_of(plan.requested_at, "clustering")
    groups = 0 if planned is None else len(planned.file_groups)
    is_last = batch.number == stage.story.recipe.batches
    rest = (
        None if is_last else median(each.took_s for each in stage.story.rounds[1:]) * _BEGINS_AFTER
    )
    executor = Executor(table, plan, stage.story.path, rest)
    executor.start()
    winner = stage.bring(batch)
    executor.join()
    told = Clustering(plan.requested_at, groups)
    if executor.gave_way is not None:
        back = [each for each in table.rollbacks() if each.target.requested_at == plan.requested_at]
        told = replace(
            told,
            winner=winner,
            reason=str(executor.gave_way),
            files=sum(each.files for each in back),
            left=left_of(stage.story.path, plan.requested_at),
        )
    said = (
        "clustering: was quicker than the ingest, which went after it"
        if told.winner is None
        else f"clustering: gave way to commit {winner}; {told.files} files taken back"
    )
    stage.look(said, clusterings=(*stage.story.clusterings, told))


class Executor(threading.Thread):
    """Executes a plan while a write is under way; `gave_way` is why it could not end it.

    It begins `rest` seconds after the write did, so that both are at work at the same time. Which
    of them is quicker is not certain then; with a rest of None it waits for the write to announce a
    file that the plan would replace, and is sure to lose.
    """

    def __init__(self, table: lw.Table, plan: lw.Instant, path: str, rest: float | None) -> None:
        super().__init__(name="clustering")
        self._table, self._plan, self._path, self._rest = table, plan, path, rest
        self.gave_way: lw.ConflictError | None = None
        self.failed: lw.LakewrightError | None = None

    def run(self) -> None:
        """Wait for the write, then execute."""
        end = time.monotonic() + _PATIENCE_S
        while not self._is_time() and time.monotonic() < end:
            time.sleep(_POLL_S)
        time.sleep(self._rest or 0.0)
        try:
            self._table.execute(self._plan, SEVERAL_WRITERS)
        except lw.ConflictError as error:
            self.gave_way = error
        except lw.LakewrightError as error:
            self.failed = error

    def join(self, timeout: float | None = None) -> None:
        """Wait for the end; an error other than a conflict is raised here."""
        super().join(timeout)
        if self.failed is not None:
            raise self.failed

    def _is_time(self) -> bool:
        beside = [
            each
            for each in self._table.timeline()
            if each.action == "deltacommit" and each.requested_at > self._plan.requested_at
        ]
        if self._rest is not None:
            return bool(beside)
        return any(i.is_completed or has_announced(self._path, i.requested_at) for i in beside)


def _checks(stage: Stage, batches: tuple[Batch, ...]) -> tuple[Check, ...]:
    story, table = stage.story, stage.table
    expected = expected_rows(batches, story.expired.partitions)
    snapshot = list(rows_of([table.read().toArrow()]))
    fast = list(rows_of([table.read_optimized().toArrow()]))
    gave_way = story.preempted
    return (
        compare("table", snapshot, expected),
        compare_totals("change feed", stage.consumer.totals, expected_totals(expected.values())),
        check_completion(
            "fast view", fast, batches, story.read_optimized.completion, story.recipe.old_day
        ),
        Check(
            "old day",
            passed=story.expired.partitions == (story.recipe.old_day,),
            seen=f"taken out: {', '.join(story.expired.partitions) or 'none'}",
        ),
        Check(
            "clustering",
            passed=gave_way is not None and not gave_way.left,
            seen="none gave way" if gave_way is None else f"{len(gave_way.left)} files left of it",
        ),
        ask_hudi_rs(story.path, snapshot, fast),
    )
