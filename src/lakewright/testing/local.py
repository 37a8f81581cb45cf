"""Reads and writes without Spark: the workers in a plain loop."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import count
from typing import TypeVar

import pyarrow as pa

from lakewright.core.partition_paths import partition_paths
from lakewright.errors import UnsupportedError
from lakewright.read.cdc.step import CdcPlan, decode_changes, encode_changes
from lakewright.read.local import read_here
from lakewright.read.plan import ReadPlan, decode_plan, encode_plan
from lakewright.storage.base import Storage
from lakewright.write.task import Outcome, Token, WriteTask
from lakewright.write.worker import run_task, run_works
from lakewright.write.works import to_the_end

Item = TypeVar("Item")
Answer = TypeVar("Answer")


def read_locally(storage: Storage, plan: ReadPlan) -> pa.Table:
    """The rows of a plan, slice after slice, as the workers on a cluster would give them."""
    travelled = decode_plan(encode_plan(plan))
    batches = [batch for task in travelled.tasks() for batch in read_here(storage, task)]
    return pa.Table.from_batches(batches, plan.result_schema)


def read_changes_locally(storage: Storage, plan: CdcPlan) -> pa.Table:
    """What a range did to rows: write after write, and of each file group after file group."""
    travelled = decode_changes(encode_changes(plan))
    return pa.Table.from_batches(read_here(storage, travelled), plan.result_schema)


class LocalHands:
    """Services in a plain loop."""

    def work(
        self,
        do: Callable[[Item, Token], Answer],
        items: Sequence[Item],
        size: Callable[[Item], int],
    ) -> list[Answer]:
        """Do something with each item, the largest first."""
        ordered = sorted(items, key=size, reverse=True)
        return [do(item, Token(number, 0, number)) for number, item in enumerate(ordered)]

    def rows(
        self,
        storage: Storage,
        plan: ReadPlan,
        pick: Callable[[pa.RecordBatch], pa.RecordBatch],
        schema: pa.Schema,
    ) -> LocalRows:
        """What `pick` leaves of the rows of a query."""
        found = read_locally(storage, plan).combine_chunks().to_batches()
        return LocalRows(pa.Table.from_batches(map(pick, found), schema))


class LocalRows:
    """Rows of an Arrow table, written by one worker; what it hands on, by one after the other."""

    def __init__(self, rows: pa.Table) -> None:
        self._rows = rows

    @property
    def schema(self) -> pa.Schema:
        """Its columns."""
        return self._rows.schema

    def write(self, task: WriteTask) -> Sequence[Outcome]:
        """Let a worker write the rows, those of a partition together."""
        if task.is_global and task.operation.merges:
            raise UnsupportedError("looking up keys in the whole table needs Spark")
        if not len(self._rows):
            return []
        paths = partition_paths(self._rows, task.partitions)
        rows = self._rows.take(pa.compute.sort_indices(paths))
        tokens = (Token(number, 0, number) for number in count())
        first = run_task(task, next(tokens), rows.combine_chunks().to_batches())
        return to_the_end(
            [first], lambda works: [run_works(task, next(tokens), [work]) for work in works]
        )
