"""A table of many partitions, of which ten have log files that no compaction has seen."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

from lakewright.format.data_block import format_parquet_block
from lakewright.format.timeline_metadata import format_compaction_plan
from lakewright.model.instant import Action, Instant, State
from lakewright.model.plans import CompactionPlan
from lakewright.storage.local import LocalStorage
from lakewright.testing.table_builder import TableBuilder
from lakewright.write.log_file_writer import log_schema_of

CHANGED = 10
SCHEMA = pa.schema([("id", pa.string()), ("day", pa.string()), ("ts", pa.int64())])


def make_table(folder: Path, partitions: int) -> None:
    """Make it: a load of all partitions, a compaction, and a change of ten of them."""
    folder.mkdir(parents=True)
    storage = LocalStorage(str(folder))
    builder = TableBuilder(storage, SCHEMA, name="many").create()
    days = [f"d{number:06d}" for number in range(partitions)]
    builder.commit({(day, _file_id(number)): _row(day, 1) for number, day in enumerate(days)})
    requested = Instant(builder.tick(), Action.COMPACTION, State.REQUESTED)
    plan = format_compaction_plan(CompactionPlan(missing_partitions=()))
    storage.create(f".hoodie/timeline/{requested.file_name}", plan)
    builder.commit(instant=requested.requested_at, action=Action.COMMIT, operation="COMPACT")
    step = partitions // CHANGED
    at = builder.tick()
    logs = {}
    for number in range(0, step * CHANGED, step):
        rows = builder.with_meta(_row(days[number], 2), days[number], _file_id(number), at)
        block = format_parquet_block(rows, at, log_schema_of(builder.avro_schema))
        logs[days[number], _file_id(number)] = block
    builder.commit(logs=logs, instant=at)


def _row(day: str, ts: int) -> pa.Table:
    return pa.table({"id": ["k"], "day": [day], "ts": [ts]}, schema=SCHEMA)


def _file_id(number: int) -> str:
    return f"{number:08x}-0000-4000-8000-{number:012x}-0"
