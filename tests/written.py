"""Tables written by the library in a plain loop, and a model of what must be in them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa

from lakewright.client.write_client import WriteClient
from lakewright.clock import Clock
from lakewright.engine.local import ArrowRows, LocalEngine
from lakewright.model.instant import Action
from lakewright.model.table_config import parse_table_type
from lakewright.scan.planner import plan_read_optimized, plan_snapshot
from lakewright.services.runner import ServiceRunner
from lakewright.storage.base import Storage
from lakewright.storage.memory import MemoryStorage
from lakewright.table.create import TableSpec, create_table
from lakewright.table.snapshot import Snapshot, load_snapshot
from lakewright.table.transaction import Transaction, TransactionManager, TransactionSpec
from lakewright.testing.clock import ManualClock
from lakewright.testing.local_reads import read_plan
from lakewright.write.task import Operation, WriteStatus, WriteTask
from lakewright.write.writer import Commit, RowSource

Row = dict[str, Any]

# For tests that say themselves when a service runs.
NO_SERVICES = {
    "hoodie.compact.inline": "false",
    "hoodie.clean.automatic": "false",
    "hoodie.archive.automatic": "false",
}

# By default the filter of a file of a few rows takes half a megabyte, as in Hudi.
SMALL_BLOOM = {"hoodie.index.bloom.num_entries": "100"}

SCHEMA = pa.schema(
    [
        pa.field("id", pa.string()),
        pa.field("day", pa.string()),
        pa.field("ts", pa.int64()),
        pa.field("note", pa.string()),
    ]
)


class PausedEngine(LocalEngine):
    """An engine that pauses once, after it has written its files, while another writer acts."""

    def __init__(self, meanwhile: Callable[[], None] | None) -> None:
        self.meanwhile = meanwhile

    def write(self, task: WriteTask, rows: RowSource) -> Sequence[WriteStatus]:
        written = super().write(task, rows)
        act, self.meanwhile = self.meanwhile, None
        if act is not None:
            act()
        return written


def begin_action(
    writer: TransactionManager, action: str, *, requested: bytes = b"", inflight: bytes = b""
) -> Transaction:
    """Begin a write of an action, whatever the table is like."""

    def spec(snapshot: Snapshot) -> TransactionSpec:
        return TransactionSpec(Action(action), requested, inflight)

    transaction, _ = writer.begin(spec)
    return transaction


@dataclass
class WrittenTable:
    """A table on some storage; every call is a write of its own."""

    storage: Storage = field(default_factory=MemoryStorage.fresh)
    clock: Clock = field(default_factory=ManualClock)
    options: Mapping[str, str] = field(default_factory=dict)
    schema: pa.Schema = SCHEMA
    defaults: Mapping[str, str] = field(default_factory=lambda: SMALL_BLOOM)

    def create(
        self,
        table_type: str = "COPY_ON_WRITE",
        *,
        key: tuple[str, ...] = ("id",),
        partition_by: tuple[str, ...] = ("day",),
        ordering: tuple[str, ...] = ("ts",),
        event_time: str | None = None,
        options: Mapping[str, str] | None = None,
        name: str = "written",
    ) -> WrittenTable:
        spec = TableSpec(
            name=name,
            table_type=parse_table_type(table_type),
            record_key=key,
            partition_by=partition_by,
            ordering=ordering,
            event_time=event_time,
            schema=None,
            options=options or {},
        )
        create_table(self.storage, self.clock, spec)
        return self

    def write(
        self,
        operation: Operation | str,
        rows: Iterable[Row],
        options: Mapping[str, str] | None = None,
        *,
        ordered: bool = False,
        schema: pa.Schema | None = None,
        meanwhile: Callable[[], None] | None = None,
    ) -> Commit:
        """`meanwhile` happens when the files are written and the write is still to complete."""
        table = pa.Table.from_pylist(list(rows), schema or self.schema)
        client = replace(self.writer(options), local_engine=PausedEngine(meanwhile))
        return client.write(Operation(operation), ArrowRows(table), ordered=ordered)

    def writer(self, options: Mapping[str, str] | None = None) -> WriteClient:
        told = {**self.defaults, **self.options, **(options or {})}
        return replace(WriteClient.create(self.storage, told, self.clock), engine=LocalEngine)

    def services(self, options: Mapping[str, str] | None = None) -> ServiceRunner:
        return self.writer(options).services

    def upsert(
        self,
        rows: Iterable[Row],
        options: Mapping[str, str] | None = None,
        *,
        meanwhile: Callable[[], None] | None = None,
    ) -> Commit:
        return self.write(Operation.UPSERT, rows, options, meanwhile=meanwhile)

    def delete_partitions(self, *patterns: str) -> Any:
        return self.writer().delete_partitions(patterns)

    def rows(self, *, optimized: bool = False, meta: bool = False) -> list[Row]:
        plan = (plan_read_optimized if optimized else plan_snapshot)(load_snapshot(self.storage))
        found = read_plan(self.storage, plan).to_pylist(maps_as_pydicts="strict")
        if not meta:
            found = [
                {name: value for name, value in row.items() if not name.startswith("_hoodie_")}
                for row in found
            ]
        return sorted(found, key=str)


def row(key: str, ts: int = 1, note: str | None = "first", day: str = "2026-01-01") -> Row:
    return {"id": key, "day": day, "ts": ts, "note": note}
