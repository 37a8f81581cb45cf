"""Read plans without Spark: the workers in a plain loop."""

from __future__ import annotations

import pyarrow as pa

from lakewright.read.plan import ReadPlan, decode_plan, encode_plan
from lakewright.read.worker import read_slices
from lakewright.storage.base import Storage


def read_locally(storage: Storage, plan: ReadPlan) -> pa.Table:
    """The rows of a plan, slice after slice, as the workers on a cluster would give them."""
    travelled = decode_plan(encode_plan(plan))
    batches = [batch for task in travelled.tasks() for batch in read_slices(storage, task)]
    return pa.Table.from_batches(batches, plan.result_schema)
