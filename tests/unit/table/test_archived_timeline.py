"""Readers of history while archiving goes on, and where clocks do not agree."""

from __future__ import annotations

import pytest

from lakewright.model.instant import Instant
from lakewright.storage.base import Storage
from lakewright.storage.memory import MemoryStorage
from lakewright.table.archived_timeline import load_manifest
from lakewright.table.snapshot import load_snapshot
from lakewright.testing.clock import ManualClock
from support.concurrency import InterruptedAfter
from support.tables import WrittenTable, row

QUIET = {"hoodie.clean.automatic": "false", "hoodie.archive.automatic": "false"}
FEW = {
    "hoodie.keep.min.commits": "2",
    "hoodie.keep.max.commits": "3",
    "hoodie.clean.commits.retained": "1",
    "hoodie.commits.archival.batch": "1",
}
HISTORY = ".hoodie/timeline/history"


def archived(storage: Storage | None = None, clock: ManualClock | None = None) -> WrittenTable:
    """A table with some history, and writes that the next archiving publishes one by one."""
    clock = clock or ManualClock()
    table = WrittenTable(storage or MemoryStorage.fresh(), clock, QUIET).create()
    more(table)
    table.services(FEW).run("archive")
    more(table)
    return table


def more(table: WrittenTable) -> None:
    for number in range(8):
        table.upsert([row("a", number, day="d")])


def test_the_state_that_a_reader_has_begun_with_outlives_one_archiving() -> None:
    table = archived()
    version = int(table.storage.read(f"{HISTORY}/_version_"))
    before = load_manifest(table.storage, HISTORY)
    table.services(FEW).run("archive")
    assert int(table.storage.read(f"{HISTORY}/_version_")) > version + 3
    there = {file.name for file in table.storage.list_files(HISTORY)}
    assert f"manifest_{version}" in there
    assert {file.name for file in before.files} <= there


@pytest.mark.parametrize("name", ["_version_", "manifest_"])
def test_a_timeline_version_that_was_deleted_concurrently_is_read_again(
    name: str,
) -> None:
    table = archived()

    def several() -> None:
        for _ in range(3):
            table.services({**FEW, "hoodie.timeline.compaction.batch.size": "2"}).run("archive")
            more(table)

    snapshot = load_snapshot(InterruptedAfter(table.storage, "read", f"/{name}[^/]*$", several))
    first = snapshot.timeline.completed_writes[0].requested_at
    assert [i for i in snapshot.archived if i.requested_at < first]


def times(instants: list[Instant]) -> set[str]:
    return {instant.requested_at for instant in instants}


AHEAD_MS = {
    "a timeline like the clock of storage": 0,
    "a timeline that ran days ahead of the clock of storage": 3 * 24 * 3_600_000,
}


@pytest.mark.parametrize("ahead_ms", AHEAD_MS.values(), ids=list(AHEAD_MS))
def test_writes_that_were_archived_since_are_found(ahead_ms: int) -> None:
    clock = ManualClock()
    table = archived(MemoryStorage.fresh(now_ms=lambda: clock.now_ms() - ahead_ms), clock)
    commit = table.upsert([row("a", 9, day="d")])
    more(table)
    table.services(FEW).run("archive")
    times_after = times(load_snapshot(table.storage).archived_after(commit.completed_at))
    assert commit.instant in times_after
