"""A small upsert that is cleaned and archived inline costs the same after a year as after a day."""

from __future__ import annotations

from lakewright.format.archived_file import ArchivedInstant, format_archived_file
from lakewright.format.archived_timeline import (
    VERSION_FILE,
    ArchivedTimelineFile,
    Manifest,
    archived_file_of,
    format_manifest,
    format_version,
    manifest_name,
)
from lakewright.format.timeline_metadata import format_commit
from lakewright.model.commit_metadata import CommitMetadata
from lakewright.model.instant import Action
from lakewright.storage.base import Storage
from lakewright.storage.memory import MemoryStorage
from lakewright.table.snapshot import load_snapshot
from lakewright.testing.clock import ManualClock
from support.byte_counts import ByteCountingStorage
from support.tables import TIMELINE, WrittenTable, row

HISTORY = f"{TIMELINE}/history"
QUIET = {"hoodie.clean.automatic": "false", "hoodie.archive.automatic": "false"}
FIRST = 20250101000000000
# Each upsert archives, once it has cleaned.
EACH = {
    "hoodie.clean.commits.retained": "2",
    "hoodie.keep.min.commits": "4",
    "hoodie.keep.max.commits": "5",
}


def add_history(storage: Storage, files: int, each: int) -> None:
    """History of two levels, as archiving leaves them."""
    content = format_commit(CommitMetadata(operation="UPSERT", extra={"schema": "{}"}))
    listed = []
    for number in range(files):
        entries = [
            ArchivedInstant(str(at), str(at + 1), Action.COMMIT, content)
            for at in range(FIRST + 2 * number * each, FIRST + 2 * (number + 1) * each, 2)
        ]
        file, data = archived_file_of(entries, 5), format_archived_file(entries)
        listed.append(ArchivedTimelineFile(file.first, file.last, 5, len(data)))
        storage.create(f"{HISTORY}/{file.name}", data)
    storage.create(f"{HISTORY}/{manifest_name(1)}", format_manifest(Manifest(tuple(listed))))
    storage.create(f"{HISTORY}/{VERSION_FILE}", format_version(1))


def costs(instants: int) -> list[tuple[dict[str, int], int]]:
    """The calls and the bytes read of twelve upserts, with what they clean, archive and merge."""
    clock = ManualClock()
    storage = ByteCountingStorage(MemoryStorage.fresh(now_ms=clock.now_ms))
    table = WrittenTable(storage, clock, QUIET).create()
    table.upsert([row(f"k{number}", 0, day="d") for number in range(9)])
    add_history(storage, 2, instants // 2)
    steps = []
    for number in range(12):
        storage.reset()
        WrittenTable(storage, clock, EACH).upsert([row("k1", number, day="d")])
        steps.append((dict(storage.calls), storage.bytes_read))
    snapshot = load_snapshot(storage)
    assert len(snapshot.archived) > instants
    assert len(snapshot.timeline.completed_writes) <= 5
    return steps


def test_a_small_upsert_costs_the_same_after_20000_commits_as_after_200() -> None:
    after_few, after_many = costs(200), costs(20_000)
    assert [calls for calls, _ in after_many] == [calls for calls, _ in after_few]
    # Names and sizes of files in the manifest may have more digits.
    assert all(
        abs(many - few) < 100 for (_, many), (_, few) in zip(after_many, after_few, strict=True)
    )
