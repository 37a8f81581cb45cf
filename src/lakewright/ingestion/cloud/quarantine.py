"""What could not be read and was put aside: a table of its own, for a person to look at.

It is written before the batch that leaves these things out is handed over. A crash in between has
the batch read again, and the same things are put aside once more: under the same key.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from lakewright.clock import Clock
from lakewright.engine.local import ArrowRows, LocalEngine
from lakewright.errors import InvalidError
from lakewright.storage.base import Storage
from lakewright.table.create import TableSpec, create_table
from lakewright.table.properties import PROPERTIES
from lakewright.table.transaction import TransactionManager
from lakewright.write.task import Operation
from lakewright.write.writer import WriteRequest, execute_write

SCHEMA = pa.schema(
    [
        ("place", pa.string()),
        ("source", pa.string()),
        ("reason", pa.string()),
        ("content", pa.string()),
        ("size", pa.int64()),
        ("held_at_ms", pa.int64()),
    ]
)


@dataclass(frozen=True, slots=True)
class QuarantinedRecord:
    """One thing that could not be read: a message, with its content, or an object."""

    place: str
    reason: str
    content: str | None = None
    size: int | None = None


@dataclass(frozen=True)
class Quarantine:
    """The quarantine table of one source; it is made when it is first needed."""

    storage: Storage
    clock: Clock
    source: str

    def put(self, things: Sequence[QuarantinedRecord]) -> None:
        """Note things that could not be read."""
        if not things:
            return
        if not self.storage.exists(PROPERTIES):
            self._create()
        now = self.clock.now_ms()
        rows = [
            {
                "place": thing.place,
                "source": self.source,
                "reason": thing.reason,
                "content": thing.content,
                "size": thing.size,
                "held_at_ms": now,
            }
            for thing in things
        ]
        table = pa.Table.from_pylist(rows, SCHEMA)
        writer = TransactionManager.from_options(self.storage, self.clock, {})
        execute_write(writer, WriteRequest(Operation.UPSERT), ArrowRows(table), LocalEngine())

    def _create(self) -> None:
        spec = TableSpec(name="quarantine", record_key=("place",), ordering=("held_at_ms",))
        try:
            create_table(self.storage, self.clock, spec)
        except InvalidError:
            # Somebody else may have made it meanwhile.
            if not self.storage.exists(PROPERTIES):
                raise
