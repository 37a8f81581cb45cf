"""Reads and writes without Spark: the workers in a plain loop."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from lakewright.core.partition_paths import partition_paths
from lakewright.errors import UnsupportedError
from lakewright.read.plan import ReadPlan, decode_plan, encode_plan
from lakewright.read.worker import read_slices
from lakewright.storage.base import Storage
from lakewright.write.task import Outcome, Token, WriteTask
from lakewright.write.worker import run_task

_ROUTE = "_route"


def read_locally(storage: Storage, plan: ReadPlan) -> pa.Table:
    """The rows of a plan, slice after slice, as the workers on a cluster would give them."""
    travelled = decode_plan(encode_plan(plan))
    batches = [batch for task in travelled.tasks() for batch in read_slices(storage, task)]
    return pa.Table.from_batches(batches, plan.result_schema)


class LocalRows:
    """Rows of an Arrow table, written by one worker after the other, a partition each."""

    def __init__(self, rows: pa.Table) -> None:
        self._rows = rows

    @property
    def schema(self) -> pa.Schema:
        """Its columns."""
        return self._rows.schema

    def write(self, task: WriteTask) -> Sequence[Outcome]:
        """Let a worker write the rows of each partition."""
        if task.is_global and task.operation.merges:
            raise UnsupportedError("looking up keys in the whole table needs Spark")
        if not len(self._rows):
            return []
        paths = partition_paths(self._rows, task.partitions)
        outcomes = []
        for number, path in enumerate(sorted(set(paths.to_pylist()))):
            mine = self._rows.filter(pa.compute.equal(paths, path))
            outcomes.append(run_task(task, Token(number, 0, number), mine.to_batches()))
        return outcomes
