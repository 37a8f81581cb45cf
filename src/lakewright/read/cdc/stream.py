"""Change data batch by batch, for streams."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa

from lakewright.read.cdc.plan import plan_cdc_context
from lakewright.read.cdc.step import SCHEMA, CdcPlan
from lakewright.read.cdc.worker import read_changes
from lakewright.read.incremental import QueryContext
from lakewright.storage.base import Storage
from lakewright.table.snapshot import Snapshot


class ChangeData:
    """What each write of a batch did to each row."""

    def schema(self, snapshot: Snapshot) -> pa.Schema:
        """The columns of changes; those of the table are inside them."""
        return SCHEMA

    def tasks(
        self, context: QueryContext, columns: Sequence[str], *, fallback: bool
    ) -> Sequence[CdcPlan]:
        """The plan of a range of change data, in pieces of a fair size."""
        return plan_cdc_context(context, columns=columns, fallback=fallback).tasks()

    def read(self, storage: Storage, task: CdcPlan) -> Iterator[pa.RecordBatch]:
        """The changes of one piece."""
        return read_changes(storage, task)
