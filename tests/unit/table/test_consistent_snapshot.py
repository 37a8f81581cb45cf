"""A listing that writers get in between: what completed first is not passed over."""

from __future__ import annotations

from lakewright.scan.planner import plan_changes
from lakewright.storage.base import Storage
from lakewright.table.snapshot import load_consistent_snapshot, load_snapshot
from lakewright.testing.local_reads import read_plan
from support.concurrency import InterruptedAfter
from support.faults import IncompleteListing
from support.tables import NO_SERVICES, WrittenTable, row

SEVERAL = {**NO_SERVICES, "hoodie.write.concurrency.mode": "OPTIMISTIC_CONCURRENCY_CONTROL"}


def overlapping() -> tuple[WrittenTable, str]:
    """Of two writers the one that began first completes first; and the name of its commit."""
    table = WrittenTable(options=SEVERAL).create()
    table.upsert([row("a")])
    first = table.upsert([row("b", day="2026-01-02")])
    table.upsert([row("c", day="2026-01-03")])
    return table, f"{first.instant}_{first.completed_at}.commit"


def chain(storage: Storage) -> list[str]:
    """The rows of two incremental queries, the second from where the first one ended."""
    first = plan_changes(load_consistent_snapshot(storage))
    then = plan_changes(load_consistent_snapshot(storage), since=first.context.checkpoint)
    tables = [read_plan(storage, plan.plan) for plan in (first, then)]
    return sorted(key for table in tables for key in table["id"].to_pylist())


def test_a_write_that_a_listing_missed_is_read() -> None:
    table, hidden = overlapping()
    assert (
        len(load_snapshot(IncompleteListing(table.storage, hidden)).timeline.completed_writes) == 2
    )
    assert chain(IncompleteListing(table.storage, hidden)) == ["a", "b", "c"]


def test_what_completes_after_the_first_listing_comes_with_the_next_moment() -> None:
    table, _ = overlapping()
    last = load_snapshot(table.storage).timeline.by_completion[-1]
    snapshot = load_consistent_snapshot(IncompleteListing(table.storage, last.file_name))
    assert last.requested_at in {i.requested_at for i in snapshot.timeline.pending()}
    assert len(snapshot.timeline.completed_writes) == 2
    assert chain(IncompleteListing(table.storage, last.file_name)) == ["a", "b", "c"]


def test_a_table_that_nothing_was_written_to() -> None:
    table = WrittenTable().create()
    assert not load_consistent_snapshot(table.storage).timeline.instants


def test_a_savepoint_that_archiving_passes_concurrently_hides_nothing() -> None:
    table = WrittenTable(options=NO_SERVICES).create()
    commits = [table.upsert([row(key)]) for key in "abcdefg"]
    beyond = {
        "hoodie.clean.commits.retained": "1",
        "hoodie.keep.min.commits": "2",
        "hoodie.keep.max.commits": "3",
        "hoodie.archive.beyond.savepoint": "true",
    }

    def archived() -> None:
        table.writer().savepoint(commits[0].instant, user="", comment="")
        assert table.services(beyond).run("archive")

    snapshot = load_consistent_snapshot(
        InterruptedAfter(table.storage, "list_files", r"timeline$", archived)
    )
    plan = plan_changes(snapshot)
    assert sorted(read_plan(table.storage, plan.plan)["id"].to_pylist()) == [*"abcdefg"]
