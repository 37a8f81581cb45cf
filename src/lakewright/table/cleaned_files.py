"""Files of an earlier state of a table that cleans have deleted, or are about to delete."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from lakewright.errors import errors_in_file
from lakewright.format.timeline_metadata import parse_clean
from lakewright.model.file_group import (
    BaseFile,
    FileSlice,
    GroupKey,
    LogFile,
    TimelineView,
    parse_data_file,
)
from lakewright.model.instant import Action, Instant, State
from lakewright.model.plans import CleanPlan
from lakewright.storage.base import split_path
from lakewright.table.snapshot import FilesByPartition, Snapshot


def slices_before_cleaning(
    snapshot: Snapshot,
    view: TimelineView,
    partitions: Iterable[str] | None = None,
    *,
    since: str,
    listed: FilesByPartition | None = None,
) -> tuple[list[FileSlice], dict[GroupKey, list[str]]]:
    """Return what a query bounded by `view` reads, as if no clean had run after `since`.

    The second part names the files among them, by file group, that are lost: deleted by a clean
    that completed after `since`, or listed in the plan of a pending clean. `listed` are the files
    of the partitions, if the caller has listed them.
    """
    selected = None if partitions is None else list(partitions)
    cleaned = _cleaned_files(snapshot, since)
    if listed is None:
        listed = snapshot.files(selected)
    files = {
        partition: _with_cleaned(listed.get(partition, ()), cleaned.get(partition, ()))
        for partition in sorted({*listed, *cleaned} if selected is None else selected)
    }
    slices = [group.latest_merged_slice() for group in snapshot.groups(view, files)]
    cleaned_files: dict[GroupKey, list[str]] = {}
    for file_slice in slices:
        names = [file.name for file in files_of_slice(file_slice)]
        cleaned_names = [name for name in names if name in cleaned.get(file_slice.partition, ())]
        if cleaned_names:
            cleaned_files[file_slice.partition, file_slice.file_id] = cleaned_names
    return slices, cleaned_files


def files_of_slice(file_slice: FileSlice) -> list[BaseFile | LogFile]:
    """Return the files of a slice: its base file, then its log files from newest to oldest."""
    return [*([file_slice.base] if file_slice.base else []), *reversed(file_slice.logs)]


def _with_cleaned(
    listed: Iterable[BaseFile | LogFile], cleaned_names: Iterable[str]
) -> list[BaseFile | LogFile]:
    by_name = {file.name: file for file in listed}
    cleaned = [
        file
        for name in sorted(cleaned_names)
        if name not in by_name and (file := parse_data_file(name))
    ]
    return [*by_name.values(), *cleaned]


def files_being_cleaned(snapshot: Snapshot) -> dict[str, set[str]]:
    """Return the names, by partition, of the files that a pending clean deletes or has deleted."""
    files: dict[str, set[str]] = {}
    for _, plan in snapshot.pending_cleans():
        _add_names(files, _planned_names(plan))
    return files


def delete_planless_clean(snapshot: Snapshot, clean: Instant) -> bool:
    """Delete a pending clean that never got a plan from the timeline; False if it has one.

    The caller holds the table's lock and has loaded the snapshot under it.
    """
    if clean in dict(snapshot.pending_cleans()):
        return False
    for state in (State.INFLIGHT, State.REQUESTED):
        snapshot.storage.delete(snapshot.timeline_path(replace(clean, state=state)))
    return True


def _cleaned_files(snapshot: Snapshot, since: str) -> dict[str, set[str]]:
    """Return the names, by partition, of files that cleans deleted after `since` or will delete."""
    files = files_being_cleaned(snapshot)
    for clean in snapshot.timeline.completed(Action.CLEAN):
        if (clean.completed_at or "") > since:
            path = snapshot.timeline_path(clean)
            with errors_in_file(path):
                metadata = parse_clean(snapshot.storage.read(path))
            for partition, part in metadata.partitions.items():
                names = {split_path(path)[1] for path in (*part.deleted, *part.failed)}
                _add_names(files, {partition: names})
    return files


def _add_names(target: dict[str, set[str]], added: Mapping[str, Iterable[str]]) -> None:
    for partition, names in added.items():
        target.setdefault(partition, set()).update(names)


def _planned_names(plan: CleanPlan) -> dict[str, set[str]]:
    names = {name: {split_path(f.path)[1] for f in files} for name, files in plan.files.items()}
    _add_names(names, plan.bare_files)
    return names
