"""Writes whose completed file on the timeline is empty or cut off: rolled back by force."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import count

import pytest

from lakewright.api.table import Table
from lakewright.errors import ConflictError, CorruptError, InvalidError
from lakewright.format.timeline_metadata import parse_rollback, parse_rollback_plan
from lakewright.model.file_group import parse_data_file
from lakewright.model.instant import Action, Instant, State
from lakewright.model.plans import Skip
from lakewright.storage.memory import MemoryStorage
from lakewright.table.rollback import resume_rollbacks
from lakewright.table.savepoint import locked_table, rollback_instant
from lakewright.table.snapshot import load_snapshot
from lakewright.testing.storage import Crash, CrashingStorage
from support.faults import each_crash
from support.soak import sized
from support.tables import NO_SERVICES, Row, WrittenTable, row

pytestmark = pytest.mark.sampled(3)

TIMELINE = ".hoodie/timeline"
DAYS = ("2026-01-01", "2026-01-02")
DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda data: b"",
    "cut in the schema": lambda data: data[:100],
    "cut in the record": lambda data: data[: len(data) - 40],
    "without its last byte": lambda data: data[:-1],
    "zeros": lambda data: bytes(len(data)),
}
COMPACT = {"hoodie.compact.inline.max.delta.commits": "1"}
LOG_COMPACT = {
    "hoodie.log.compaction.enable": "true",
    "hoodie.log.compaction.blocks.threshold": "1",
}
CLUSTER = {"hoodie.clustering.inline.max.commits": "1"}


def ran(result: object) -> None:
    assert not isinstance(result, Skip), result


def upsert(table: WrittenTable) -> None:
    table.upsert([row("k0", 3, "third", DAYS[0]), row("k9", 3, "new", "2026-01-03")])


def delete(table: WrittenTable) -> None:
    table.write("DELETE", [row("k0", 9, day=DAYS[0])])


def overwrite(table: WrittenTable) -> None:
    table.write("INSERT_OVERWRITE", [row("k7", 3, "third", DAYS[0])])


def delete_partition(table: WrittenTable) -> None:
    table.delete_partitions(DAYS[0])


def compaction(table: WrittenTable) -> None:
    ran(table.services(COMPACT).run("compaction"))


def log_compaction(table: WrittenTable) -> None:
    table.upsert([row("k0", 3, "again", DAYS[0])])
    ran(table.services(LOG_COMPACT).run("logcompaction"))


def clustering(table: WrittenTable) -> None:
    ran(table.services(CLUSTER).run("clustering"))


@dataclass(frozen=True)
class Case:
    """The newest action of a table, and of which type the table is."""

    act: Callable[[WrittenTable], None]
    kind: str
    service: bool = False


CASES = {
    "commit": Case(upsert, "COPY_ON_WRITE"),
    "commit of a delete": Case(delete, "COPY_ON_WRITE"),
    "delta commit": Case(upsert, "MERGE_ON_READ"),
    "overwrite": Case(overwrite, "COPY_ON_WRITE"),
    "overwrite, merge on read": Case(overwrite, "MERGE_ON_READ"),
    "deleted partition": Case(delete_partition, "COPY_ON_WRITE"),
    "compaction": Case(compaction, "MERGE_ON_READ", service=True),
    "log compaction": Case(log_compaction, "MERGE_ON_READ", service=True),
    "clustering": Case(clustering, "COPY_ON_WRITE", service=True),
}
each_case = pytest.mark.parametrize("case", CASES.values(), ids=list(CASES))


def made(kind: str) -> WrittenTable:
    table = WrittenTable(options=NO_SERVICES).create(kind)
    table.upsert([row(f"k{n}", 1, "first", DAYS[n % 2]) for n in range(6)])
    table.upsert([row("k0", 2, "second", DAYS[0]), row("k1", 2, "second", DAYS[1])])
    return table


def damaged(
    case: Case, damage: Callable[[bytes], bytes]
) -> tuple[WrittenTable, Instant, list[Row]]:
    """A table whose newest write is damaged, that write, and the rows from before it."""
    table = made(case.kind)
    before = table.rows()
    case.act(table)
    target = newest(table)
    if case.service:
        before = table.rows()
    hurt(table, target, damage)
    return table, target, before


def newest(table: WrittenTable) -> Instant:
    return load_snapshot(table.storage).timeline.completed_writes[-1]


def hurt(table: WrittenTable, instant: Instant, damage: Callable[[bytes], bytes]) -> None:
    path = f"{TIMELINE}/{instant.file_name}"
    table.storage.replace(path, damage(table.storage.read(path)))


def force(table: WrittenTable, target: Instant | str) -> Instant:
    at = target if isinstance(target, str) else target.requested_at
    return table.writer().rollback(at, force=True)


def files(table: WrittenTable) -> dict[str, bytes]:
    return {f.path: table.storage.read(f.path) for f in table.storage.list_tree("")}


def data_files_of(table: WrittenTable, at: str) -> list[str]:
    paths = []
    for path in files(table):
        file = None if path.startswith(".hoodie/") else parse_data_file(path.rpartition("/")[2])
        if file is not None and file.instant == at:
            paths.append(path)
    return paths


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=list(DAMAGES))
@each_case
def test_the_newest_write_is_rolled_back_by_force(
    case: Case, damage: Callable[[bytes], bytes]
) -> None:
    table, target, before = damaged(case, damage)
    at, storage = target.requested_at, table.storage
    with pytest.raises(CorruptError) as error:
        table.writer().rollback(at)
    assert error.value.facts["file"] == f"{TIMELINE}/{target.file_name}"
    assert "force" in error.value.message
    own = data_files_of(table, at)

    rollback = force(table, target)
    assert table.rows() == before
    assert data_files_of(table, at) == []
    assert not [path for path in files(table) if at in path.rpartition("/")[2]]
    metadata = parse_rollback(storage.read(f"{TIMELINE}/{rollback.file_name}"))
    assert (metadata.commits, metadata.files_deleted) == ((at,), len(own))
    assert metadata.instants[0].action == target.action
    plan = parse_rollback_plan(
        storage.read(f"{TIMELINE}/{replace(rollback, state=State.REQUESTED, completed_at=None)}")
    )
    assert (plan.instant.requested_at, plan.instant.action) == (at, target.action)
    assert Table(storage).doctor().findings == ()
    # Called again, it returns the same rollback.
    assert force(table, at) == rollback


@each_case
def test_the_table_lives_on(case: Case) -> None:
    table, target, before = damaged(case, lambda data: b"")
    force(table, target)
    expected = {record["id"]: record["ts"] for record in before}
    for n in range(8):
        table.upsert([row("k2", 10 + n, "on", DAYS[0])])
        expected["k2"] = 10 + n
    if case.kind == "MERGE_ON_READ":
        ran(table.services(COMPACT).run("compaction"))
    ran(table.services({"hoodie.clean.commits.retained": "1"}).run("clean"))
    archived = {"hoodie.keep.min.commits": "2", "hoodie.keep.max.commits": "3"}
    ran(table.services({**archived, "hoodie.clean.commits.retained": "1"}).run("archive"))
    assert {record["id"]: record["ts"] for record in table.rows()} == expected
    assert load_snapshot(table.storage).archived


def test_several_damaged_writes_are_rolled_back_one_after_the_other() -> None:
    for kind in ("COPY_ON_WRITE", "MERGE_ON_READ"):
        table = made(kind)
        states = [table.rows()]
        for act in (overwrite, upsert, delete_partition):
            act(table)
            states.append(table.rows())
        for instant in load_snapshot(table.storage).timeline.completed_writes[-3:]:
            hurt(table, instant, lambda data: b"")
        for _ in range(3):
            force(table, newest(table))
        assert table.rows() == states[0]


def test_one_that_others_build_on_is_refused() -> None:
    table = made("COPY_ON_WRITE")
    first = newest(table)
    upsert(table)
    hurt(table, first, lambda data: b"")
    before = files(table)
    with pytest.raises(InvalidError, match="only the newest") as error:
        force(table, first)
    assert error.value.facts["later"] == [str(newest(table))]
    assert files(table) == before
    # The later one goes without force, or with it, and then the damaged one.
    force(table, newest(table))
    force(table, first)
    assert {record["note"] for record in table.rows()} == {"first"}


def test_one_that_others_build_on_is_not_archived() -> None:
    """Its bytes would leave the timeline, and a copy could not be put in their place."""
    table = made("COPY_ON_WRITE")
    first = newest(table)
    for n in range(8):
        table.upsert([row("k2", 10 + n, "on", DAYS[0])])
    hurt(table, first, lambda data: b"")
    before = files(table)
    archive = {"hoodie.keep.min.commits": "2", "hoodie.keep.max.commits": "3"}
    with pytest.raises(CorruptError, match=first.file_name):
        table.services({**archive, "hoodie.clean.commits.retained": "1"}).run("archive")
    assert files(table) == before


def test_one_that_a_savepoint_holds_is_refused() -> None:
    table = made("COPY_ON_WRITE")
    target = newest(table)
    table.writer().savepoint(target.requested_at, user="", comment="")
    hurt(table, target, lambda data: b"")
    before = files(table)
    with pytest.raises(InvalidError, match="savepoint"):
        force(table, target)
    assert files(table) == before


def test_one_whose_predecessors_were_cleaned_is_refused() -> None:
    table = made("COPY_ON_WRITE")
    upsert(table)
    ran(
        table.services(
            {
                "hoodie.clean.policy": "KEEP_LATEST_FILE_VERSIONS",
                "hoodie.clean.fileversions.retained": "1",
            }
        ).run("clean")
    )
    target = newest(table)
    hurt(table, target, lambda data: b"")
    before = files(table)
    with pytest.raises(InvalidError, match="would lose rows"):
        force(table, target)
    assert files(table) == before


def test_an_overwrite_whose_replaced_files_were_cleaned_is_refused() -> None:
    """No name shows which file groups it replaced: any that was cleaned since may be one."""
    table = made("COPY_ON_WRITE")
    delete_partition(table)
    target = newest(table)
    ran(
        table.services(
            {
                "hoodie.clean.policy": "KEEP_LATEST_FILE_VERSIONS",
                "hoodie.clean.fileversions.retained": "1",
            }
        ).run("clean")
    )
    hurt(table, target, lambda data: b"")
    before = files(table)
    with pytest.raises(InvalidError, match="would lose rows"):
        force(table, target)
    assert files(table) == before


def test_a_compaction_is_rolled_back_under_later_log_files() -> None:
    table = made("MERGE_ON_READ")
    compaction(table)
    target = newest(table)
    table.upsert([row("k0", 5, "later", DAYS[0])])
    before = table.rows()
    hurt(table, target, lambda data: b"")
    force(table, target)
    assert table.rows() == before
    ran(table.services(COMPACT).run("compaction"))
    assert table.rows() == before


def test_a_writer_that_may_still_be_writing_the_file_is_left_alone() -> None:
    table, target, _ = damaged(CASES["commit"], lambda data: b"")
    table.storage.create(f".hoodie/.heartbeat/{target.requested_at}", b"")
    before = files(table)
    with pytest.raises(ConflictError, match="heartbeat"):
        force(table, target)
    assert files(table) == before


def test_force_rolls_back_an_undamaged_write_as_usual() -> None:
    table = made("COPY_ON_WRITE")
    before = table.rows()
    upsert(table)
    force(table, newest(table))
    assert table.rows() == before


def test_what_is_no_write_is_not_rolled_back() -> None:
    table = made("COPY_ON_WRITE")
    upsert(table)
    rollback = force(table, newest(table))
    with pytest.raises(InvalidError, match="only writes and table services"):
        force(table, rollback.requested_at)
    with pytest.raises(InvalidError, match="no such instant"):
        force(table, "20200101000000000")


def is_hidden(table: WrittenTable, target: Instant) -> bool:
    return not table.storage.exists(f"{TIMELINE}/{target.file_name}")


def deaths(
    start: dict[str, bytes], target: Instant, *, after_effect: bool
) -> Iterator[WrittenTable]:
    """The table after a death at each change of a forced rollback, and after the whole of it."""
    for survive in count(step=sized(2, soak=1)):
        table = WrittenTable(storage=MemoryStorage.fresh(start), options=NO_SERVICES)
        table.clock.sleep(1)
        inner = table.storage
        dying = CrashingStorage(inner, survive, after_effect=after_effect)
        table.storage = dying
        with suppress(Crash):
            force(table, target)
        table.storage = inner
        table.clock.sleep(1)
        yield table
        if not dying.crashed:
            return


@each_crash
@each_case
def test_killed_anywhere_a_second_run_repairs(case: Case, after_effect: bool) -> None:
    start, target, before = damaged(case, lambda data: b"")
    points = 0
    for table in deaths(files(start), target, after_effect=after_effect):
        points += 1
        if is_hidden(table, target):
            assert table.rows() == before
        else:
            with pytest.raises(CorruptError, match=target.file_name):
                table.rows()
        force(table, target)
        assert table.rows() == before
        assert data_files_of(table, target.requested_at) == []
        assert not load_snapshot(table.storage).timeline.pending()
        assert len(load_snapshot(table.storage).timeline.completed(Action.ROLLBACK)) == 1
    assert points > sized(2, soak=5)


@each_crash
@each_case
def test_killed_anywhere_the_next_writer_ends_it_or_fails_cleanly(
    case: Case, after_effect: bool
) -> None:
    start, target, before = damaged(case, lambda data: b"")
    ended = 0
    for table in deaths(files(start), target, after_effect=after_effect):
        if not is_hidden(table, target):
            remaining = files(table)
            with pytest.raises(CorruptError, match=target.file_name):
                table.upsert([row("last", 1, "after", "2026-01-09")])
            assert files(table) == remaining
            continue
        table.upsert([row("last", 1, "after", "2026-01-09")])
        ended += 1
        assert [record for record in table.rows() if record["id"] != "last"] == before
        assert data_files_of(table, target.requested_at) == []
        assert not load_snapshot(table.storage).timeline.pending()
    assert ended > sized(1, soak=2)


@each_crash
@each_case
def test_killed_anywhere_a_writer_that_rolls_back_first_ends_it(
    case: Case, after_effect: bool
) -> None:
    """A writer that needs no schema looks for rollbacks before it meets the damaged file."""
    start, target, before = damaged(case, lambda data: b"")
    for table in deaths(files(start), target, after_effect=after_effect):
        begun = any(i.action == "rollback" for i in load_snapshot(table.storage).timeline)
        writer = table.writer().writer()
        with locked_table(writer) as (snapshot, times):
            resume_rollbacks(snapshot, times, writer.clock, by_markers=True)
        if begun:
            assert table.rows() == before
            assert data_files_of(table, target.requested_at) == []


def test_a_rollback_that_was_begun_is_withdrawn_once_others_built_on_its_target() -> None:
    table, target, _ = damaged(CASES["commit"], lambda data: b"")
    dying = CrashingStorage(table.storage, 1, after_effect=True)
    writer = replace(table.writer().writer(), storage=dying)
    with pytest.raises(Crash):
        rollback_instant(writer, target.requested_at, force=True)
    timeline = load_snapshot(table.storage).timeline
    assert timeline.pending(Action.ROLLBACK)
    # Another writer, which does not read the file, has written since.
    later = Instant("20270101000000000", Action.COMMIT, completed_at="20270101000000001")
    first = timeline.completed_writes[0]
    table.storage.create(
        f"{TIMELINE}/{later.file_name}", table.storage.read(f"{TIMELINE}/{first.file_name}")
    )
    writer = table.writer().writer()
    with locked_table(writer) as (snapshot, times):
        resume_rollbacks(snapshot, times, writer.clock, by_markers=True)
    assert not load_snapshot(table.storage).timeline.pending(Action.ROLLBACK)
    assert data_files_of(table, target.requested_at)
