"""The engine in this process: reads and writes on Arrow, without Spark.

Reading a few files takes less time than starting a Spark session.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from typing import TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakewright.errors import InvalidError, UnsupportedError
from lakewright.model.partition_paths import PartitionRule, partition_paths
from lakewright.scan.cdc.planner import CdcScanPlan
from lakewright.scan.cdc.reader import read_cdc
from lakewright.scan.scan_plan import RowFilter, ScanPlan, may_match
from lakewright.scan.slice_reader import read_slices
from lakewright.storage.base import Storage
from lakewright.utils.arrow_rows import MAX_CHUNK_BYTES, take_rows
from lakewright.write.distribution import Distribution, first_distribution, write_distributed
from lakewright.write.spill import run_until_done
from lakewright.write.targeted_rows import sorted_by_target
from lakewright.write.task import WriteStatus, WriteTask, WriteToken
from lakewright.write.task_runner import run_deferred, run_task
from lakewright.write.writer import RowSource


def read_local(
    storage: Storage,
    plan: ScanPlan | CdcScanPlan,
    *,
    row_filter: RowFilter | None = None,
    columns: Sequence[str] | None = None,
    limit: int | None = None,
    on_progress: Callable[[int], None] | None = None,
) -> Iterator[pa.RecordBatch]:
    """Return the rows of a plan that pass the filter `row_filter`, at most `limit` rows.

    `columns` selects columns. `on_progress` is called with the bytes of each part of the plan, once
    its rows were read.
    """
    remaining = limit
    for batches, size in _parts(storage, plan):
        if remaining == 0:
            return
        for table in map(_as_table, batches):
            if row_filter is not None:
                table = table.filter(row_filter.expression)
            if columns is not None:
                table = table.select(list(columns))
            table = table.slice(0, remaining)
            remaining = None if remaining is None else remaining - table.num_rows
            yield from table.combine_chunks().to_batches()
            if remaining == 0:
                break
        if on_progress is not None:
            on_progress(size)


def prune_partitions(plan: ScanPlan, row_filter: RowFilter) -> ScanPlan:
    """Return the plan without partitions that cannot contain a row that passes the filter."""
    slices = [
        s for s in plan.slices if may_match(s.partition, plan.path_columns, row_filter.comparisons)
    ]
    return plan.with_slices(slices)


def plan_bytes(plan: ScanPlan | CdcScanPlan) -> int:
    """Return how many bytes a plan reads."""
    if isinstance(plan, CdcScanPlan):
        return sum(group.cost for group in plan.groups)
    return sum(item.size for item in plan.slices)


def _as_table(batch: pa.RecordBatch) -> pa.Table:
    return pa.Table.from_batches([batch])


def _parts(
    storage: Storage, plan: ScanPlan | CdcScanPlan
) -> Iterator[tuple[Iterator[pa.RecordBatch], int]]:
    if isinstance(plan, CdcScanPlan):
        for part in plan.in_order():
            yield read_cdc(storage, part), plan_bytes(part)
    else:
        for item in plan.slices:
            yield read_slices(storage, plan.with_slices([item])), item.size


Item = TypeVar("Item")
Answer = TypeVar("Answer")


class LocalEngine:
    """Reads and writes in this process, on Arrow: see `engine.base.Engine`."""

    def scan(self, storage: Storage, plan: ScanPlan) -> ArrowRows:
        """Read the rows of a scan."""
        return ArrowRows(pa.Table.from_batches(read_local(storage, plan), plan.result_schema))

    def write(self, task: WriteTask, rows: RowSource) -> Sequence[WriteStatus]:
        """Write rows in one task, sorted by partition; then the work it deferred."""
        if not isinstance(rows, ArrowRows):
            raise InvalidError("this process writes Arrow rows: those of a DataFrame need Spark")
        if task.is_global and task.operation.merges:
            raise UnsupportedError("looking up keys in the whole table needs Spark")
        with rows.open() as table:
            if not len(table):
                return []
            return _write_table(task, table, rows.partition_paths(task.partition_rule))

    def map(
        self,
        function: Callable[[Item, WriteToken], Answer],
        items: Sequence[Item],
        size: Callable[[Item], int],
    ) -> list[Answer]:
        """Call `function` on each item, the largest first."""
        ordered = sorted(items, key=size, reverse=True)
        return [
            function(item, WriteToken(number, 0, number)) for number, item in enumerate(ordered)
        ]


def _write_table(task: WriteTask, table: pa.Table, paths: pa.Array) -> list[WriteStatus]:
    tokens = (WriteToken(number, 0, number) for number in count())

    def write(distribution: Distribution) -> list[WriteStatus]:
        if distribution.is_targeted:
            rows = sorted_by_target(task, table)
        else:
            rows = take_rows(table, np.asarray(pc.sort_indices(paths), dtype=np.int64))
        # Many small chunks are combined; to combine large ones is a copy of all rows.
        rows = rows.combine_chunks() if rows.nbytes < MAX_CHUNK_BYTES else rows
        first_status = run_task(task, next(tokens), rows.to_batches(), distribution)
        return run_until_done(
            [first_status],
            lambda works: [run_deferred(task, next(tokens), [work]) for work in works],
        )

    return write_distributed(task, first_distribution(task, table.nbytes, rebalances=False), write)


class ArrowRows:
    """The rows of an Arrow table."""

    def __init__(self, table: pa.Table) -> None:
        self.table = table
        self._paths: tuple[PartitionRule, pa.Array] | None = None

    @property
    def schema(self) -> pa.Schema:
        """The columns of the table."""
        return self.table.schema

    def partition_paths(self, rule: PartitionRule) -> pa.Array:
        """Return the partition path of each row; it is computed once."""
        if self._paths is None or self._paths[0] != rule:
            self._paths = rule, partition_paths(self.table, rule)
        return self._paths[1]

    def known_partitions(self, rule: PartitionRule) -> frozenset[str]:
        """See `RowSource`."""
        return frozenset(pa.compute.unique(self.partition_paths(rule)).to_pylist())

    @contextmanager
    def open(self) -> Iterator[pa.Table]:
        """Provide the rows while they are being written."""
        yield self.table

    def map_batches(
        self, function: Callable[[pa.RecordBatch], pa.RecordBatch], schema: pa.Schema
    ) -> ArrowRows:
        """Return the rows that `function` makes of each batch."""
        batches = self.table.combine_chunks().to_batches()
        return ArrowRows(pa.Table.from_batches(map(function, batches), schema))
