"""The table of the demo, what feeds it and who follows it; who watches is told of every step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from pyspark.sql import SparkSession

import lakewright as lw
from lakewright.demo.consumer import Consumer
from lakewright.demo.events import Batch, to_arrow
from lakewright.demo.story import Round, Story, bars
from lakewright.errors import InvalidError

Tell = Callable[[Story], None]

SEVERAL_WRITERS = {"hoodie.write.concurrency.mode": "OPTIMISTIC_CONCURRENCY_CONTROL"}
# Updates go to log files and new rows to files of their own, as in a table that is busy.
WRITE = {**SEVERAL_WRITERS, "hoodie.parquet.small.file.limit": "0"}


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

    def _ingest(self) -> lw.IngestResult:
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
