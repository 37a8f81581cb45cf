"""Rows of one upsert that are marked for deletion: all kinds of changes in one commit."""

from __future__ import annotations

import pyarrow as pa
import pytest

from lakewright.engine.local import ArrowRows
from lakewright.model.table_config import TableType
from lakewright.table.snapshot import load_snapshot
from lakewright.write.incoming_rows import MOVED_COLUMN
from lakewright.write.task import Operation
from lakewright.write.writer import WriteRequest
from support.tables import NO_SERVICES, SCHEMA, WrittenTable, row

MARKED = SCHEMA.append(pa.field(MOVED_COLUMN, pa.bool_()))


@pytest.mark.parametrize("table_type", list(TableType))
def test_one_commit_updates_inserts_and_deletes(table_type: str) -> None:
    table = WrittenTable(options=NO_SERVICES).create(table_type)
    table.upsert([row("a", 5), row("b", 5), row("c", 5, day="2026-01-02")])
    rows = [
        {**row("a", 6, "second"), MOVED_COLUMN: False},
        # Older than the stored row: a marked row is deleted all the same.
        {**row("b", 1), MOVED_COLUMN: True},
        {**row("c", 5, day="2026-01-02"), MOVED_COLUMN: True},
        {**row("d", 1), MOVED_COLUMN: None},
        {**row("nobody", 1), MOVED_COLUMN: True},
    ]
    request = WriteRequest(Operation.UPSERT, marked=True)
    commit = table.writer().run(request, ArrowRows(pa.Table.from_pylist(rows, MARKED)))
    assert (commit.inserted, commit.updated, commit.deleted) == (1, 1, 2)
    assert table.rows() == [row("a", 6, "second"), row("d", 1)]
    snapshot = load_snapshot(table.storage)
    assert len(snapshot.timeline.completed_writes) == 2
    assert MOVED_COLUMN not in (snapshot.avro_schema() or "")
