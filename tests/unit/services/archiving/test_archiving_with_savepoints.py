"""Archiving of a table with savepoints: archived writes stay part of the table."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import count

import pytest

from lakewright.errors import InvalidError
from lakewright.model.instant import Action
from lakewright.table.archived_timeline import archived_times_in
from lakewright.table.savepoint import delete_savepoint_locked
from lakewright.table.snapshot import load_snapshot
from lakewright.testing.storage import Crash, CrashingStorage
from lakewright.write.writer import Commit
from support.tables import NO_SERVICES, WrittenTable, row

QUIET = NO_SERVICES
FEW = {
    "hoodie.keep.min.commits": "1",
    "hoodie.keep.max.commits": "2",
    "hoodie.clean.commits.retained": "1",
}
BEYOND = {**FEW, "hoodie.archive.beyond.savepoint": "true"}
VERSIONS = {**BEYOND, "hoodie.clean.policy": "KEEP_LATEST_FILE_VERSIONS"}


def written(writes: int, *saved: int) -> tuple[WrittenTable, list[Commit]]:
    """A table with one row of each commit, some of which are saved."""
    table = WrittenTable(options=QUIET).create()
    commits = [table.upsert([row(f"k{n}", day=f"d{n}")]) for n in range(writes)]
    for number in saved:
        table.writer().savepoint(commits[number].instant, user="", comment="")
    return table, commits


ALONE = {
    "the newest commit stays when versions are counted": ((1,), VERSIONS),
    "a commit that is not saved stays when the newest is": ((1, 7), BEYOND),
}


@pytest.mark.parametrize(("saved", "options"), ALONE.values(), ids=list(ALONE))
def test_archiving_alone(saved: tuple[int, ...], options: dict[str, str]) -> None:
    table, _ = written(8, *saved)
    before = table.rows()
    assert isinstance(table.services(options).run("archive"), Commit)
    assert load_snapshot(table.storage).archived
    assert table.rows() == before


def save(table: WrittenTable, commits: list[Commit]) -> None:
    table.writer().savepoint(commits[-1].instant, user="", comment="")


def roll_back(table: WrittenTable, commits: list[Commit]) -> None:
    table.writer().rollback(commits[-1].instant)


def restore(table: WrittenTable, commits: list[Commit]) -> None:
    table.writer().restore(commits[6].instant)


REFUSED: dict[str, tuple[tuple[int, ...], Callable[[WrittenTable, list[Commit]], None]]] = {
    "the last commit that is not saved is not saved": ((1,), save),
    "the last commit that is not saved is not rolled back": ((1,), roll_back),
    "commits without a savepoint are not rolled back": ((1, 6), restore),
}


@pytest.mark.parametrize(("saved", "act"), REFUSED.values(), ids=list(REFUSED))
def test_refused_while_later_writes_are_archived(
    saved: tuple[int, ...], act: Callable[[WrittenTable, list[Commit]], None]
) -> None:
    table, commits = written(8, *saved)
    before = table.rows()
    table.services(BEYOND).run("archive")
    with pytest.raises(InvalidError, match="archived ones for uncommitted"):
        act(table, commits)
    assert table.rows() == before
    table.upsert([row("k3", ts=2, day="d3")])
    assert len(table.rows()) == len(before)


def died_before_take_off(*saved: int) -> tuple[WrittenTable, list[Commit]]:
    """History has instants that are all on the timeline still."""
    table, commits = written(8, *saved)
    for survive in count():
        storage = CrashingStorage(table.storage, survive)
        with pytest.raises(Crash):
            replace(table, storage=storage).services(BEYOND).run("archive")
        if archived_times_in(table.storage, ".hoodie/timeline/history", ""):
            break
    return table, commits


def test_what_history_has_is_neither_saved_nor_rolled_back() -> None:
    table, commits = died_before_take_off()
    assert len(load_snapshot(table.storage).timeline.completed_writes) == 8
    with pytest.raises(InvalidError, match="save a later write"):
        table.writer().savepoint(commits[1].instant, user="", comment="")
    table.writer().savepoint(commits[-1].instant, user="", comment="")
    delete_savepoint_locked(load_snapshot(table.storage), commits[-1].instant)
    table.writer().rollback(commits[-1].instant)
    with pytest.raises(InvalidError, match="in the archived timeline already"):
        table.writer().rollback(commits[-2].instant)
    assert [record["id"] for record in table.rows()] == [f"k{n}" for n in range(7)]


def test_what_history_has_is_not_restored_away() -> None:
    table, commits = died_before_take_off(1)
    before = table.rows()
    with pytest.raises(InvalidError, match="were archived"):
        table.writer().restore(commits[1].instant)
    assert table.rows() == before


def test_a_cleaner_that_keeps_more_than_the_timeline_holds_goes_on() -> None:
    options = {"hoodie.keep.min.commits": "3", "hoodie.keep.max.commits": "4"}
    table = WrittenTable(options={**options, "hoodie.clean.commits.retained": "6"}).create()
    for number in range(20):
        table.upsert([row("a", number, day="d")])
    timeline = load_snapshot(table.storage).timeline
    assert timeline.completed(Action.CLEAN)
    assert len(timeline.completed_writes) == 6
    bases = [f for f in table.storage.list_files("d") if f.name.endswith(".parquet")]
    assert len(bases) == 7
