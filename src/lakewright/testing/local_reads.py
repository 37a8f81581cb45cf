"""Reading plans in this process, encoded and decoded as for a cluster."""

from __future__ import annotations

import pyarrow as pa

from lakewright.engine.local import read_local
from lakewright.scan.cdc.planner import CdcScanPlan, decode_cdc_plan, encode_cdc_plan
from lakewright.scan.scan_plan import ScanPlan, decode_plan, encode_plan
from lakewright.storage.base import Storage


def read_plan(storage: Storage, plan: ScanPlan) -> pa.Table:
    """Read a plan into a table, slice after slice."""
    decoded = decode_plan(encode_plan(plan))
    batches = [batch for task in decoded.tasks() for batch in read_local(storage, task)]
    return pa.Table.from_batches(batches, plan.result_schema)


def read_cdc_plan(storage: Storage, plan: CdcScanPlan) -> pa.Table:
    """Read the changes of a CDC plan into a table: write after write, and by file group."""
    decoded = decode_cdc_plan(encode_cdc_plan(plan))
    return pa.Table.from_batches(read_local(storage, decoded), plan.result_schema)
