"""The examples run as they stand, and do what they say."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import lakewright as lw
from lakewright.demo import sample_table

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
# The first two have tests of their own; the others are run below, for what they give back.
RUN_ELSEWHERE = {"own_service.py", "hudi_job.py", "retention.py", "complete_until.py"}


@pytest.mark.parametrize(
    "example", [path for path in EXAMPLES if path.name not in RUN_ELSEWHERE], ids=lambda p: p.stem
)
def test_an_example_runs_as_it_stands(
    example: Path, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", [str(example)])
    runpy.run_path(str(example), run_name="__main__")


def test_the_change_feed_has_counted_every_fare_once(spark: SparkSession, tmp_path: Path) -> None:
    consume = runpy.run_path(str(ROOT / "examples" / "change_feed.py"))["consume"]
    table = lw.open(sample_table(tmp_path), spark=spark)
    state = tmp_path / "totals.json"
    consume(table, state)
    oslo = table.read().where("city = 'Oslo'").drop(*lw.META_COLUMNS)
    table.upsert(oslo.withColumn("fare", (F.col("fare") + 1).cast("decimal(8,2)")).limit(5))
    totals = consume(table, state)
    sums = table.read().groupBy("city").agg(F.sum("fare").alias("fares")).collect()
    expected = {row.city: float(row.fares) for row in sums}
    assert {city: round(total, 1) for city, total in totals.items() if total} == pytest.approx(
        {city: round(total, 1) for city, total in expected.items()}, abs=0.11
    )


def test_expired_partitions_are_deleted_and_others_stay(spark: SparkSession) -> None:
    retention = runpy.run_path(str(ROOT / "examples" / "retention.py"))["main"]
    assert retention() == ["Bergen/2999-01-01"]


def test_waiting_for_completion_returns_all_rows_of_the_day(spark: SparkSession) -> None:
    complete = runpy.run_path(str(ROOT / "examples" / "complete_until.py"))["main"]
    assert complete() == 2


def test_the_page_of_examples_names_them_all() -> None:
    page = (ROOT / "docs" / "examples.md").read_text("utf-8")
    assert not [path.name for path in EXAMPLES if f"../examples/{path.name}" not in page]
