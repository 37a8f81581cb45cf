"""A query in this process: the workers in a plain loop, slice after slice, no more than is wanted.

What a few files hold is read sooner than a Spark session starts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import pyarrow as pa

from lakewright.read.cdc.step import CdcPlan
from lakewright.read.cdc.worker import read_changes
from lakewright.read.plan import ReadPlan
from lakewright.read.prune import RowFilter, may_match
from lakewright.read.worker import read_slices
from lakewright.storage.base import Storage


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
