"""A writer that crashes at any storage call: readers see the old table or the new one.

The next writer rolls the failed write back.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from lakewright.client.write_client import WriteClient
from lakewright.model.file_group import parse_data_file
from lakewright.storage.memory import MemoryStorage
from lakewright.table.failed_writes import delete_orphan_files
from lakewright.table.options import HeartbeatSettings
from lakewright.table.snapshot import load_snapshot
from lakewright.testing.clock import ManualClock
from support.faults import RemoteInMemory, crash_points
from support.soak import sized
from support.tables import Row, WrittenTable, row

pytestmark = pytest.mark.sampled(3)

DAYS = ("2026-01-01", "2026-01-02")
FIRST = [row(f"k{n}", 1, "first", DAYS[n % 2]) for n in range(6)]
CHANGED = [row("k0", 2, "second", DAYS[0]), row("k9", 2, "new", DAYS[1])]
FOURTH_DAY = "2026-01-04"
LONG_AFTER_MS = 10**15


def upsert(table: WrittenTable) -> object:
    return table.upsert([*CHANGED, row("k8", 2, "new", FOURTH_DAY)])


def upsert_handed_on(table: WrittenTable) -> object:
    table.options = {**table.options, "lakewright.write.hand.on.bytes": "0"}
    return upsert(table)


def delete(table: WrittenTable) -> object:
    return table.write("DELETE", [row("k0", day=DAYS[0]), row("k1", day=DAYS[1])])


def overwrite(table: WrittenTable) -> object:
    return table.write("INSERT_OVERWRITE", CHANGED)


def delete_partitions(table: WrittenTable) -> object:
    return table.delete_partitions(DAYS[0])


def bulk_insert(table: WrittenTable) -> object:
    return table.write("BULK_INSERT", [row("k7", 1, "bulk", day) for day in (*DAYS, FOURTH_DAY)])


def rollback(table: WrittenTable) -> object:
    newest = load_snapshot(table.storage).timeline.completed_writes[-1]
    return WriteClient.create(table.storage, {}, table.clock).rollback(newest.requested_at)


OPERATIONS: dict[str, Callable[[WrittenTable], object]] = {
    "upsert": upsert,
    "upsert, its work handed on": upsert_handed_on,
    "delete": delete,
    "insert_overwrite": overwrite,
    "delete_partitions": delete_partitions,
    "bulk_insert": bulk_insert,
    "rollback": rollback,
}
TABLES = {
    "copy on write": ("COPY_ON_WRITE", {}),
    "copy on write, changes logged": ("COPY_ON_WRITE", {"hoodie.table.cdc.enabled": "true"}),
    "merge on read": ("MERGE_ON_READ", {}),
    "merge on read, event times tracked": (
        "MERGE_ON_READ",
        {
            "hoodie.payload.event.time.field": "ts",
            "hoodie.write.track.event.time.watermark": "true",
        },
    ),
    "merge on read, buckets": (
        "MERGE_ON_READ",
        {"hoodie.index.type": "BUCKET", "hoodie.bucket.index.num.buckets": "2"},
    ),
}


# Upserts and deletes cover what a table stores in addition to its rows.
PLAIN = ("copy on write", "merge on read")
CASES = [
    pytest.param(TABLES[name], operation, id=f"{operation}: {name}")
    for name in TABLES
    for operation in sized(OPERATIONS if name in PLAIN else ("upsert", "delete"), soak=OPERATIONS)
]


@pytest.fixture(scope="module")
def start(request: pytest.FixtureRequest) -> dict[str, bytes]:
    """The files of a table with two commits."""
    table_type, options = request.param
    table = WrittenTable().create(table_type, options=options)
    table.upsert(FIRST)
    table.upsert([row("k1", 2, "second", DAYS[1])])
    return files_of(table)


def files_of(table: WrittenTable) -> dict[str, bytes]:
    return {file.path: table.storage.read(file.path) for file in table.storage.list_tree("")}


def fresh(start: dict[str, bytes]) -> WrittenTable:
    # Time and ids of the new process go on from where the table is: threads take ids in any order,
    # and a file group of the table must not get a second file with the id of another.
    table = WrittenTable(storage=MemoryStorage.fresh(start), clock=ManualClock(first_id=1000))
    table.clock.sleep(1)
    return table


@pytest.mark.parametrize(("start", "operation"), CASES, indirect=["start"])
def test_old_or_new_and_the_next_writer_repairs(start: dict[str, bytes], operation: str) -> None:
    check_every_crash(partial(fresh, start), operation)


@pytest.mark.parametrize(
    ("start", "operation"),
    [
        pytest.param(TABLES[name], operation, id=f"{operation}: {name}")
        for name in PLAIN
        for operation in ("upsert", "upsert, its work handed on", "insert_overwrite")
    ],
    indirect=["start"],
)
def test_old_or_new_where_partitions_are_written_at_once(
    start: dict[str, bytes], operation: str
) -> None:
    def remote() -> WrittenTable:
        table = fresh(start)
        table.storage = RemoteInMemory(table.storage)
        return table

    check_every_crash(remote, operation)


def check_every_crash(fresh: Callable[[], WrittenTable], operation: str) -> None:
    run = OPERATIONS[operation]
    old = fresh().rows()
    complete = fresh()
    run(complete)
    new = complete.rows()
    reads: list[list[Row]] = []
    for _, table in crash_points(fresh, run):
        rows_before = table.rows()
        assert rows_before in (old, new)
        reads.append(rows_before)
        table.clock.sleep(1)
        table.upsert([row("last", 1, "after", "2026-01-03")])
        rows = [record for record in table.rows() if record["id"] != "last"]
        # A rollback that had begun is ended by the next writer; nothing else goes on by itself.
        assert rows == rows_before or (operation == "rollback" and rows == new)
        assert_no_leftovers(table)
    assert reads[0] == old
    assert reads[-1] == new


def assert_no_leftovers(table: WrittenTable) -> None:
    """Every data file belongs to a completed write, and nothing is pending."""
    snapshot = load_snapshot(table.storage)
    assert not snapshot.timeline.pending()
    instants = {i.requested_at for i in snapshot.timeline.completed_writes}
    paths = [file.path for file in table.storage.list_tree("")]
    for path in paths:
        file = None if path.startswith(".hoodie/") else parse_data_file(path.rpartition("/")[2])
        assert file is None or file.instant in instants, path
    # Tasks of the dead writer may still be running: its markers go once they are old.
    delete_orphan_files(snapshot, HeartbeatSettings(), LONG_AFTER_MS)
    assert list(table.storage.list_tree(".hoodie/.temp")) == []
