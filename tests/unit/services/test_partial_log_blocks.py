"""Log files that hold parts of rows: no log compaction takes them, and none holds them."""

from __future__ import annotations

import json

import pytest

from lakewright.format.data_block import data_block_rows, format_avro_block
from lakewright.format.log_block import Header, parse_blocks
from lakewright.model.instant import Instant, State
from lakewright.model.plans import CompactionPlan, Skip
from lakewright.services import log_compaction
from lakewright.table.snapshot import load_snapshot
from lakewright.write.writer import Commit
from support.tables import NO_SERVICES, WrittenTable, row

QUIET = NO_SERVICES
EAGER = {
    "hoodie.log.compaction.blocks.threshold": "2",
    "hoodie.compact.inline.max.delta.commits": "1",
}
DAYS = ("2026-01-01", "2026-01-02")


def with_parts() -> WrittenTable:
    """Two file groups with log files; the last one of the first group has no column `note`."""
    table = WrittenTable(options=QUIET).create("MERGE_ON_READ")
    for ts in (1, 2, 3):
        table.upsert([row(day, ts, f"note {ts}", day) for day in DAYS])
    logs = [f.path for f in table.storage.list_files(DAYS[0]) if ".log." in f.path]
    (block,) = parse_blocks(table.storage.read(logs[-1]), file_name=logs[-1])
    schema = json.loads(block.headers[Header.SCHEMA])
    schema["fields"] = [f for f in schema["fields"] if f["name"] != "note"]
    rows = data_block_rows(block, [f["name"] for f in schema["fields"]])
    data = format_avro_block(rows, block.instant, json.dumps(schema), is_partial=True)
    table.storage.replace(logs[-1], data)
    return table


def notes(table: WrittenTable) -> list[tuple[int, str]]:
    return [(record["ts"], record["note"]) for record in table.rows()]


def test_a_plan_skips_partial_log_blocks_and_records_the_reason() -> None:
    plan = with_parts().services(EAGER).preview("logcompaction")
    assert isinstance(plan, CompactionPlan)
    assert plan.partitions == DAYS[1:]
    assert plan.missing_reasons == {DAYS[0]: "log files hold partial updates"}


def test_a_compaction_merges_partial_log_blocks() -> None:
    table = with_parts()
    before = notes(table)
    assert isinstance(table.services(EAGER).run("logcompaction"), Commit)
    commit = table.services(EAGER).run("compaction")
    assert isinstance(commit, Commit)
    assert commit.partitions == DAYS
    assert notes(table) == before == [(3, "note 2"), (3, "note 3")]


def test_the_execution_of_a_foreign_plan_skips_partial_log_blocks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    table = with_parts()
    before = notes(table)
    monkeypatch.setattr(log_compaction, "groups_in_parts", lambda storage, slices: frozenset())
    instant = table.services(EAGER).schedule("logcompaction")
    assert isinstance(instant, Instant)
    assert instant.state is State.REQUESTED
    commit = table.services().execute(instant.requested_at)
    assert (commit.partitions, commit.files) == (DAYS[1:], 1)
    assert notes(table) == before
    compacted = table.services(EAGER).run("compaction")
    assert not isinstance(compacted, Skip)
    assert compacted.partitions == DAYS
    assert notes(table) == before
    assert not load_snapshot(table.storage).timeline.pending()
