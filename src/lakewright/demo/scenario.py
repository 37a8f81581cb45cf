"""The demo on Spark: batches come in, services work beside them, and the result is checked."""

from __future__ import annotations

import time
from pathlib import Path

from pyspark.sql import SparkSession

import lakewright as lw
from lakewright.demo.beside import cluster_beside
from lakewright.demo.consumer import Consumer
from lakewright.demo.events import Batch, Recipe, make_batches
from lakewright.demo.expected import (
    Check,
    check_completion,
    compare,
    compare_totals,
    expected_rows,
    expected_totals,
    lateness,
)
from lakewright.demo.judge import ask_hudi_rs, rows_of
from lakewright.demo.stage import Stage, Tell
from lakewright.demo.story import Story
from lakewright.demo.upkeep import compact, expire
from lakewright.errors import InvalidError

_LATENESS_MS = 10 * 60_000
# A clustering that was quicker than the ingest beside it is tried again beside the next.
_TRIES = 3


def play(spark: SparkSession, folder: Path, recipe: Recipe, tell: Tell) -> Story:
    """Run the demo in a folder; the table in it stays."""
    path, landing = make_place(folder)
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


def make_place(folder: Path) -> tuple[Path, Path]:
    """Where the table will be, and where its batches land; may be called twice, before it is."""
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
