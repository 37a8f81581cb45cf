"""Leftover files of killed processes: expired ones are deleted, those that may be in use stay."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC
from itertools import count
from pathlib import Path

import pytest

from lakewright.errors import InvalidError
from lakewright.model.file_group import LogFile
from lakewright.model.instant import Action, Instant, State, parse_time
from lakewright.model.timeline import Timeline
from lakewright.storage.base import FileStatus
from lakewright.storage.local import LocalStorage
from lakewright.table.failed_writes import (
    LeftoverFiles,
    TemporaryFiles,
    delete_leftovers,
    delete_orphan_files,
    find_leftovers,
    select_leftovers,
)
from lakewright.table.markers import MarkerKind, create_marker
from lakewright.table.options import HeartbeatSettings
from lakewright.table.snapshot import load_snapshot
from lakewright.testing.storage import Crash, CrashingStorage
from support.tables import OPTIMISTIC, begin_action
from support.transactions import TransactionFixture, archive_instant, write_files

AT, LATER = "20260101120000000", "20260101130000000"
NOON_MS = int(parse_time(AT).timestamp() * 1000)
HOUR_MS = 3_600_000
NOW_MS = NOON_MS + 10 * HOUR_MS
SETTINGS = HeartbeatSettings()
OLD, YOUNG = SETTINGS.expires_after_ms + 1, SETTINGS.expires_after_ms

COMPLETED = Instant(AT, Action.COMMIT, completed_at=LATER)
PENDING = Instant(AT, Action.COMMIT, State.INFLIGHT)
HEARTBEAT = f".hoodie/.heartbeat/{AT}"
MARKER = f".hoodie/.temp/{AT}/p1/f.parquet.marker.CREATE"
TEMPORARY = "p1/.lw-0123456789abcdef.tmp"


@dataclass(frozen=True)
class Case:
    """Files by their age, on a timeline of some instants; `dead` are those that go."""

    ages: Mapping[str, int]
    instants: tuple[Instant, ...] = ()
    dead: tuple[str, ...] = ()
    archived: tuple[str, ...] = ()
    empty: tuple[str, ...] = ()


CASES = {
    "a heartbeat of no write at all goes": Case({HEARTBEAT: OLD}, dead=(HEARTBEAT,)),
    "a heartbeat of a completed write goes": Case({HEARTBEAT: OLD}, (COMPLETED,), (HEARTBEAT,)),
    "a heartbeat of a pending write stays, however old": Case({HEARTBEAT: OLD}, (PENDING,)),
    "a heartbeat of a write that is about to begin stays": Case({HEARTBEAT: YOUNG}),
    "a heartbeat from the future stays": Case({HEARTBEAT: -HOUR_MS}),
    "other files in the folder of heartbeats stay": Case({".hoodie/.heartbeat/notes": OLD}),
    "markers of a completed write go": Case({MARKER: OLD}, (COMPLETED,), (AT,)),
    "an empty folder of a completed write goes": Case({}, (COMPLETED,), (AT,), empty=(AT,)),
    "markers of an archived write go": Case({MARKER: OLD}, (), (AT,), archived=(AT,)),
    "markers of a pending write stay": Case({MARKER: OLD}, (PENDING,)),
    "markers of a write that is not on the timeline stay: they name files": Case({MARKER: OLD}),
    "markers that a task has just made for a completed write stay": Case(
        {MARKER: OLD, MARKER.replace("f.p", "g.p"): YOUNG}, (COMPLETED,)
    ),
    "a temporary file goes": Case({TEMPORARY: OLD}, (COMPLETED,), (TEMPORARY,)),
    "a temporary file that may be written to stays": Case({TEMPORARY: YOUNG}),
    "a temporary file that a pending write may have made stays": Case(
        {TEMPORARY: 10 * HOUR_MS}, (PENDING,)
    ),
    "a temporary file from long before all pending writes goes": Case(
        {TEMPORARY: 13 * HOUR_MS}, (PENDING,), (TEMPORARY,)
    ),
    "where a pending write has no date temporary files stay": Case(
        {TEMPORARY: 13 * HOUR_MS}, (Instant("2" + "9" * 16, Action.COMMIT, State.INFLIGHT),)
    ),
}


@pytest.mark.parametrize("case", CASES.values(), ids=list(CASES))
def test_leftover_files(case: Case) -> None:
    files = [FileStatus(path, 0, NOW_MS - age) for path, age in case.ages.items()]
    traces = TemporaryFiles(
        temporary=tuple(f for f in files if f.name.endswith(".tmp")),
        heartbeats=tuple(f for f in files if "heartbeat" in f.path),
        markers=tuple(f for f in files if "marker" in f.path),
        marked=(*case.empty, *{f.path.split("/")[2] for f in files if "marker" in f.path}),
    )
    timeline = Timeline.from_instants(case.instants)
    leftovers = select_leftovers(
        traces, timeline, NOW_MS, SETTINGS, archived=case.archived, zone=UTC
    )
    assert (*leftovers.files, *leftovers.marked) == case.dead


def test_without_tolerance_nothing_is_surely_dead() -> None:
    settings = HeartbeatSettings(interval_ms=0)
    with pytest.raises(InvalidError, match="above 0"):
        select_leftovers(TemporaryFiles(), Timeline(), NOW_MS, settings, zone=UTC)


def complete_one(fixture: TransactionFixture, survive: int, *, after_effect: bool) -> bool:
    """Write until the process is killed; whether it was."""
    storage = CrashingStorage(fixture.storage, survive, after_effect=after_effect)
    try:
        transaction = begin_action(fixture.writer(OPTIMISTIC, storage), "deltacommit")
        transaction.commit(write_files(transaction, "f1", "f2"))
    except Crash:
        return True
    return False


@pytest.mark.parametrize("after_effect", [False, True])
def test_after_a_death_anywhere_the_next_writer_and_a_sweep_leave_nothing(
    after_effect: bool,
) -> None:
    for survive in count():
        fixture = TransactionFixture()
        killed = complete_one(fixture, survive, after_effect=after_effect)
        fixture.clock.advance(600_000)
        fixture.storage.delete(".hoodie/lock")
        # While its write may be pending nothing of it is touched.
        before = fixture.leftovers()
        pending = load_snapshot(fixture.storage).timeline.pending()
        clean(fixture)
        assert not pending or fixture.leftovers() == before
        transaction = begin_action(fixture.writer(OPTIMISTIC), "deltacommit")
        transaction.commit(write_files(transaction, "f3"))
        fixture.clock.advance(600_000)
        clean(fixture)
        assert fixture.leftovers() == data_of(fixture)
        if not killed:
            assert survive > 10
            return


def clean(fixture: TransactionFixture, storage: CrashingStorage | None = None) -> None:
    snapshot = load_snapshot(storage or fixture.storage)
    leftovers = find_leftovers(snapshot.storage, SETTINGS, fixture.clock)
    delete_leftovers(snapshot.storage, leftovers)
    if leftovers.orphans:
        delete_orphan_files(snapshot, SETTINGS, fixture.clock.now_ms(), leftovers.orphans)


def data_of(fixture: TransactionFixture) -> list[str]:
    """The files that the commits on the timeline list."""
    snapshot = load_snapshot(fixture.storage)
    commits = snapshot.commits(snapshot.timeline.completed_writes)
    return sorted(stat.path or "" for commit in commits for stat in commit.write_stats())


def test_a_deletion_that_is_killed_anywhere_is_completed_by_the_next() -> None:
    for survive in count():
        fixture = TransactionFixture()
        begun = begin_action(fixture.writer(), "deltacommit")
        begun.commit(write_files(begun, "f1", "f2"))
        for at in ("20200101000000000", begun.instant):
            fixture.storage.create(f".hoodie/.heartbeat/{at}", b"")
        for file_id in ("f1", "f2"):
            name = LogFile(file_id, begun.instant).name
            create_marker(fixture.storage, begun.instant, f"p1/{name}", MarkerKind.CREATE)
        fixture.clock.advance(600_000)
        killed = True
        try:
            clean(fixture, CrashingStorage(fixture.storage, survive))
            killed = False
        except Crash:
            clean(fixture)
        assert fixture.leftovers() == data_of(fixture)
        leftovers = find_leftovers(fixture.storage, SETTINGS, fixture.clock)
        assert leftovers == LeftoverFiles()
        if not killed:
            assert survive > 3
            return


def test_markers_of_an_archived_write_are_leftovers_by_the_archived_timeline() -> None:
    fixture = TransactionFixture()
    old, newer = (begin_action(fixture.writer(OPTIMISTIC), "deltacommit") for _ in range(2))
    instant = old.commit(write_files(old, "f1"))
    newer.commit(write_files(newer, "f2"))
    name = LogFile("f1", instant.requested_at).name
    create_marker(fixture.storage, instant.requested_at, f"p1/{name}", MarkerKind.CREATE)
    archive_instant(fixture, instant)
    fixture.clock.advance(600_000)
    leftovers = find_leftovers(fixture.storage, SETTINGS, fixture.clock)
    assert leftovers.marked == (instant.requested_at,)


def test_temporary_files_on_a_disk_are_found_in_every_folder(tmp_path: Path) -> None:
    storage = LocalStorage(str(tmp_path))
    names = ["p1/deep/.lw-0.tmp", ".hoodie/timeline/.lw-1.tmp", ".lw-2.tmp"]
    for name in [*names, "p1/.lw-notes", "p1/data.tmp"]:
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(b"")
        os.utime(file, (NOON_MS / 1000, NOON_MS / 1000))
    assert sorted(f.path for f in storage.list_temporary()) == sorted(names)
    leftovers = select_leftovers(
        TemporaryFiles.load(storage), Timeline(), NOW_MS, SETTINGS, zone=UTC
    )
    delete_leftovers(storage, leftovers)
    assert storage.list_temporary() == []
    assert (tmp_path / "p1/.lw-notes").exists()
    assert (tmp_path / "p1/data.tmp").exists()
