"""What one clean records for the next, and two executors of one clean."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lakewright.errors import ConflictError
from lakewright.model.instant import Action, Instant, State
from lakewright.storage.memory import MemoryStorage
from lakewright.table.cleaned_files import delete_planless_clean, files_being_cleaned
from lakewright.table.snapshot import load_snapshot
from lakewright.testing.clock import ManualClock
from lakewright.write.writer import Commit
from support.concurrency import InterruptedAfter
from support.tables import NO_SERVICES, WrittenTable, row

QUIET = NO_SERVICES
ONE = {"hoodie.clean.commits.retained": "1"}
VERSIONS = {"hoodie.clean.policy": "KEEP_LATEST_FILE_VERSIONS"}


def bases(table: WrittenTable, partition: str) -> list[str]:
    listed = table.storage.list_files(partition)
    return sorted(file.name for file in listed if file.name.endswith(".parquet"))


def test_another_policy_does_not_forget_how_far_the_table_was_cleaned() -> None:
    table = WrittenTable(options=QUIET).create()
    for number in range(6):
        table.upsert([row("a", number)])
    table.services(ONE).run("clean")
    before = load_snapshot(table.storage).earliest_retained()
    assert before is not None
    table.upsert([row("q", day="other")])
    for options in (VERSIONS, {"hoodie.clean.commits.retained": "2"}, VERSIONS):
        table.services({**options, "hoodie.clean.trigger.max.commits": "0"}).run("clean")
        assert (load_snapshot(table.storage).earliest_retained() or "") >= before


def test_a_clean_that_retains_more_does_not_forget_a_partition_that_a_pending_plan_held() -> None:
    table = WrittenTable(options=QUIET).create()
    for number in range(2):
        table.upsert([row("a", number, day="held"), row("a", number, day="free")])
    for number in range(2):
        table.upsert([row("z", number, day="other")])
    selected = {"hoodie.clustering.plan.strategy.partition.selected": "held"}
    scheduled = table.services(selected).schedule("clustering")
    assert isinstance(scheduled, Instant)
    for number in range(2, 10):
        table.upsert([row("z", number, day="other")])
    table.services(ONE).run("clean")
    assert (len(bases(table, "held")), len(bases(table, "free"))) == (2, 1)
    table.writer().rollback(scheduled.requested_at)
    assert isinstance(table.clock, ManualClock)
    table.clock.advance(3 * 3_600_000)
    table.upsert([row("z", 10, day="other")])
    more = {
        "hoodie.clean.commits.retained": "12",
        "hoodie.write.empty.clean.interval.hours": "1",
    }
    assert isinstance(table.services(more).run("clean"), Commit)
    table.upsert([row("z", 11, day="other")])
    table.services(ONE).run("clean")
    assert len(bases(table, "held")) == 1


def test_a_slow_executor_deletes_nothing_once_another_has_ended_the_clean() -> None:
    table = WrittenTable(options=QUIET).create()
    commits = [table.upsert([row("a", number, day="d")]) for number in range(3)]
    scheduled = table.services(ONE).schedule("clean")
    assert isinstance(scheduled, Instant)
    at = scheduled.requested_at
    name = next(n for n in bases(table, "d") if commits[0].instant in n)
    data = table.storage.read(f"d/{name}")

    def end_and_keep() -> None:
        table.services().execute(at)
        table.storage.create(f"d/{name}", data)

    slow = replace(table, storage=InterruptedAfter(table.storage, "list_many", "", end_and_keep))
    with pytest.raises(ConflictError, match="by another process"):
        slow.services().execute(at)
    assert name in bases(table, "d")


def test_a_clean_whose_plan_was_never_written_blocks_no_service() -> None:
    table = WrittenTable(options=QUIET).create()
    commits = [table.upsert([row("a", number, day="d")]) for number in range(3)]
    empty = Instant("20270101000000000", Action.CLEAN, State.REQUESTED)
    path = f".hoodie/timeline/{empty.file_name}"
    table.storage.create(path, b"")
    snapshot = load_snapshot(table.storage)
    assert (snapshot.earliest_retained(), files_being_cleaned(snapshot)) == (None, {})
    table.writer().savepoint(commits[0].instant, user="", comment="")
    table.writer().rollback(commits[-1].instant)
    assert delete_planless_clean(load_snapshot(table.storage), empty)
    assert not table.storage.exists(path)


def test_a_clean_with_a_plan_is_not_withdrawn() -> None:
    table = WrittenTable(options=QUIET).create()
    for number in range(3):
        table.upsert([row("a", number, day="d")])
    scheduled = table.services(ONE).schedule("clean")
    assert isinstance(scheduled, Instant)
    assert not delete_planless_clean(load_snapshot(table.storage), scheduled)
    assert isinstance(table.services().execute(scheduled.requested_at), Commit)


def test_a_clean_deletes_the_file_of_a_failed_task() -> None:
    clock = ManualClock()
    storage = MemoryStorage.fresh(now_ms=clock.now_ms)
    table = WrittenTable(storage, clock, QUIET).create()
    first = table.upsert([row("a", day="d")])
    (base,) = bases(table, "d")
    uncommitted = f"d/lost-0_7-0-7_{first.instant}.parquet"
    for path in (f"d/{base}", uncommitted):
        storage.create(f".hoodie/.temp/{first.instant}/{path}.marker.CREATE", b"")
    storage.create(uncommitted, storage.read(f"d/{base}"))
    # Readers of this library pass over it, by its marker.
    assert len(table.rows()) == 1
    for number in range(3):
        table.upsert([row("z", number, day="other")])
    clock.advance(600_000)
    table.services(ONE).run("clean")
    assert [record["id"] for record in table.rows()] == ["a", "z"]
    assert not storage.list_folders(".hoodie/.temp")
