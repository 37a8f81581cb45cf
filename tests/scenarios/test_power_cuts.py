"""The power fails at any call to the disk: the table holds all that was reported as done.

What was not synced is gone, cut off, or there although earlier changes are not. A write that was
not reported is there as a whole or not at all, and the next writer goes on.
"""

from __future__ import annotations

import os
import random
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from lakewright.client.write_client import WriteClient
from lakewright.model.file_group import parse_data_file
from lakewright.model.ttl import ENABLED, POLICIES, RUN_INLINE
from lakewright.storage.base import is_temporary
from lakewright.storage.local import LocalStorage
from lakewright.table.properties import update_properties
from lakewright.table.snapshot import load_snapshot
from lakewright.testing.clock import ManualClock
from lakewright.testing.power_cut import RecordedDisk, write_files
from support.soak import sized
from support.tables import NO_SERVICES, Row, WrittenTable, row

pytestmark = pytest.mark.sampled(3)

DAYS = ("2026-01-01", "2026-01-02")
NEW_DAY = "2026-01-04"
CHANGED = [row("k0", 5, "changed", DAYS[0]), row("k8", 5, "new", NEW_DAY)]


State = tuple[list[Row], frozenset[str]]


def state(table: WrittenTable) -> State:
    """The rows of a table, and the writes that its savepoints hold."""
    return table.rows(), load_snapshot(table.storage).timeline.savepointed


def with_writes(kind: str) -> WrittenTable:
    table = WrittenTable(options=NO_SERVICES).create(kind)
    table.upsert([row(f"k{n}", 1, "first", DAYS[n % 2]) for n in range(6)])
    table.upsert([row("k0", 2, "second", DAYS[0]), row("k1", 2, "second", DAYS[1])])
    table.write("DELETE", [row("k2", day=DAYS[0])])
    table.upsert([row("k0", 3, "third", DAYS[0])])
    return table


def with_savepoint(kind: str, later: int = 2) -> WrittenTable:
    table = with_writes(kind)
    savepoint(table)
    writes = ([row("k0", 4, "fourth", DAYS[0]), row("k1", 4, "fourth", DAYS[1])], [row("k9")])
    for rows in writes[:later]:
        table.upsert(rows)
    return table


def while_restored(kind: str) -> list[State]:
    """Readers see the table as it was after one of the writes that are being rolled back."""
    return [state(with_savepoint(kind, later)) for later in range(3)]


def with_small_files(kind: str) -> WrittenTable:
    table = WrittenTable(options=NO_SERVICES).create(kind)
    for n in range(3):
        table.write("BULK_INSERT", [row(f"k{n}", 1, "first", day) for day in DAYS])
    return table


def with_old_versions(kind: str) -> WrittenTable:
    table = WrittenTable(options=NO_SERVICES).create(kind)
    for ts in range(1, 6):
        table.upsert([row("k0", ts, f"at {ts}", day) for day in DAYS])
    table.delete_partitions(DAYS[1])
    for ts in (9, 10, 11):
        table.upsert([row("k0", ts, "newest", DAYS[0])])
    return table


def with_metadata_table(kind: str) -> WrittenTable:
    """A table whose metadata table has to be dropped before anything is written."""
    table = with_writes(kind)
    trusted = {"hoodie.table.metadata.partitions": "files"}
    update_properties(table.storage, lambda old: {**old, **trusted})
    for name in ("timeline/1.commit", "hoodie.properties"):
        table.storage.create(f".hoodie/metadata/.hoodie/{name}", b"of the metadata table")
    return table


CLEANED = {"hoodie.clean.commits.retained": "1"}
ARCHIVED = {**CLEANED, "hoodie.keep.min.commits": "2", "hoodie.keep.max.commits": "3"}


def with_cleaned_versions(kind: str) -> WrittenTable:
    table = with_old_versions(kind)
    assert table.services(CLEANED).run("clean")
    return table


def newest(table: WrittenTable) -> str:
    return load_snapshot(table.storage).timeline.completed_writes[-1].requested_at


def undoing(table: WrittenTable) -> WriteClient:
    return WriteClient.create(table.storage, {}, table.clock)


def savepoint(table: WrittenTable) -> object:
    return undoing(table).savepoint(newest(table), user="", comment="")


def delete_savepoint(table: WrittenTable) -> None:
    (saved,) = load_snapshot(table.storage).timeline.savepointed
    undoing(table).delete_savepoint(saved)


def expire(table: WrittenTable) -> object:
    table.clock.sleep(30 * 86_400)
    return table.services().run("ttl")


def with_ttl(kind: str) -> WrittenTable:
    week = '[{"spec":"*","level":"PARTITION","units":"DAYS","value":7}]'
    stored = {ENABLED: "true", POLICIES: week, RUN_INLINE: "false"}
    table = WrittenTable(options=NO_SERVICES).create(kind, options=stored)
    table.upsert([row(f"k{n}", 1, "first", DAYS[n % 2]) for n in range(4)])
    table.upsert([row("k0", 2, "second", DAYS[0])])
    return table


