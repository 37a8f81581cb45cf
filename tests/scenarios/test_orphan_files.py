"""Orphan files of task attempts that ran on after their write committed."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from lakewright.model.commit_metadata import CommitMetadata, WriteStat
from lakewright.model.file_group import LogFile
from lakewright.model.instant import Instant
from lakewright.table.failed_writes import delete_leftovers, delete_orphan_files, find_leftovers
from lakewright.table.markers import MarkerKind, create_marker
from lakewright.table.options import HeartbeatSettings
from lakewright.table.snapshot import load_snapshot
from support.tables import OPTIMISTIC, begin_action
from support.transactions import TransactionFixture, archive_instant, write_files

SETTINGS = HeartbeatSettings()


def died_after_commit() -> tuple[TransactionFixture, Instant, list[str]]:
    """A table whose writer died before it deleted its markers, and the files of the commit.

    A task that the driver had given up wrote another file before the commit completed.
    """
    fixture = TransactionFixture()
    begun = begin_action(fixture.writer(OPTIMISTIC), "deltacommit")
    instant = begun.commit(write_files(begun, "f1", "f2"))
    files = [f"p1/{LogFile(file_id, instant.requested_at).name}" for file_id in ("f1", "f2")]
    for path in [*files, stray_of(instant)]:
        create_marker(fixture.storage, instant.requested_at, path, MarkerKind.CREATE)
    fixture.storage.create(stray_of(instant), b"rows")
    newer = begin_action(fixture.writer(OPTIMISTIC), "deltacommit")
    newer.commit(CommitMetadata())
    fixture.clock.advance(600_000)
    return fixture, instant, files


def stray_of(instant: Instant) -> str:
    return f"p1/{LogFile('lost', instant.requested_at).name}"


def stays(fixture: TransactionFixture, instant: Instant) -> None:
    """The write is on the active timeline."""


@pytest.mark.parametrize("make", [stays, archive_instant], ids=["active", "archived"])
def test_files_that_a_commit_does_not_list_are_deleted_before_its_markers(
    make: Callable[[TransactionFixture, Instant], None],
) -> None:
    fixture, instant, files = died_after_commit()
    make(fixture, instant)
    delete_orphan_files(load_snapshot(fixture.storage), SETTINGS, fixture.clock.now_ms())
    assert [
        path for path in fixture.leftovers() if path.startswith(("p1/", ".hoodie/.temp"))
    ] == files


def test_deleting_leftovers_leaves_orphan_files_to_the_lock_holder() -> None:
    fixture, instant, _ = died_after_commit()
    before = fixture.leftovers()
    leftovers = find_leftovers(fixture.storage, SETTINGS, fixture.clock)
    assert (leftovers.marked, leftovers.orphans) == ((), (instant.requested_at,))
    delete_leftovers(fixture.storage, leftovers)
    assert fixture.leftovers() == before


def test_only_some_instants_are_looked_at() -> None:
    fixture, instant, _ = died_after_commit()
    before = fixture.leftovers()
    delete_orphan_files(
        load_snapshot(fixture.storage),
        SETTINGS,
        fixture.clock.now_ms(),
        [f"{instant.requested_at}9"],
    )
    assert fixture.leftovers() == before


def test_all_names_in_a_commit_are_listed_ones() -> None:
    fixture = TransactionFixture()
    begun = begin_action(fixture.writer(OPTIMISTIC), "deltacommit")
    names = [LogFile(file_id, begun.instant).name for file_id in ("a", "b", "c")]
    stat = WriteStat(
        file_id="a", path=f"p1/{names[0]}", log_files=(names[1],), cdc_stats={f"p1/{names[2]}": 1}
    )
    begun.commit(CommitMetadata(stats={"p1": (stat,)}))
    for name in names:
        create_marker(fixture.storage, begun.instant, f"p1/{name}", MarkerKind.CREATE)
        fixture.storage.create(f"p1/{name}", b"rows")
    delete_orphan_files(load_snapshot(fixture.storage), SETTINGS, fixture.clock.now_ms())
    assert fixture.leftovers() == sorted(f"p1/{name}" for name in names)


def test_nothing_is_deleted_if_the_commit_cannot_be_read() -> None:
    fixture, instant, _ = died_after_commit()
    fixture.storage.replace(f".hoodie/timeline/{instant.file_name}", b"torn")
    before = fixture.leftovers()
    with pytest.warns(RuntimeWarning, match="may be left"):
        delete_orphan_files(load_snapshot(fixture.storage), SETTINGS, fixture.clock.now_ms())
    with pytest.warns(RuntimeWarning, match="may be left"):
        leftovers = find_leftovers(fixture.storage, SETTINGS, fixture.clock)
    assert (leftovers.marked, leftovers.orphans) == ((), ())
    assert fixture.leftovers() == before
