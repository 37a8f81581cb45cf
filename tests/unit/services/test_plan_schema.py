"""An execution writes in the schema of its plan: what came later may be rolled back."""

from __future__ import annotations

import pyarrow as pa
import pytest

from lakewright.model.instant import Instant
from support.tables import NO_SERVICES, SCHEMA, Row, WrittenTable, row

QUIET = {
    **NO_SERVICES,
    "hoodie.parquet.small.file.limit": "0",
}
EAGER = {
    "hoodie.compact.inline.max.delta.commits": "1",
    "hoodie.log.compaction.blocks.threshold": "2",
}
WIDER = pa.schema([*SCHEMA, ("more", pa.int64())])
OTHER = pa.schema([("id", pa.string()), ("day", pa.string()), ("ts", pa.int64()),
                   ("other", pa.string())])  # fmt: skip
OTHER_TYPES = pa.schema([("id", pa.string()), ("day", pa.string()), ("ts", pa.string()),
                         ("note", pa.int64())])  # fmt: skip
OVERWRITES: dict[str, tuple[pa.Schema, Row]] = {
    "other columns": (OTHER, {"id": "z", "day": "2026-01-01", "ts": 9, "other": "x"}),
    "other types": (OTHER_TYPES, {"id": "z", "day": "2026-01-01", "ts": "9", "note": 3}),
}
SERVICES = {"compaction": "MERGE_ON_READ", "logcompaction": "MERGE_ON_READ",
            "clustering": "COPY_ON_WRITE"}  # fmt: skip


def planned(service: str) -> tuple[WrittenTable, str]:
    table = WrittenTable(options=QUIET).create(SERVICES[service])
    table.upsert([row("a"), row("b")])
    table.upsert([row("c")])
    for ts in (2, 3):
        table.upsert([row("a", ts, f"note {ts}")])
    instant = table.services(EAGER).schedule(service)
    assert isinstance(instant, Instant)
    return table, instant.requested_at


@pytest.mark.parametrize(("schema", "later"), OVERWRITES.values(), ids=list(OVERWRITES))
def test_a_plan_is_executed_after_an_overwrite_and_keeps_its_columns(
    schema: pa.Schema, later: Row
) -> None:
    table, at = planned("compaction")
    before = table.rows()
    overwrite = table.write("INSERT_OVERWRITE_TABLE", [later], schema=schema)
    assert table.services().execute(at)
    assert table.rows() == [later]
    table.writer().rollback(overwrite.instant)
    assert table.rows() == before


@pytest.mark.parametrize("service", SERVICES)
def test_a_column_of_a_write_that_was_rolled_back_does_not_stay(service: str) -> None:
    table, at = planned(service)
    before = table.rows()
    added = table.write("INSERT", [{**row("d"), "more": 1}], schema=WIDER)
    assert table.services().execute(at)
    table.writer().rollback(added.instant)
    assert table.rows() == before


@pytest.mark.parametrize("service", SERVICES)
def test_rows_with_a_column_that_came_after_the_plan_are_read_after_its_execution(
    service: str,
) -> None:
    table, at = planned(service)
    before = table.rows()
    table.write("INSERT", [{**row("d"), "more": 1}], schema=WIDER)
    assert table.services().execute(at)
    new = {**row("d"), "more": 1}
    assert table.rows() == sorted([*({**record, "more": None} for record in before), new], key=str)
    table.write("UPSERT", [{**row("b", 5, "fifth"), "more": 2}], schema=WIDER)
    assert {**row("b", 5, "fifth"), "more": 2} in table.rows()


@pytest.mark.parametrize("service", ["compaction", "clustering"])
def test_a_column_stays_that_a_write_brought_which_ended_after_a_later_service(
    service: str,
) -> None:
    several = {"hoodie.write.concurrency.mode": "OPTIMISTIC_CONCURRENCY_CONTROL"}
    table = WrittenTable(options={**QUIET, **several}).create(SERVICES[service])
    table.upsert([row("a")])
    table.upsert([row("a", 2)])
    due = {**EAGER, "hoodie.clustering.inline.max.commits": "1"}
    outcomes: list[object] = []
    new = {**row("z", day="2026-01-02"), "more": 1}
    table.write(
        "UPSERT",
        [new],
        schema=WIDER,
        before_commit=lambda: outcomes.append(table.services(due).run(service)),
    )
    assert all(outcomes)
    assert table.rows() == [{**row("a", 2), "more": None}, new]
