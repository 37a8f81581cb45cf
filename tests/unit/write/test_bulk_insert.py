"""Bulk inserts into many partitions: which files are open when, and which remain if one fails."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pyarrow as pa
import pytest

from lakewright.engine.local import ArrowRows, LocalEngine
from lakewright.errors import UnavailableError
from lakewright.model.file_group import PARTITION_METADATA
from lakewright.storage.memory import MemoryStorage
from lakewright.testing.storage import CountingStorage
from lakewright.write.task import Operation, WriteStatus, WriteTask, WriteToken
from lakewright.write.task_runner import run_task
from lakewright.write.writer import RowSource
from support.tables import SCHEMA, WrittenTable, row

DAYS = ("d1", "d2", "d3", "d4")
SORTED = {"hoodie.bulkinsert.sort.mode": "PARTITION_PATH_REPARTITION_AND_SORT"}
AS_THEY_COME = {"hoodie.bulkinsert.sort.mode": "NONE"}


class InBatches(LocalEngine):
    """Rows come to one task in batches of three."""

    def write(self, task: WriteTask, rows: RowSource) -> Sequence[WriteStatus]:
        assert isinstance(rows, ArrowRows)
        return [run_task(task, WriteToken(0, 0, 0), rows.table.to_batches(max_chunksize=3))]


def load_four_days(table: WrittenTable) -> None:
    rows = [row(f"{day}-{n}", day=day) for day in DAYS for n in range(2)]
    client = replace(table.writer(), local_engine=InBatches())
    client.write(Operation.BULK_INSERT, ArrowRows(pa.Table.from_pylist(rows, SCHEMA)))


def steps_of(storage: CountingStorage) -> list[str]:
    """When partitions were entered, and when their files were made."""
    steps = []
    for name, path in storage.touched:
        if name == "create" and path.endswith(PARTITION_METADATA):
            steps.append(f"enter {path[:2]}")
        elif name == "open_output":
            steps.append(f"write {path[:2]}")
    return steps


@pytest.mark.parametrize("options", [SORTED, AS_THEY_COME], ids=["sorted", "as they come"])
def test_a_partition_is_entered_before_its_file_and_has_one(options: dict[str, str]) -> None:
    storage = CountingStorage(MemoryStorage.fresh())
    table = WrittenTable(storage, options=options).create()
    load_four_days(table)
    steps = steps_of(storage)
    assert sorted(steps) == sorted(f"{what} {day}" for what in ("enter", "write") for day in DAYS)
    assert all(steps.index(f"enter {day}") < steps.index(f"write {day}") for day in DAYS)
    assert len(table.rows()) == 8


def test_sorted_rows_of_a_partition_are_written_when_the_next_batch_has_none() -> None:
    storage = CountingStorage(MemoryStorage.fresh())
    load_four_days(WrittenTable(storage, options=SORTED).create())
    steps = steps_of(storage)
    # The batches are d1 d1 d2, d2 d3 d3, d4 d4.
    assert steps.index("write d1") < steps.index("enter d3")
    assert steps.index("write d2") < steps.index("enter d4")
    assert steps.index("write d3") < steps.index("enter d4")


class Refusing(CountingStorage):
    """A storage that takes no file into one partition."""

    def create(self, path: str, data: bytes) -> None:
        if path.startswith("d3/"):
            raise UnavailableError("no answer", path=path)
        super().create(path, data)


def test_if_one_partition_fails_nothing_of_the_write_is_visible() -> None:
    inner = MemoryStorage.fresh()
    table = WrittenTable(inner, options=SORTED).create()
    table.upsert([row("old", day="d0")])
    with pytest.raises(UnavailableError):
        load_four_days(WrittenTable(Refusing(inner), options=SORTED))
    assert table.rows() == [row("old", day="d0")]
