"""Which files of an earlier state of the table cleans have taken, or are about to take."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from lakewright.core.files import BaseFile, LogFile, parse_data_file
from lakewright.core.instant import Instant, State
from lakewright.core.plans import CleanPlan
from lakewright.core.slices import FileSlice, GroupKey, View
from lakewright.errors import found_in
from lakewright.format.metadata import parse_clean
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


def going_files(snapshot: Snapshot) -> dict[str, set[str]]:
    """The names by partition of files that a clean which is under way deletes, or has deleted."""
    going: dict[str, set[str]] = {}
    for _, plan in snapshot.pending_cleans():
        _add(going, _named(plan))
    return going


def withdraw_unplanned(snapshot: Snapshot, clean: Instant) -> bool:
    """Take a pending clean off the timeline whose plan was never written; False if it has one.

    The caller holds the table's lock and has loaded the snapshot under it.
    """
    if clean in dict(snapshot.pending_cleans()):
        return False
    for state in (State.INFLIGHT, State.REQUESTED):
        snapshot.storage.delete(snapshot.timeline_path(replace(clean, state=state)))
    return True


def _taken(snapshot: Snapshot, since: str) -> dict[str, set[str]]:
    """The names by partition of what cleans took after `since`, or are about to take."""
    taken = going_files(snapshot)
    for clean in snapshot.timeline.completed("clean"):
        if (clean.completed_at or "") > since:
            path = snapshot.timeline_path(clean)
            with found_in(path):
                done = parse_clean(snapshot.storage.read(path))
            for partition, part in done.partitions.items():
                names = {split_path(path)[1] for path in (*part.deleted, *part.failed)}
                _add(taken, {partition: names})
    return taken


def _add(known: dict[str, set[str]], more: Mapping[str, Iterable[str]]) -> None:
    for partition, names in more.items():
        known.setdefault(partition, set()).update(names)


def _named(plan: CleanPlan) -> dict[str, set[str]]:
    named = {name: {split_path(f.path)[1] for f in files} for name, files in plan.files.items()}
    _add(named, plan.bare_files)
    return named