def restore(table: WrittenTable) -> object:
    (saved,) = load_snapshot(table.storage).timeline.savepointed
    return undoing(table).restore(saved)


@dataclass(frozen=True)
class Operation:
    """An operation on a table, and what it needs beforehand.

    A service that was interrupted is run `again`, and so is what only its user can go on with.
    `between` are the states that readers may see on the way.
    """

    run: Callable[[WrittenTable], object]
    make: Callable[[str], WrittenTable] = with_writes
    kinds: tuple[str, ...] = ("COPY_ON_WRITE", "MERGE_ON_READ")
    again: Callable[[WrittenTable], object] = lambda table: None
    between: Callable[[str], list[State]] = lambda kind: []


def of_service(
    name: str, options: Mapping[str, str], make: Callable[[str], WrittenTable], *kinds: str
) -> Operation:
    def run(table: WrittenTable) -> object:
        return table.services(options).run(name)

    def again(table: WrittenTable) -> None:
        for instant in load_snapshot(table.storage).timeline.pending():
            if instant.action != "rollback":
                table.services(options).execute(instant.requested_at)
        run(table)

    return Operation(run, make, kinds or ("COPY_ON_WRITE", "MERGE_ON_READ"), again)


OPERATIONS = {
    "insert": Operation(lambda table: table.write("INSERT", [row("k9", 1, "new", NEW_DAY)])),
    "bulk_insert": Operation(
        lambda table: table.write("BULK_INSERT", [row("k7", 1, "bulk", day) for day in DAYS])
    ),
    "upsert": Operation(lambda table: table.upsert(CHANGED)),
    "upsert, its work handed on": Operation(
        lambda table: table.upsert(CHANGED, {"lakewright.write.hand.on.bytes": "0"})
    ),
    "upsert, a metadata table dropped": Operation(
        lambda table: table.upsert(CHANGED), with_metadata_table
    ),
    "delete": Operation(lambda table: table.write("DELETE", [row("k0", day=DAYS[0])])),
    "insert_overwrite": Operation(lambda table: table.write("INSERT_OVERWRITE", CHANGED)),
    "delete_partitions": Operation(lambda table: table.delete_partitions(DAYS[0])),
    "rollback": Operation(lambda table: undoing(table).rollback(newest(table))),
    "savepoint": Operation(savepoint),
    "delete savepoint": Operation(delete_savepoint, with_savepoint),
    "restore": Operation(restore, with_savepoint, again=restore, between=while_restored),
    "ttl": Operation(expire, with_ttl),
    "compaction": of_service(
        "compaction",
        {"hoodie.compact.inline.max.delta.commits": "1"},
        with_writes,
        "MERGE_ON_READ",
    ),
    "log compaction": of_service(
        "logcompaction",
        {"hoodie.log.compaction.blocks.threshold": "2"},
        with_writes,
        "MERGE_ON_READ",
    ),
    "clustering": of_service("clustering", {}, with_small_files),
    "clean": of_service("clean", CLEANED, with_old_versions),
    "archive": of_service("archive", ARCHIVED, with_cleaned_versions),
}
CASES = {
    f"{name}, {kind.lower()}": (operation, kind)
    for name, operation in OPERATIONS.items()
    for kind in operation.kinds
}


def at(folder: Path, files: Mapping[str, bytes], **storage: object) -> WrittenTable:
    """A table of the files, for another process than the one that wrote them."""
    write_files(folder, files)
    clock = ManualClock(first_id=1000)
    clock.sleep(3600)
    return WrittenTable(
        storage=LocalStorage(str(folder), **storage),  # type: ignore[arg-type]
        options=NO_SERVICES,
        clock=clock,
    )


@dataclass
class RecordedOperation:
    """A recorded operation, and the states that a power cut during it may leave."""

    operation: Operation
    disk: RecordedDisk
    allowed: list[State]
    new: State

    @classmethod
    def of(cls, operation: Operation, kind: str, folder: Path) -> RecordedOperation:
        made = operation.make(kind)
        start = {f.path: made.storage.read(f.path) for f in made.storage.list_tree("")}
        table = at(folder, start)
        disk = RecordedDisk(folder)
        table.storage = LocalStorage(str(folder), disk=disk)
        old = state(table)
        operation.run(table)
        new = state(table)
        return cls(operation, disk, [old, new, *operation.between(kind)], new)

    def cuts(self, more: int) -> Iterator[PowerCut]:
        """The states that a power cut may leave, each once; those after the end first."""
        chance = random.Random(19)
        hashes: set[int] = set()
        for calls in range(len(self.disk), -1, -1):
            for files in self.disk.after(calls).outcomes(chance, more):
                shown = {p: data for p, data in files.items() if not is_temporary(p.split("/")[-1])}
                mark = hash(frozenset(shown.items()))
                if mark not in hashes:
                    hashes.add(mark)
                    yield PowerCut(calls, calls == len(self.disk), files)


