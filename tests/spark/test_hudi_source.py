"""A table as a source, through DataFrames."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

import lakewright as lw
from lakewright.client.write_client import WriteClient, spark_rows
from lakewright.ingestion.checkpoints import Checkpoint, Version, checkpoint_in
from lakewright.ingestion.hudi_table import HudiTableSource
from lakewright.ingestion.source import Batch
from lakewright.storage.factory import storage_for
from lakewright.table.snapshot import load_snapshot
from lakewright.write.task import Operation
from lakewright.write.writer import Commit
from support.soak import some

PREFIX = "hoodie.streamer.source.hoodieincr."
ALL = {f"{PREFIX}missing.checkpoint.strategy": "READ_UPTO_LATEST_COMMIT"}
QUIET = {
    "hoodie.compact.inline": "false",
    "hoodie.clean.automatic": "false",
    "hoodie.archive.automatic": "false",
}


def rows(spark: SparkSession, first: int, count: int, ts: int = 1) -> DataFrame:
    key, day = "concat('k', lpad(id, 5, '0')) AS id", "concat('d', id % 3) AS day"
    return spark.range(first, first + count).selectExpr(key, day, f"{ts}L AS ts")


of_files, of_logs = (
    pytest.mark.parametrize(
        "source_path", some(["COPY_ON_WRITE", "MERGE_ON_READ"], place), indirect=True
    )
    for place in (0, 1)
)


@pytest.fixture
def source_path(request: pytest.FixtureRequest, spark: SparkSession, tmp_path: Path) -> Path:
    path = tmp_path / "source"
    lw.create(
        str(path), spark=spark, table_type=request.param, record_key="id", partition_by="day",
        ordering="ts", name="orders",
    )  # fmt: skip
    return path


def source_of(path: Path, **more: str) -> HudiTableSource:
    return HudiTableSource.from_options({f"{PREFIX}path": str(path), **ALL, **more})


def upsert(path: Path, frame: DataFrame) -> Commit:
    commit = lw.open(str(path), spark=frame.sparkSession).upsert(frame, QUIET)
    assert isinstance(commit, Commit)
    return commit


def at(commit: Commit) -> Checkpoint:
    return Checkpoint(commit.completed_at, Version.V2)


@of_logs
def test_batches(spark: SparkSession, source_path: Path) -> None:
    commits = [upsert(source_path, rows(spark, first, 10)) for first in (0, 10, 20)]
    commits.append(upsert(source_path, rows(spark, 0, 5, ts=2)))
    source = source_of(source_path)
    whole = source.next_batch(spark, None)
    assert whole.rows is not None
    assert whole.rows.count() == 30
    assert whole.rows.columns == ["_hoodie_partition_path", "id", "day", "ts"]
    assert whole.checkpoint == at(commits[3])
    later = source.next_batch(spark, at(commits[1]))
    assert later.rows is not None
    assert sorted(row.id for row in later.rows.collect()) == sorted(
        [f"k{n:05d}" for n in (*range(5), *range(20, 30))]
    )
    old = source.next_batch(spark, Checkpoint(commits[2].instant, Version.V1))
    assert old.rows is not None
    assert {(row.id, row.ts) for row in old.rows.collect()} == {(f"k{n:05d}", 2) for n in range(5)}
    assert old.checkpoint == at(commits[3])
    end = source.next_batch(spark, at(commits[3]))
    assert (end.rows, end.checkpoint) == (None, at(commits[3]))
    split = source_of(source_path, **{"lakewright.source.snapshotload.max.rows": "11"})
    first = split.next_batch(spark, None)
    assert first.rows is not None
    assert (first.rows.count(), first.checkpoint) == (20, at(commits[1]))


@of_files
def test_a_target_that_is_fed_batch_by_batch_equals_its_source(
    spark: SparkSession, source_path: Path, tmp_path: Path
) -> None:
    target = tmp_path / "target"
    lw.create(
        str(target), spark=spark, record_key="id", partition_by="day", ordering="ts", name="copy"
    )
    source = source_of(source_path, **{f"{PREFIX}num_instants": "2"})
    for number in range(4):
        upsert(source_path, rows(spark, number * 5, 10, ts=number))
        if number == 0:
            while (batch := source.next_batch(spark, checkpoint_of(target))).rows is not None:
                feed(target, batch)
    while (batch := source.next_batch(spark, checkpoint_of(target))).rows is not None:
        feed(target, batch)
    assert contents(spark, target) == contents(spark, source_path)
    assert len(contents(spark, target)) == 25


def checkpoint_of(target: Path) -> Checkpoint | None:
    """The checkpoint of the last commit."""
    snapshot = load_snapshot(storage_for(target))
    commits = snapshot.commits(snapshot.timeline.by_completion[-1:])
    return checkpoint_in(commits[0].extra) if commits else None


def feed(target: Path, batch: Batch) -> None:
    assert batch.rows is not None
    assert batch.checkpoint is not None
    writer = WriteClient.create(storage_for(target), QUIET)
    writer.write(Operation.UPSERT, spark_rows(batch.rows), extra=batch.checkpoint.as_extra())


def contents(spark: SparkSession, path: Path) -> list[tuple[str, str, int]]:
    read_rows = lw.open(str(path), spark=spark).read().collect()
    return sorted((row.id, row.day, row.ts) for row in read_rows)
