"""A query in this process: the workers in a plain loop, slice after slice, no more than is wanted.

What a few files hold is read sooner than a Spark session starts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import count
from typing import TypeVar

import pyarrow as pa

from lakewright.errors import UnsupportedError
from lakewright.model.partition_paths import partition_paths
from lakewright.scan.cdc.planner import CdcPlan, decode_changes, encode_changes
from lakewright.scan.cdc.reader import read_changes
from lakewright.scan.scan_plan import ReadPlan, RowFilter, decode_plan, encode_plan, may_match
from lakewright.scan.slice_reader import read_slices
from lakewright.storage.base import Storage
from lakewright.write.operations import run_task, run_works
from lakewright.write.spill import to_the_end
from lakewright.write.task import Outcome, Token, WriteTask


def read_here(
    storage: Storage,
    plan: ReadPlan | CdcPlan,
    *,
    chosen: RowFilter | None = None,
    columns: Sequence[str] | None = None,
    limit: int | None = None,
    done: Callable[[int], None] | None = None,
) -> Iterator[pa.RecordBatch]:
    """The rows of a plan that pass a filter: all columns or some of them, at most `limit` rows.

    `done` is told the bytes of each piece of work once its rows were taken.
    """
    left = limit
    for batches, size in _pieces(storage, plan):
        if left == 0:
            return
        for table in map(_table, batches):
            if chosen is not None:
                table = table.filter(chosen.expression)
            if columns is not None:
                table = table.select(list(columns))
            table = table.slice(0, left)
            left = None if left is None else left - table.num_rows
            yield from table.combine_chunks().to_batches()
            if left == 0:
                break
        if done is not None:
            done(size)


def pruned(plan: ReadPlan, chosen: RowFilter) -> ReadPlan:
    """The plan without the partitions that can hold no row which passes a filter."""
    keep = [s for s in plan.slices if may_match(s.partition, plan.path_columns, chosen.comparisons)]
    return plan.with_slices(keep)


def plan_bytes(plan: ReadPlan | CdcPlan) -> int:
    """How much a plan reads, in bytes."""
    if isinstance(plan, CdcPlan):
        return sum(group.cost for group in plan.groups)
    return sum(item.size for item in plan.slices)


def _table(batch: pa.RecordBatch) -> pa.Table:
    return pa.Table.from_batches([batch])


def _pieces(
    storage: Storage, plan: ReadPlan | CdcPlan
) -> Iterator[tuple[Iterator[pa.RecordBatch], int]]:
    if isinstance(plan, CdcPlan):
        for piece in plan.in_order():
            yield read_changes(storage, piece), plan_bytes(piece)
    else:
        for item in plan.slices:
            yield read_slices(storage, plan.with_slices([item])), item.size


# ------------------------------------------------------------------------------------------------
# Reads and writes without Spark: the workers in a plain loop.


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
