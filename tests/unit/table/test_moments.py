"""A listing that writers get in between: what completed first is not passed over."""

from __future__ import annotations

from written import NO_SERVICES, WrittenTable, row

from lakewright.read.query import plan_changes
from lakewright.storage.base import FileStatus, Storage
from lakewright.table.snapshot import load_moment, load_snapshot
from lakewright.testing.local import read_locally
from lakewright.testing.storage import CountingStorage

SEVERAL = {**NO_SERVICES, "hoodie.write.concurrency.mode": "OPTIMISTIC_CONCURRENCY_CONTROL"}


class Torn(CountingStorage):
    """The first listing of the timeline leaves one file out: it appeared behind its back."""

    def __init__(self, inner: Storage, hidden: str) -> None:
        super().__init__(inner)
        self.hidden: str | None = hidden

    def list_files(self, folder: str) -> list[FileStatus]:
        found = list(super().list_files(folder))
        if folder != ".hoodie/timeline" or self.hidden is None:
            return found
        hidden, self.hidden = self.hidden, None
        return [file for file in found if file.name != hidden]


def overlapping() -> tuple[WrittenTable, str]:
    """Of two writers the one that began first completes first; and the name of its commit."""
    table = WrittenTable(options=SEVERAL).create()
    table.upsert([row("a")])
    first = table.upsert([row("b", day="2026-01-02")])
    table.upsert([row("c", day="2026-01-03")])
    return table, f"{first.instant}_{first.completed_at}.commit"


def chain(storage: Storage) -> list[str]:
    """What somebody gets who reads twice, the second time from where the first one ended."""
    first = plan_changes(load_moment(storage))
    then = plan_changes(load_moment(storage), since=first.context.checkpoint)
    tables = [read_locally(storage, plan.read) for plan in (first, then)]
    return sorted(key for each in tables for key in each["id"].to_pylist())


def test_a_write_that_a_listing_missed_is_read() -> None:
    table, hidden = overlapping()
    assert len(load_snapshot(Torn(table.storage, hidden)).timeline.completed_writes) == 2
    assert chain(Torn(table.storage, hidden)) == ["a", "b", "c"]


def test_what_completes_after_the_first_listing_comes_with_the_next_moment() -> None:
    table, _ = overlapping()
    last = load_snapshot(table.storage).timeline.by_completion[-1]
    snapshot = load_moment(Torn(table.storage, last.file_name))
    assert last.requested_at in {i.requested_at for i in snapshot.timeline.pending()}
    assert len(snapshot.timeline.completed_writes) == 2
    assert chain(Torn(table.storage, last.file_name)) == ["a", "b", "c"]


def test_a_table_that_nothing_was_written_to() -> None:
    table = WrittenTable().create()
    assert not load_moment(table.storage).timeline.instants
