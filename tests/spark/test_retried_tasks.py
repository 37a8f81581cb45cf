"""A store that does not answer the tasks of a write: Spark runs them again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import count

import pytest
from lost_attempt_plays import unlisted
from pyspark.sql import SparkSession

import lakewright as lw
from lakewright.errors import UnavailableError
from lakewright.storage.factory import storage_for
from lakewright.table.snapshot import load_snapshot
from lakewright.testing.s3 import moto_server
from support.spark import next_session

ATTEMPTS = 3
COLUMNS = "id string, day string, ts long"
NAMES = count()


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    with next_session({}, f"local[2,{ATTEMPTS}]") as session:
        yield session


def write(spark: SparkSession, options: Mapping[str, str], operation: str) -> str:
    """Write some rows to a new table; return its address."""
    address = f"s3://lake/t{next(NAMES)}"
    table = lw.create(
        address,
        name="t",
        record_key=["id"],
        partition_by=["day"],
        ordering=["ts"],
        options=options,
        spark=spark,
    )
    rows = spark.createDataFrame([("a", "d1", 1), ("b", "d2", 1)], COLUMNS)
    getattr(table, operation)(rows)
    return address


@pytest.mark.parametrize("operation", ["upsert", "bulk_insert"])
def test_a_task_that_the_store_did_not_answer_is_run_again(
    operation: str, spark: SparkSession
) -> None:
    with moto_server(refused_puts=ATTEMPTS - 1) as server:
        server.create_bucket("lake")
        options = {**server.options(), "max_retries": "0"}
        address = write(spark, options, operation)
        table = lw.open(address, spark=spark, options=options)
        assert sorted(row.id for row in table.read().collect()) == ["a", "b"]
        assert unlisted(storage_for(address, options)) == []


def test_a_store_that_answers_no_attempt_is_unavailable(spark: SparkSession) -> None:
    with moto_server(refused_puts=1_000_000) as server:
        server.create_bucket("lake")
        options = {**server.options(), "max_retries": "0"}
        with pytest.raises(UnavailableError) as failed:
            write(spark, options, "upsert")
        message = str(failed.value)
        assert message.startswith("the store did not answer. path='d")
        assert "503" in message
        assert "Traceback" not in message
        storage = storage_for(f"s3://lake/t{next(NAMES) - 1}", options)
        assert load_snapshot(storage).timeline.completed_writes == ()
        assert unlisted(storage) == []
