"""What a clean has to know of the table before it decides, and before it deletes."""

from __future__ import annotations

from collections.abc import Iterable

from lakewright.core.instant import Instant
from lakewright.core.slices import GroupKey
from lakewright.errors import found_in
from lakewright.format.metadata import parse_clean, parse_savepoint
from lakewright.services.cleaning.plan import Holds, Stock
from lakewright.services.cleaning.retention import LastClean
from lakewright.table.snapshot import FilesByPartition, Snapshot


def last_clean(snapshot: Snapshot) -> LastClean | None:
    """What the last completed clean on the active timeline tells, if there is one."""
    cleans = snapshot.timeline.completed("clean")
    if not cleans:
        return None
    path = snapshot.timeline_path(cleans[-1])
    with found_in(path):
        done = parse_clean(snapshot.storage.read(path))
    return LastClean(cleans[-1].requested_at, done.earliest_to_retain, done.extra)


def stock_of(snapshot: Snapshot, files: FilesByPartition) -> Stock:
    """What listed files are to the table, and who needs them."""
    view = snapshot.view()
    return Stock(
        view=view,
        files=files,
        groups=snapshot.groups(view, files),
        replaced=replaced_by(snapshot),
        holds=holds_of(snapshot),
    )


def replaced_by(snapshot: Snapshot) -> dict[GroupKey, Instant]:
    """The newest replace commit of each file group that one on the active timeline took out."""
    instants = [i for i in snapshot.timeline.completed_writes if i.action == "replacecommit"]
    return {
        (partition, file_id): instant
        for instant, commit in zip(instants, snapshot.commits(instants), strict=True)
        for partition, file_ids in commit.replaced.items()
        for file_id in file_ids
    }


def holds_of(snapshot: Snapshot) -> Holds:
    """What savepoints and pending plans need."""
    planned = {
        (operation.partition, operation.file_id): f"held by {instant.action} {instant.requested_at}"
        for instant, plan in snapshot.pending_plans()
        for operation in plan.operations
    }
    return Holds(saved=frozenset(_saved_files(snapshot)), planned=planned)


def _saved_files(snapshot: Snapshot) -> Iterable[tuple[str, str]]:
    paths = [snapshot.timeline_path(i) for i in snapshot.timeline.completed("savepoint")]
    for path, data in zip(paths, snapshot.storage.read_many(paths) if paths else [], strict=True):
        with found_in(path):
            saved = parse_savepoint(data)
        for partition, part in saved.partitions.items():
            yield from ((partition, name) for name in part.files)