@dataclass(frozen=True)
class PowerCut:
    """The files after a power cut, and whether the operation had been reported as done."""

    calls: int
    reported: bool
    files: dict[str, bytes]


def some(cuts: list[PowerCut]) -> list[PowerCut]:
    """A few of them in a check, from all parts of the operation; all in a soak run."""
    most = sized(3, soak=len(cuts))
    step = max(1, -(-len(cuts) // most))
    return cuts[::step]


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A folder in memory, where there is one: hundreds of tables are made and deleted here."""
    memory = Path("/dev/shm")
    if not os.access(memory, os.W_OK):
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(prefix="lakewright-", dir=memory) as made:
        yield Path(made)


@pytest.mark.parametrize(("operation", "kind"), CASES.values(), ids=list(CASES))
def test_all_that_was_reported_is_there_and_the_next_writer_goes_on(
    operation: Operation, kind: str, folder: Path
) -> None:
    recorded = RecordedOperation.of(operation, kind, folder / "live")
    cuts = [*recorded.cuts(sized(0, soak=10))]
    assert [cut.reported for cut in cuts[:1]] == [True]
    assert len(cuts) >= 3
    for cut in some(cuts):
        table = at(folder / "cut", cut.files, durable=False)
        try:
            check(recorded, table, reported=cut.reported)
        except BaseException as error:
            error.add_note(f"the power cut after {cut.calls} of {len(recorded.disk)} calls")
            raise
        shutil.rmtree(folder / "cut")


def test_a_new_table_is_there_with_all_folders_above_it(folder: Path) -> None:
    disk = RecordedDisk(folder)
    table = WrittenTable(storage=LocalStorage(f"{folder}/lake/new/t", disk=disk)).create()
    created = len(disk)
    table.upsert([row("k0")])
    for calls, rows in ((created, []), (len(disk), [row("k0")])):
        for files in disk.after(calls).outcomes(random.Random(19), more=5):
            restored = at(folder / "cut", files, durable=False)
            restored.storage = LocalStorage(f"{folder}/cut/lake/new/t", durable=False)
            # A table without commits has no schema that could be read.
            assert not rows or restored.rows() == rows
            restored.upsert([row("last")])
            assert restored.rows() == [*rows, row("last")]
            shutil.rmtree(folder / "cut")


@pytest.mark.parametrize("kind", ["COPY_ON_WRITE", "MERGE_ON_READ"])
def test_a_marker_that_is_lost_does_not_keep_its_file_in_the_table(kind: str, folder: Path) -> None:
    recorded = RecordedOperation.of(OPERATIONS["upsert"], kind, folder / "live")
    disk = recorded.disk
    # The last moment at which the write is pending, and nothing of it was synced one by one.
    calls = max(n for n in range(len(disk)) if len(unmarked(disk, n)) > 0)
    for files in unmarked(disk, calls):
        table = at(folder / "cut", files, durable=False)
        check(recorded, table, reported=False)
        shutil.rmtree(folder / "cut")


def unmarked(disk: RecordedDisk, calls: int) -> list[dict[str, bytes]]:
    """The files where one marker of a pending write is missing, and another is there."""
    cut = disk.after(calls)
    outcomes = []
    for number in range(cut.unsynced_count):
        files = cut.without(number)
        marked = {
            path.split("/", 3)[3].partition(".marker.")[0]
            for path in files
            if path.startswith(".hoodie/.temp/")
        }
        instants = {path.split("/")[2] for path in files if path.startswith(".hoodie/.temp/")}
        written = {path for path in files if is_of(path, instants)}
        completed = tuple(f".hoodie/timeline/{instant}_" for instant in instants)
        pending = not any(path.startswith(completed) for path in files)
        if marked and written - marked and pending:
            outcomes.append(files)
    return outcomes


def is_of(path: str, instants: set[str]) -> bool:
    data = None if path.startswith(".hoodie/") else parse_data_file(path.rpartition("/")[2])
    return data is not None and data.instant in instants


def check(recorded: RecordedOperation, table: WrittenTable, *, reported: bool) -> None:
    recovered = state(table)
    assert recovered in ([recorded.new] if reported else recorded.allowed)
    recorded.operation.again(table)
    table.upsert([row("last", 1, "after", "2026-01-03")])
    rows, saved = state(table)
    # A rollback that had begun is ended by the next writer; nothing else goes on by itself.
    assert ([record for record in rows if record["id"] != "last"], saved) in (
        recovered,
        recorded.new,
    )
    require_whole(table)


def require_whole(table: WrittenTable) -> None:
    """Every data file belongs to a completed write; no write, service or rollback is pending."""
    snapshot = load_snapshot(table.storage)
    # A savepoint that was not reported holds nothing, and is made by asking for it again.
    assert {i.action for i in snapshot.timeline.pending()} <= {"savepoint"}
    for file in table.storage.list_tree(""):
        data = None if file.path.startswith(".hoodie/") else parse_data_file(file.name)
        assert data is None or snapshot.timeline.is_committed(data.instant), file.path
