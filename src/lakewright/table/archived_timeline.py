"""Reading the archived timeline, only as far as a caller needs it."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TypeVar

from lakewright.errors import errors_in_file
from lakewright.format.archived_file import (
    METADATA,
    PLAN,
    TAIL_BYTES,
    ArchivedFileFooter,
    ArchivedInstant,
    ByteRange,
    Selection,
    footer_length,
    is_file_end,
    parse_archived_file,
    parse_row_groups,
)
from lakewright.format.archived_timeline import (
    ArchivedTimelineFile,
    Manifest,
    files_overlapping,
    manifest_name,
    parse_manifest,
    parse_manifest_name,
    parse_version,
)
from lakewright.format.timeline_metadata import parse_requested_replace
from lakewright.model.instant import WRITE_ACTIONS, Action, Instant
from lakewright.model.plans import ClusteringPlan
from lakewright.storage.base import MissingFileError, Storage, map_in_threads

# A part of a larger file takes two requests or more; a smaller one is read whole, in one.
_READ_WHOLE_BYTES = 1 << 20
# With content, so much is in memory at a time: files that are read whole, row groups of a file.
_FILES_AT_ONCE = 16
_GROUPS_AT_ONCE = 4

_Loaded = TypeVar("_Loaded")
_Metadata = TypeVar("_Metadata")


def load_manifest(storage: Storage, folder: str) -> Manifest:
    """Load the manifest of the archived timeline; empty if nothing was archived yet.

    Writers replace the version file by deleting and creating it, so it may be missing for a moment:
    then the newest manifest counts.
    """
    return _retry_once(lambda: _load_current_manifest(storage, folder))


def _retry_once(load: Callable[[], _Loaded]) -> _Loaded:
    """Load; once more if archiving has just deleted a file of the version that was being read."""
    try:
        return load()
    except MissingFileError:
        return load()


def _load_current_manifest(storage: Storage, folder: str) -> Manifest:
    version = f"{folder}/_version_"
    try:
        with errors_in_file(version):
            newest = parse_version(storage.read(version))
    except MissingFileError:
        names = (parse_manifest_name(file.name) for file in storage.list_files(folder))
        numbers = [number for number in names if number is not None]
        if not numbers:
            return Manifest(())
        newest = max(numbers)
    manifest = f"{folder}/{manifest_name(newest)}"
    with errors_in_file(manifest):
        return parse_manifest(storage.read(manifest))


def load_entries(
    storage: Storage, folder: str, selection: Selection | None = None
) -> list[ArchivedInstant]:
    """Return the selected archived entries, oldest first; by default all, without content."""
    return list(iter_entries(storage, folder, selection or Selection()))


def iter_entries(storage: Storage, folder: str, selection: Selection) -> Iterator[ArchivedInstant]:
    """Yield the selected archived entries, oldest first, with a few row groups in memory.

    If archiving deletes a file that is being read, the rest is read from the current files.
    """
    last: str | None = None
    yielded: set[str] = set()
    for is_retry in (False, True):
        rest = selection if last is None else replace(selection, first=max(selection.first, last))
        try:
            files = _files_of(_load_current_manifest(storage, folder), rest)
            for entry in _entries_in(storage, folder, files, rest):
                if entry.requested_at != last:
                    last, yielded = entry.requested_at, set()
                if entry.action not in yielded:
                    yielded.add(entry.action)
                    yield entry
            return
        except MissingFileError:
            if is_retry:
                raise


def entries_of_manifest(
    storage: Storage, folder: str, manifest: Manifest, selection: Selection
) -> Iterator[ArchivedInstant]:
    """Yield the selected entries of the files of one manifest, by requested time."""
    return _entries_in(storage, folder, _files_of(manifest, selection), selection)


def load_entries_archived_since(
    storage: Storage, folder: str, since_ms: int, selection: Selection
) -> list[ArchivedInstant]:
    """Return the selected entries among those that may have been archived since a moment.

    A moment after the newest file proves nothing: the clock of the process that chose it may be
    ahead of the clock of storage. Then all files are searched.
    """
    modified_ms = {file.name: file.modified_ms for file in storage.list_files(folder)}
    if not modified_ms:
        return []
    earliest_ms = since_ms if max(modified_ms.values()) >= since_ms else 0

    def load() -> list[ArchivedInstant]:
        listed = _files_of(_load_current_manifest(storage, folder), selection)
        files = [file for file in listed if modified_ms.get(file.name, earliest_ms) >= earliest_ms]
        return list(_entries_in(storage, folder, files, selection))

    return _retry_once(load)


def archived_times_in(storage: Storage, folder: str, first: str, last: str = "9") -> list[str]:
    """Return the requested times in [first, last] of the writes in the archived timeline.

    This includes writes that interrupted archiving has left on the active timeline as well.
    """
    selection = Selection(first=first, last=last, actions=WRITE_ACTIONS)
    return [entry.requested_at for entry in load_entries(storage, folder, selection)]


def archived_completions(
    storage: Storage, folder: str, requested: Collection[str]
) -> dict[str, str]:
    """Return the completion times of those of these writes that the archived timeline has."""
    if not requested:
        return {}
    selection = replace(Selection.of_times(requested), actions=WRITE_ACTIONS)
    entries = load_entries(storage, folder, selection)
    return {entry.requested_at: entry.completed_at for entry in entries}


def _files_of(manifest: Manifest, selection: Selection) -> list[ArchivedTimelineFile]:
    files = files_overlapping(manifest, selection.first, selection.last)
    return [file for file in files if selection.overlaps(file.first, file.last)]


def _entries_in(
    storage: Storage, folder: str, files: Sequence[ArchivedTimelineFile], selection: Selection
) -> Iterator[ArchivedInstant]:
    """Yield the selected entries of files, by requested time.

    Times and actions are read from all files at once, content from a few files after the other.
    """
    clusters = list(_overlapping_files(files))
    step = _FILES_AT_ONCE if selection.content else max(1, len(clusters))
    for start in range(0, len(clusters), step):
        chosen = [file for cluster in clusters[start : start + step] for file in cluster]
        small = [f"{folder}/{file.name}" for file in chosen if file.size <= _READ_WHOLE_BYTES]
        contents = dict(zip(small, storage.read_many(small) if small else [], strict=True))
        for cluster in clusters[start : start + step]:
            paths = [(f"{folder}/{file.name}", file.size) for file in cluster]
            yield from heapq.merge(
                *(_entries_of(storage, *path, contents.get(path[0]), selection) for path in paths),
                key=lambda entry: entry.requested_at,
            )


def _overlapping_files(
    files: Iterable[ArchivedTimelineFile],
) -> Iterator[list[ArchivedTimelineFile]]:
    """Yield files by requested time; those that overlap each other together."""
    cluster: list[ArchivedTimelineFile] = []
    for file in sorted(files):
        if cluster and file.first > max(other.last for other in cluster):
            yield cluster
            cluster = []
        cluster.append(file)
    if cluster:
        yield cluster


def _entries_of(
    storage: Storage, path: str, size: int, data: bytes | None, selection: Selection
) -> Iterator[ArchivedInstant]:
    """Yield the selected entries of one file by requested time; `data` is the file, if it is read.

    Only the row groups and columns are read that can hold what is selected.
    """
    with errors_in_file(path):
        footer = None if data is not None else _load_footer(storage, path, size)
        if footer is None:
            whole = storage.read(path) if data is None else data
            yield from sorted(parse_archived_file(whole, selection), key=_requested_at)
            return
        groups = footer.groups(selection)
        if selection.content and len(groups) > 1:
            # Content is large: find out first which row groups have a selected instant.
            names = _read_groups(storage, path, footer, groups, replace(selection, content=()))
            found = {group for group, _ in names}
            groups = [group for group in groups if group in found]
        in_steps = selection.content and footer.is_sorted(groups)
        step = _GROUPS_AT_ONCE if in_steps else max(1, len(groups))
        for start in range(0, len(groups), step):
            some = groups[start : start + step]
            entries = _read_groups(storage, path, footer, some, selection)
            yield from sorted((entry for _, entry in entries), key=_requested_at)


def _load_footer(storage: Storage, path: str, size: int) -> ArchivedFileFooter | None:
    """Load the footer of a file; None if the file does not have the size that its manifest says."""
    tail = storage.read_range(path, max(0, size - TAIL_BYTES), TAIL_BYTES)
    if len(tail) != min(size, TAIL_BYTES) or not is_file_end(tail):
        return None
    length = footer_length(tail)
    if length > len(tail):
        tail = storage.read_range(path, max(0, size - length), length)
    return ArchivedFileFooter.parse(tail, size)


def _read_groups(
    storage: Storage,
    path: str,
    footer: ArchivedFileFooter,
    groups: Sequence[int],
    selection: Selection,
) -> list[tuple[int, ArchivedInstant]]:
    """Read the selected entries of row groups, each with the number of its row group."""
    ranges = footer.ranges(groups, selection.columns)

    def read(part: ByteRange) -> bytes:
        return storage.read_range(path, part.offset, part.length)

    contents = map_in_threads(read, ranges, storage.parallel_listings)
    parts = dict(zip(ranges, contents, strict=True))
    return parse_row_groups(footer, parts, groups, selection)


def _requested_at(entry: ArchivedInstant) -> str:
    return entry.requested_at


def load_archived_metadata(
    storage: Storage,
    folder: str,
    actions: Collection[str],
    parse: Callable[[bytes], _Metadata],
    *,
    first: str = "",
    last: str = "9",
    times: Collection[str] | None = None,
) -> Iterator[tuple[Instant, _Metadata]]:
    """Yield the archived instants of these actions with their metadata, oldest first.

    Only instants with requested times in [first, last], or only those with one of these times, that
    were archived with their metadata; this includes instants that interrupted archiving has left on
    the active timeline as well.
    """
    selection = Selection(first=first, last=last) if times is None else Selection.of_times(times)
    selection = replace(selection, actions=frozenset(actions), content=(METADATA,))
    for entry in iter_entries(storage, folder, selection):
        if entry.metadata:
            instant = Instant(
                entry.requested_at, Action(entry.action), completed_at=entry.completed_at
            )
            with errors_in_file(f"{folder}: {entry.requested_at}"):
                metadata = parse(entry.metadata)
            yield instant, metadata


def archived_clustering_plans(
    storage: Storage, folder: str, times: Collection[str]
) -> dict[str, ClusteringPlan | None]:
    """Return the plans of archived replace commits; None for those that are no clusterings.

    Times at which no replace commit is archived are left out.
    """
    selection = replace(
        Selection.of_times(times, (PLAN,)), actions=frozenset({Action.REPLACE_COMMIT})
    )
    plans: dict[str, ClusteringPlan | None] = {}
    for entry in iter_entries(storage, folder, selection):
        if entry.plan:
            with errors_in_file(f"{folder}: {entry.requested_at}"):
                plans[entry.requested_at] = parse_requested_replace(entry.plan).plan
    return plans


def archived_instants(
    entries: Iterable[ArchivedInstant], actions: Collection[str]
) -> list[Instant]:
    """Return the archived entries of some actions, as instants."""
    return [
        Instant(entry.requested_at, Action(entry.action), completed_at=entry.completed_at)
        for entry in entries
        if entry.action in actions
    ]
