"""Incremental queries of tables built file by file."""

from __future__ import annotations

import pyarrow as pa
import pytest

from lakewright.errors import InvalidError
from lakewright.format.avro.schema import avro_schema
from lakewright.format.data_block import format_parquet_block
from lakewright.model.file_group import BaseFile
from lakewright.model.instant import Action, Instant
from lakewright.scan.planner import plan_changes
from lakewright.storage.memory import MemoryStorage
from lakewright.table.snapshot import load_snapshot
from lakewright.testing.local_reads import read_plan
from lakewright.testing.table_builder import TableBuilder

SCHEMA = pa.schema([("id", pa.string()), ("day", pa.string()), ("ts", pa.int64())])


def version(**keys: int) -> pa.Table:
    return pa.Table.from_pylist([{"id": k, "day": "d", "ts": ts} for k, ts in keys.items()], SCHEMA)


@pytest.fixture
def storage() -> MemoryStorage:
    return MemoryStorage.fresh()


@pytest.fixture
def writes(storage: MemoryStorage) -> list[Instant]:
    """Three versions of one file; each takes over the rows that it does not change."""
    builder = TableBuilder(storage, SCHEMA, table_type="COPY_ON_WRITE").create()
    instants = []
    for rows in (version(a=1, b=1, c=1), version(a=1, b=2, c=2), version(a=1, b=2, c=3)):
        instants.append(builder.commit({("d", "f"): rows}, action=Action.COMMIT))
    return instants


def changed(
    storage: MemoryStorage, since: Instant, until: Instant, *, fallback: bool = True
) -> list[str]:
    plan = plan_changes(
        load_snapshot(storage),
        since=since.completed_at,
        until=until.completed_at,
        fallback=fallback,
    )
    return sorted(read_plan(storage, plan.plan)["id"].to_pylist())


def test_a_range_reads_its_own_file(storage: MemoryStorage, writes: list[Instant]) -> None:
    # Each commit by hand stamps all its rows, so all three come.
    assert changed(storage, writes[0], writes[1]) == ["a", "b", "c"]


def test_a_cleaned_range_is_looked_for_in_the_newest_files(
    storage: MemoryStorage, writes: list[Instant]
) -> None:
    storage.delete(f"d/{BaseFile('f', '0-0-0', writes[1].requested_at).name}")
    assert changed(storage, writes[0], writes[1]) == []
    assert changed(storage, writes[1], writes[2]) == ["a", "b", "c"]


def test_without_leave_a_cleaned_range_is_an_error_that_names_the_option(
    storage: MemoryStorage, writes: list[Instant]
) -> None:
    storage.delete(f"d/{BaseFile('f', '0-0-0', writes[1].requested_at).name}")
    with pytest.raises(InvalidError, match=r"fallback\.fulltablescan"):
        changed(storage, writes[0], writes[1], fallback=False)
    assert changed(storage, writes[1], writes[2], fallback=False) == ["a", "b", "c"]


def test_nothing_new_is_empty_and_keeps_the_checkpoint(
    storage: MemoryStorage, writes: list[Instant]
) -> None:
    plan = plan_changes(load_snapshot(storage), since=writes[-1].completed_at)
    assert plan.context.checkpoint == writes[-1].completed_at
    assert plan.plan.slices == ()
    assert plan.plan.result_schema.names[-3:] == ["id", "day", "ts"]


def test_from_the_beginning_in_steps_a_cleaned_table_loses_no_row() -> None:
    """Each version keeps the commit time of rows that it does not change."""
    storage = MemoryStorage.fresh()
    builder = TableBuilder(storage, SCHEMA, table_type="COPY_ON_WRITE").create()
    first = builder.commit({("d", "f"): version(a=1)}, action=Action.COMMIT)
    builder.commit({("d", "g"): version(b=1)}, action=Action.COMMIT)
    storage.delete(f"d/{BaseFile('f', '0-0-0', first.requested_at).name}")
    plan = plan_changes(load_snapshot(storage), limit=1)
    assert read_plan(storage, plan.plan)["id"].to_pylist() == []
    with pytest.raises(InvalidError, match="cleaned"):
        plan_changes(load_snapshot(storage), limit=1, fallback=False)


def test_rows_updated_in_part_bring_their_older_columns(storage: MemoryStorage) -> None:
    builder = TableBuilder(storage, SCHEMA).create()
    base = builder.commit({("d", "f"): version(a=1, b=1)})
    at = builder.tick()
    part = builder.with_meta(version(a=2), "d", "f", at).drop_columns(["day"])
    schema = avro_schema(part.schema, "r", "n")
    block = format_parquet_block(part, at, schema, is_partial=True)
    builder.commit(logs={("d", "f"): block}, instant=at)
    plan = plan_changes(load_snapshot(storage), since=base.completed_at)
    rows = read_plan(storage, plan.plan).select(["id", "day", "ts"]).to_pylist()
    assert rows == [{"id": "a", "day": "d", "ts": 2}]


def test_a_limit_below_one_is_refused(storage: MemoryStorage, writes: list[Instant]) -> None:
    with pytest.raises(InvalidError, match="at least one"):
        plan_changes(load_snapshot(storage), limit=0)
