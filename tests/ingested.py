"""A source of made-up rows, and ingestions of it without Spark."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import pyarrow as pa
from written import SCHEMA, Row, WrittenTable, row

from lakewright.client.write_client import WriteClient
from lakewright.clock import Clock
from lakewright.engine.local import ArrowRows, LocalEngine
from lakewright.ingestion.checkpoints import Checkpoint
from lakewright.ingestion.ingester import IncomingBatch, Ingester
from lakewright.ingestion.source import Batch, Source
from lakewright.storage.base import Storage

OPTIONS = {
    "hoodie.table.name": "t",
    "hoodie.datasource.write.recordkey.field": "id",
    "hoodie.datasource.write.partitionpath.field": "day",
    "hoodie.datasource.write.precombine.field": "ts",
    # Only of an insert one sees that rows came twice.
    "hoodie.datasource.write.operation": "insert",
}


@dataclass
class Counting(Source):
    """Rows k0, k1, ... in batches of a few; the checkpoint is how many were read.

    Rows with a number in `hidden` are passed over, as by a filter.
    """

    total: int = 10
    size: int = 4
    hidden: frozenset[int] = frozenset()
    acknowledged: list[int] = field(default_factory=list)
    asked: list[str | None] = field(default_factory=list)
    meanwhile: Callable[[], object] = lambda: None

    name: ClassVar[str] = "counting"

    def next_batch(self, spark: Any, after: Checkpoint | None) -> Batch:
        self.asked.append(after.text if after is not None else None)
        start = int(after.text) if after is not None else 0
        end = min(start + self.size, self.total)
        numbers = [number for number in range(start, end) if number not in self.hidden]
        self.meanwhile()
        if not numbers:
            moved = Checkpoint(str(end)) if end > start else after
            return Batch(None, moved)
        table = pa.Table.from_pylist([_numbered(number) for number in numbers], SCHEMA)
        facts = {"bytes": 10 * len(numbers), "objects_waiting": self.total - end, "lag_ms": 7}
        return Batch(table, Checkpoint(str(end)), facts, lambda: self.acknowledged.append(end))


def _numbered(number: int) -> Row:
    return row(f"k{number:03}", day=f"d{number % 2}")


def arrow_rows(table: Any) -> IncomingBatch:
    return IncomingBatch(ArrowRows(table), lambda: len(table))


def ingester(
    storage: Storage,
    source: Source,
    clock: Clock,
    options: Mapping[str, str] | None = None,
    **facts: Any,
) -> Ingester:
    made = WriteClient.create(storage, {**OPTIONS, **(options or {})}, clock)
    return Ingester(source, replace(made, engine=LocalEngine), incoming=arrow_rows, **facts)


def ids(storage: Storage) -> list[str]:
    """The keys of all rows, as often as they are there."""
    return sorted(each["id"] for each in WrittenTable(storage).rows())


def keys_upto(count: int) -> list[str]:
    return [f"k{number:03}" for number in range(count)]
