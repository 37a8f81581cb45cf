"""The quarantine: a table of messages and objects that could not be read, for manual inspection.

Records are written before the batch that leaves them out is returned. After a crash in between, the
batch is read again and the same records are written again, under the same key.
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
    """A message with its content, or an object, that could not be read."""

    location: str
    reason: str
    content: str | None = None
    size: int | None = None


@dataclass(frozen=True)
class Quarantine:
    """The quarantine table of one source; it is created on first use."""

    storage: Storage
    clock: Clock
    source: str

    def put(self, records: Sequence[QuarantinedRecord]) -> None:
        """Write records to the quarantine table."""
        if not records:
            return
        if not self.storage.exists(PROPERTIES):
            self._create()
        now_ms = self.clock.now_ms()
        rows = [
            {
                "place": record.location,
                "source": self.source,
                "reason": record.reason,
                "content": record.content,
                "size": record.size,
                "held_at_ms": now_ms,
            }
            for record in records
        ]
        table = pa.Table.from_pylist(rows, SCHEMA)
        manager = TransactionManager.from_options(self.storage, self.clock, {})
        execute_write(manager, WriteRequest(Operation.UPSERT), ArrowRows(table), LocalEngine())

    def _create(self) -> None:
        spec = TableSpec(name="quarantine", record_key=("place",), ordering=("held_at_ms",))
        try:
            create_table(self.storage, self.clock, spec)
        except InvalidError:
            # Another process may have created it concurrently.
            if not self.storage.exists(PROPERTIES):
                raise
