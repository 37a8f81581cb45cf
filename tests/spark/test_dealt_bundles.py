"""How work is dealt to tasks: each bundle to a task of its own."""

from __future__ import annotations

from functools import partial

import pytest
from pyspark.sql import SparkSession

from lakewright.spark import writer
from lakewright.spark.engine import _call_each
from lakewright.spark.writer import map_on_workers

ROUTES = {"in the function of all tasks": writer._MAX_LITERAL_BYTES, "by a shuffle": 0}


@pytest.mark.parametrize("limit", ROUTES.values(), ids=list(ROUTES))
@pytest.mark.parametrize("count", [1, 2, 40])
def test_each_task_gets_one_bundle(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, limit: int, count: int
) -> None:
    monkeypatch.setattr(writer, "_MAX_LITERAL_BYTES", limit)
    items = [f"item {number}" for number in range(count)]
    # Called with an item and a token, it returns both.
    both = partial(_call_each, slice)
    answers = map_on_workers(spark, both, items, len)
    assert sorted(answer.start for bundle in answers for answer in bundle) == sorted(items)
    tasks = [{answer.stop.task for answer in bundle} for bundle in answers]
    assert sorted(task for bundle in tasks for task in bundle) == list(range(len(answers)))
    assert len(answers) == min(count, spark.sparkContext.defaultParallelism * 3)


def test_parallelism_is_that_of_the_cluster_now(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is not kept in the session: executors come and go."""
    asked = []
    for cores in (3, 7):
        now = property(lambda _, cores=cores: cores)
        monkeypatch.setattr(type(spark.sparkContext), "defaultParallelism", now)
        asked.append(writer._parallelism(spark))
    assert asked == [3, 7]
