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
from lakewright.scan.cdc.planner import CdcScanPlan, decode_cdc_plan, encode_cdc_plan
from lakewright.scan.cdc.reader import read_cdc
from lakewright.scan.scan_plan import RowFilter, ScanPlan, decode_plan, encode_plan, may_match
from lakewright.scan.slice_reader import read_slices
from lakewright.storage.base import Storage
from lakewright.write.operations import run_deferred, run_task
from lakewright.write.spill import run_until_done
from lakewright.write.task import WriteStatus, WriteTask, WriteToken


def read_local(
    storage: Storage,
    plan: ScanPlan | CdcScanPlan,
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


def prune_partitions(plan: ScanPlan, chosen: RowFilter) -> ScanPlan:
    """The plan without the partitions that can hold no row which passes a filter."""
    keep = [s for s in plan.slices if may_match(s.partition, plan.path_columns, chosen.comparisons)]
    return plan.with_slices(keep)


def plan_bytes(plan: ScanPlan | CdcScanPlan) -> int:
    """How much a plan reads, in bytes."""
    if isinstance(plan, CdcScanPlan):
        return sum(group.cost for group in plan.groups)
    return sum(item.size for item in plan.slices)


def _table(batch: pa.RecordBatch) -> pa.Table:
    return pa.Table.from_batches([batch])


def _pieces(
    storage: Storage, plan: ScanPlan | CdcScanPlan
) -> Iterator[tuple[Iterator[pa.RecordBatch], int]]:
    if isinstance(plan, CdcScanPlan):
        for piece in plan.in_order():
            yield read_cdc(storage, piece), plan_bytes(piece)
    else:
        for item in plan.slices:
            yield read_slices(storage, plan.with_slices([item])), item.size


# ------------------------------------------------------------------------------------------------
# Reads and writes without Spark: the workers in a plain loop.


Item = TypeVar("Item")
Answer = TypeVar("Answer")


def read_plan(storage: Storage, plan: ScanPlan) -> pa.Table:
    """The rows of a plan, slice after slice, as the workers on a cluster would give them."""
    travelled = decode_plan(encode_plan(plan))
    batches = [batch for task in travelled.tasks() for batch in read_local(storage, task)]
    return pa.Table.from_batches(batches, plan.result_schema)


def read_cdc_plan(storage: Storage, plan: CdcScanPlan) -> pa.Table:
    """What a range did to rows: write after write, and of each file group after file group."""
    travelled = decode_cdc_plan(encode_cdc_plan(plan))
    return pa.Table.from_batches(read_local(storage, travelled), plan.result_schema)


class LocalEngine:
    """Services in a plain loop."""

    def map(
        self,
        do: Callable[[Item, WriteToken], Answer],
        items: Sequence[Item],
        size: Callable[[Item], int],
    ) -> list[Answer]:
        """Do something with each item, the largest first."""
        ordered = sorted(items, key=size, reverse=True)
        return [do(item, WriteToken(number, 0, number)) for number, item in enumerate(ordered)]

    def select(
        self,
        storage: Storage,
        plan: ScanPlan,
        pick: Callable[[pa.RecordBatch], pa.RecordBatch],
        schema: pa.Schema,
    ) -> ArrowRows:
        """What `pick` leaves of the rows of a query."""
        found = read_plan(storage, plan).combine_chunks().to_batches()
        return ArrowRows(pa.Table.from_batches(map(pick, found), schema))


class ArrowRows:
    """Rows of an Arrow table, written by one worker; what it hands on, by one after the other."""

    def __init__(self, rows: pa.Table) -> None:
        self._rows = rows

    @property
    def schema(self) -> pa.Schema:
        """Its columns."""
        return self._rows.schema

    def write(self, task: WriteTask) -> Sequence[WriteStatus]:
        """Let a worker write the rows, those of a partition together."""
        if task.is_global and task.operation.merges:
            raise UnsupportedError("looking up keys in the whole table needs Spark")
        if not len(self._rows):
            return []
        paths = partition_paths(self._rows, task.partitions)
        rows = self._rows.take(pa.compute.sort_indices(paths))
        tokens = (WriteToken(number, 0, number) for number in count())
        first = run_task(task, next(tokens), rows.combine_chunks().to_batches())
        return run_until_done(
            [first], lambda works: [run_deferred(task, next(tokens), [work]) for work in works]
        )
