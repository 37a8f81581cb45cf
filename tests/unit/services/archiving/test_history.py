"""Merging the files of history: without the lock, beside other processes that archive."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from lakewright.errors import UnavailableError
from lakewright.format.archived_file import (
    CONTENT,
    ArchivedInstant,
    Selection,
    format_archived_file,
)
from lakewright.format.archived_timeline import (
    VERSION_FILE,
    ArchivedTimelineFile,
    format_version,
    manifest_name,
    parse_manifest_name,
)
from lakewright.services.archiving.history import HistoryWriter, merge_history
from lakewright.services.archiving.planner import ArchivingSettings
from lakewright.storage.base import Storage
from lakewright.storage.memory import MemoryStorage
from lakewright.table.archived_timeline import load_entries, load_manifest
from lakewright.table.transaction import TransactionManager
from lakewright.testing.clock import ManualClock
from lakewright.testing.storage import CountingStorage, Crash, CrashingStorage
from lakewright.testing.table_builder import TableBuilder
from lakewright.write.writer import Commit
from support.concurrency import InterruptedAfter, another_process
from support.faults import each_crash
from support.tables import SCHEMA, TIMELINE, WrittenTable, row

HISTORY = f"{TIMELINE}/history"
FOUR = ArchivingSettings(merge_files=4)
LOCKED = {
    "hoodie.write.concurrency.mode": "optimistic_concurrency_control",
    "hoodie.write.lock.provider": "in_process",
    "hoodie.clean.failed.writes.policy": "LAZY",
}


def entry(number: int) -> ArchivedInstant:
    at = f"202501010000{number:05}"
    return ArchivedInstant(at, f"{at}1", "commit", f"metadata {number}".encode() * 50)


def made(files: int, storage: Storage | None = None) -> Storage:
    """A table with this many files of level 0 in its history, of three instants each."""
    storage = storage or MemoryStorage.fresh()
    TableBuilder(storage, SCHEMA).create()
    writer = HistoryWriter.load(storage, HISTORY)
    for number in range(files):
        writer.add([entry(10 * number + n) for n in range(3)])
    return storage


def writer_of(storage: Storage) -> TransactionManager:
    return TransactionManager.from_options(storage, ManualClock(), LOCKED)


def merge(storage: Storage, settings: ArchivingSettings = FOUR) -> int:
    return merge_history(writer_of(storage), HISTORY, settings)


def content(storage: Storage) -> list[ArchivedInstant]:
    return load_entries(storage, HISTORY, Selection(content=CONTENT))


def levels(storage: Storage) -> list[int]:
    return sorted(file.level for file in load_manifest(storage, HISTORY).files)


def target(storage: Storage) -> str:
    """The name of the file that the next merge writes."""
    files = sorted(load_manifest(storage, HISTORY).files)[:4]
    return ArchivedTimelineFile(files[0].first, files[-1].last, 1).name


def test_a_merge_changes_no_instant_and_keeps_its_sources_for_readers() -> None:
    storage = made(9)
    before, files = content(storage), load_manifest(storage, HISTORY).files
    assert merge(storage) == 2
    assert levels(storage) == [0, 1, 1]
    assert content(storage) == before
    assert {f.name for f in files} <= {file.name for file in storage.list_files(HISTORY)}


def test_other_writers_commit_while_files_are_merged() -> None:
    quiet = {"hoodie.clean.automatic": "false", "hoodie.archive.automatic": "false", **LOCKED}
    table = WrittenTable(MemoryStorage.fresh(), ManualClock(), quiet).create()
    for number in range(20):
        table.upsert([row("a", number, day="d")])
    other = WrittenTable(table.storage, ManualClock(first_id=1000), quiet)
    committed: list[Commit] = []

    def commit() -> None:
        # It waits for the same lock, without end if the merge holds it.
        committed.append(other.upsert([row("b", 1, day="d")]))

    options = {
        "hoodie.keep.min.commits": "2",
        "hoodie.keep.max.commits": "3",
        "hoodie.clean.commits.retained": "1",
        "hoodie.commits.archival.batch": "4",
        "hoodie.timeline.compaction.batch.size": "4",
    }
    interrupted = InterruptedAfter(table.storage, "create", r"/history/\d+_\d+_1", commit)
    archiving = WrittenTable(interrupted, table.clock, quiet)
    assert isinstance(archiving.services(options).run("archive"), Commit)
    assert committed
    assert levels(table.storage) == [0, 1]
    assert [r["id"] for r in table.rows()] == ["a", "b"]


def merged_by_another(storage: Storage) -> None:
    assert merge(storage) == 1


def archived_by_another(storage: Storage) -> None:
    HistoryWriter.load(storage, HISTORY).add([entry(90)])


def swept_by_another(storage: Storage) -> None:
    HistoryWriter.load(storage, HISTORY).delete_unreferenced(1)


def deleted_by_another(storage: Storage) -> None:
    """As real Hudi does, whatever is not in its newest manifests."""
    storage.delete(f"{HISTORY}/{target(storage)}")


def merged_and_swept(storage: Storage) -> None:
    merged_by_another(storage)
    swept_by_another(storage)


def written_over(storage: Storage) -> None:
    """A process that had the same name to write, for other instants."""
    path = f"{HISTORY}/{target(storage)}"
    storage.replace(path, format_archived_file([entry(0), entry(32)]))


# What another process does, and how many merges and which levels there are then.
BESIDE: dict[str, tuple[Callable[[Storage], None], list[int]]] = {
    "merges the same files": (merged_by_another, [1]),
    "archives more": (archived_by_another, [0, 1]),
    "deletes old files that no manifest lists": (swept_by_another, [1]),
    "deletes every file that no manifest lists": (deleted_by_another, [0, 0, 0, 0]),
    "merges the same files, and deletes them": (merged_and_swept, [1]),
    "writes another file of this name": (written_over, [0, 0, 0, 0]),
}
WHEN = {
    "while the merged file is written": ("read_many", r"/history/"),
    "before it is published": ("create", r"/history/\d+_\d+_1"),
}


@pytest.mark.parametrize("when", WHEN.values(), ids=list(WHEN))
@pytest.mark.parametrize(("act", "expected"), BESIDE.values(), ids=list(BESIDE))
def test_nothing_is_lost_if_another_process(
    act: Callable[[Storage], None], expected: list[int], when: tuple[str, str]
) -> None:
    storage = made(4)
    before = content(storage)

    merge(InterruptedAfter(storage, *when, lambda: act(storage)))
    if when[0] == "create":
        assert levels(storage) == expected
    assert [e for e in content(storage) if e != entry(90)] == before
    # What was left is done by the next one.
    merge(storage)
    assert levels(storage) in ([1], [0, 1])
    assert [e for e in content(storage) if e != entry(90)] == before
    HistoryWriter.load(storage, HISTORY).delete_unreferenced(1)
    assert [e for e in content(storage) if e != entry(90)] == before


LEFT_BEHIND: dict[str, Callable[[Storage], bytes]] = {
    "the merged file itself": lambda storage: format_archived_file(content(storage)),
    "a file of other instants": lambda _: format_archived_file([entry(0), entry(32)]),
    "a file that is cut off": lambda storage: format_archived_file(content(storage))[:-9],
}


@pytest.mark.parametrize("data", LEFT_BEHIND.values(), ids=list(LEFT_BEHIND))
def test_a_crashed_merge_has_left(data: Callable[[Storage], bytes]) -> None:
    storage = made(4)
    before = content(storage)
    storage.create(f"{HISTORY}/{target(storage)}", data(storage))
    assert merge(storage) == 1
    assert content(storage) == before
    assert levels(storage) == [1]


def test_a_file_of_the_same_name_in_an_older_manifest_is_not_deleted() -> None:
    """A reader may still have begun with that manifest."""
    storage = made(4)
    before, name = content(storage), target(storage)
    other = format_archived_file([entry(0), entry(32)])
    storage.create(f"{HISTORY}/{name}", other)
    writer = HistoryWriter.load(storage, HISTORY)
    old, current = ArchivedTimelineFile.parse(name, len(other)), writer.manifest
    writer.publish(type(current)((old,)))
    writer.publish(current)
    assert merge(storage) == 0
    assert storage.read(f"{HISTORY}/{name}") == other
    assert content(storage) == before


@each_crash
def test_a_crash_leaves_the_old_files_or_the_merged_one(after_effect: bool) -> None:
    start = {file.path: made(4).read(file.path) for file in made(4).list_tree("")}
    before = content(MemoryStorage.fresh(start))
    outcomes = set()
    for survived in counted(start):
        storage = MemoryStorage.fresh(start)
        with pytest.raises(Crash):
            merge(CrashingStorage(storage, survived, after_effect=after_effect, reads=True))
        outcomes.add(tuple(levels(storage)))
        assert content(storage) == before
        with another_process():
            merge(storage)
        assert content(storage) == before
        archived_by_another(storage)
        assert levels(storage) == [0, 1]
        swept_by_another(storage)
        assert content(storage) == [*before, entry(90)]
    assert outcomes == {(0, 0, 0, 0), (1,)}


def counted(start: dict[str, bytes]) -> Iterator[int]:
    counting = CountingStorage(MemoryStorage.fresh(start))
    assert merge(counting) == 1
    yield from range(sum(counting.calls.values()))


def test_a_lock_that_another_process_holds_leaves_the_merge_to_the_next_archiving() -> None:
    storage = made(4)
    before = content(storage)
    with writer_of(storage).locked():
        assert merge(storage) == 0
    assert levels(storage) == [0, 0, 0, 0]
    assert content(storage) == before
    assert merge(storage) == 1


def test_archiving_goes_on_from_the_newest_manifest() -> None:
    """A process that was paused until it had lost its lock has set the version file back."""
    storage = made(3)
    storage.replace(f"{HISTORY}/{VERSION_FILE}", format_version(1))
    assert len(content(storage)) == 3
    HistoryWriter.load(storage, HISTORY).add([entry(90)])
    assert len(content(storage)) == 3 * 3 + 1


def test_a_manifest_that_is_cut_off_is_passed_over() -> None:
    storage = made(3)
    storage.create(f"{HISTORY}/{manifest_name(4)}", b'{"files": [')
    HistoryWriter.load(storage, HISTORY).add([entry(90)])
    assert len(content(storage)) == 3 * 3 + 1
    names = [file.name for file in storage.list_files(HISTORY)]
    assert max(n for name in names if (n := parse_manifest_name(name))) == 5


def test_two_processes_that_have_lost_their_locks_do_not_both_publish() -> None:
    storage = made(3)
    one, other = (HistoryWriter.load(storage, HISTORY) for _ in range(2))
    one.add([entry(90)])
    with pytest.raises(Exception, match="exists"):
        other.add([entry(91)])
    assert len(content(storage)) == 3 * 3 + 1


def test_without_storage_a_merge_ends_as_if_there_was_none() -> None:
    storage = made(4)

    class Away(CountingStorage):
        def create(self, path: str, data: bytes) -> None:
            raise UnavailableError("no answer", path=path)

    assert merge(Away(storage)) == 0
    assert levels(storage) == [0, 0, 0, 0]
