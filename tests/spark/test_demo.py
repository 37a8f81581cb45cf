"""The demo at a small size: all of it happens, and its own checks pass."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import lakewright as lw
from lakewright.demo.checks import (
    check_with_hudi_rs,
    compare_totals,
    expected_rows,
    expected_totals,
    rows_of,
)
from lakewright.demo.events import Recipe, make_batches
from lakewright.demo.scenario import Consumer, play
from lakewright.demo.story import Story, summary

pytestmark = pytest.mark.thorough


@pytest.mark.slow
def test_the_demo_does_what_it_says(spark: SparkSession, tmp_path: Path) -> None:
    recipe = Recipe(datetime.now(UTC).date(), rides_a_day=150, batches=4)
    stories: list[Story] = []
    story = play(spark, tmp_path, recipe, stories.append)
    assert [str(check) for check in story.checks if check.passed is not True] == []
    assert len(summary(story)) == 10
    assert stories[-1] == story

    assert len(story.rounds) == 5
    first, *later = story.compactions
    assert first.looked_at == first.partitions
    assert later
    assert all(compaction.looked_at < compaction.partitions for compaction in later)
    assert sum(compaction.folded for compaction in story.compactions) > 0
    assert story.expired.partitions == (recipe.old_day,)
    assert story.preempted is not None
    assert not story.preempted.left

    table = lw.open(story.path, spark=spark)
    assert not [instant for instant in table.timeline() if instant.state != lw.State.COMPLETED]
    with pytest.raises(lw.InvalidError, match="a table here already"):
        play(spark, tmp_path, recipe, stories.append)

    # The checks can fail: they report the rows, totals and views of another table as wrong.
    batches = make_batches(recipe)
    rows = list(rows_of([table.read().toArrow()]))
    assert check_with_hudi_rs(story.path, rows[1:], rows).passed is False
    fresh = Consumer(table)
    fresh.follow()
    totals = expected_totals(expected_rows(batches, [recipe.old_day]).values())
    assert compare_totals("change feed", fresh.totals, totals).passed
    assert not compare_totals("change feed", fresh.totals, expected_totals(rows[1:])).passed
