"""Which rows a task of a write gets, and what happens when they are too many."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import pyarrow as pa
import pytest

from lakewright.engine.local import ArrowRows, LocalEngine
from lakewright.write.distribution import Distribution, first_distribution
from lakewright.write.task import Operation, WriteStatus, WriteTask, WriteToken
from lakewright.write.task_runner import run_task
from lakewright.write.writer import RowSource
from support.tables import NO_SERVICES, SCHEMA, WrittenTable, row

LIMIT = {"lakewright.write.partition.max.bytes": "4000"}
BUCKETS = {"hoodie.index.type": "BUCKET", "hoodie.bucket.index.num.buckets": "3"}
D = Distribution


@dataclass
class RecordingEngine(LocalEngine):
    """Records the task of the last write."""

    tasks: list[WriteTask] = field(default_factory=list)

    def write(self, task: WriteTask, rows: RowSource) -> Sequence[WriteStatus]:
        self.tasks.append(task)
        return super().write(task, rows)


def task_of(operation: str, options: dict[str, str], *, partitioned: bool = True) -> WriteTask:
    table = WrittenTable(options={**NO_SERVICES, **options})
    table.create(partition_by=("day",) if partitioned else ())
    engine = RecordingEngine()
    rows = ArrowRows(pa.Table.from_pylist([row("k")], SCHEMA))
    replace(table.writer(), local_engine=engine).write(Operation(operation), rows)
    return engine.tasks[-1]


CHOICES = {
    "bulk inserts come as they are": ("BULK_INSERT", {}, True, 10**9, D.AS_THEY_COME),
    "inserts are balanced": ("INSERT", {}, True, None, D.BALANCED),
    "inserts that compare keys are not": (
        "INSERT",
        {"hoodie.combine.before.insert": "true"},
        True,
        None,
        D.BY_PARTITION,
    ),
    "overwrites are balanced": ("INSERT_OVERWRITE", {}, True, None, D.BALANCED),
    "upserts take one pass": ("UPSERT", {}, True, 10**12, D.BY_PARTITION),
    "without partitions, if Spark cannot tell": ("UPSERT", {}, False, None, D.BY_PARTITION),
    "without partitions, if they are few": ("UPSERT", {}, False, 1000, D.BY_PARTITION),
    "without partitions, if they are many": ("UPSERT", {}, False, 1001, D.BY_FILE_GROUP),
    "the same with buckets": ("UPSERT", BUCKETS, False, 1001, D.BY_BUCKET),
}


@pytest.mark.parametrize(
    ("operation", "options", "partitioned", "estimate", "expected"),
    CHOICES.values(),
    ids=list(CHOICES),
)
def test_the_first_choice(
    operation: str,
    options: dict[str, str],
    partitioned: bool,
    estimate: int | None,
    expected: Distribution,
) -> None:
    task = task_of(operation, {**LIMIT, **options}, partitioned=partitioned)
    assert first_distribution(task, estimate) is expected


def test_nothing_of_a_partition_that_is_too_large_was_written_before() -> None:
    table = WrittenTable(options={**NO_SERVICES, **LIMIT}).create()
    storage = table.storage
    table.upsert([row(f"k{n}", 1, "x" * 50) for n in range(20)])
    files = {file.name for file in storage.list_files("2026-01-01")}
    commit = table.upsert([row(f"k{n}", 2, "y" * 50) for n in range(10, 400)])
    assert (commit.updated, commit.inserted) == (10, 380)
    written = {file.name for file in storage.list_files("2026-01-01")} - files
    # One next base file, and one of new keys: what the first task had no room for is not there.
    assert len(written) == 2
    assert len(table.rows()) == 400


class TwoTasks(LocalEngine):
    """Divides the rows of each partition between two tasks, as Spark does with large ones."""

    def write(self, task: WriteTask, rows: RowSource) -> Sequence[WriteStatus]:
        assert isinstance(rows, ArrowRows)
        halves = (rows.table.slice(0, len(rows.table) // 2), rows.table.slice(len(rows.table) // 2))
        return [
            run_task(task, WriteToken(number), half.to_batches(), Distribution.BALANCED)
            for number, half in enumerate(halves)
        ]


@pytest.mark.parametrize("partition_by", [("day",), ()], ids=["partitions", "no partitions"])
def test_of_several_tasks_one_writes_the_next_base_file_of_a_small_file_group(
    partition_by: tuple[str, ...],
) -> None:
    table = WrittenTable(options=NO_SERVICES).create(partition_by=partition_by)
    table.write("INSERT", [row("k0")])
    rows = pa.Table.from_pylist([row(f"k{n}") for n in range(1, 5)], SCHEMA)
    replace(table.writer(), local_engine=TwoTasks()).write(Operation.INSERT, ArrowRows(rows))
    assert [record["id"] for record in table.rows()] == ["k0", "k1", "k2", "k3", "k4"]
    folder = "2026-01-01" if partition_by else ""
    files = [file.name for file in table.storage.list_files(folder) if ".parquet" in file.name]
    assert len(files) == 3
    assert len({name.split("_")[0] for name in files}) == 2
    assert not [file for file in table.storage.list_tree(".hoodie") if "claims" in file.path]
