"""Which files of an earlier state of the table cleans have taken, or are about to take."""

from __future__ import annotations

from collections.abc import Iterable

from lakewright.core.files import BaseFile, LogFile, parse_data_file
from lakewright.core.instant import Instant, State
from lakewright.core.slices import FileSlice, GroupKey, View
from lakewright.errors import found_in
from lakewright.format.metadata import parse_clean, parse_clean_plan
from lakewright.storage.base import split_path
from lakewright.table.snapshot import Snapshot


def slices_seen(
    snapshot: Snapshot, view: View, partitions: Iterable[str] | None = None, *, since: str
) -> tuple[list[FileSlice], dict[GroupKey, list[str]]]:
    """What a query reads as `view` bounds it, as if nothing had been cleaned after `since`.

    The second part names the files among them, by file group, that are lost: deleted by a clean
    that completed after `since`, or planned to be by one that is under way.
    """
    wanted = None if partitions is None else list(partitions)
    taken, listed = _taken(snapshot, since), snapshot.files(wanted)
    together = {
        partition: _united(listed.get(partition, ()), taken.get(partition, ()))
        for partition in sorted({*listed, *taken} if wanted is None else wanted)
    }
    slices = [group.merged() for group in snapshot.groups(view, together)]
    lost: dict[GroupKey, list[str]] = {}
    for found in slices:
        names = [file.name for file in files_of(found)]
        gone = [name for name in names if name in taken.get(found.partition, ())]
        if gone:
            lost[found.partition, found.file_id] = gone
    return slices, lost


def files_of(found: FileSlice) -> list[BaseFile | LogFile]:
    """The files of a slice: its base file, then its logs from the newest to the oldest."""
    return [*([found.base] if found.base else []), *reversed(found.logs)]


def _united(listed: Iterable[BaseFile | LogFile], names: Iterable[str]) -> list[BaseFile | LogFile]:
    there = {file.name: file for file in listed}
    gone = [file for name in sorted(names) if name not in there and (file := parse_data_file(name))]
    return [*there.values(), *gone]


def _taken(snapshot: Snapshot, since: str) -> dict[str, set[str]]:
    """File names by partition."""
    taken: dict[str, set[str]] = {}
    for instant in snapshot.timeline:
        if instant.action == "clean" and (instant.completed_at or "9") > since:
            for partition, names in _cleaned_by(snapshot, instant).items():
                taken.setdefault(partition, set()).update(names)
    return taken


def _cleaned_by(snapshot: Snapshot, clean: Instant) -> dict[str, set[str]]:
    folder = snapshot.config.timeline_folder
    if clean.is_completed:
        path = f"{folder}/{clean.file_name}"
        with found_in(path):
            done = parse_clean(snapshot.storage.read(path))
        return {
            partition: {split_path(path)[1] for path in (*part.deleted, *part.failed)}
            for partition, part in done.partitions.items()
        }
    requested = Instant(clean.requested_at, clean.action, State.REQUESTED)
    path = f"{folder}/{requested.file_name}"
    with found_in(path):
        plan = parse_clean_plan(snapshot.storage.read(path))
    named = {name: {split_path(f.path)[1] for f in files} for name, files in plan.files.items()}
    for name, names in plan.bare_files.items():
        named.setdefault(name, set()).update(names)
    return named
