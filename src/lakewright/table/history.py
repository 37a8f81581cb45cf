"""The archived timeline, loaded as far as a question needs it."""

from __future__ import annotations

from collections.abc import Iterable

from lakewright.core.instant import WRITE_ACTIONS, Instant
from lakewright.errors import found_in
from lakewright.format.history import (
    HistoryEntry,
    HistoryFile,
    Manifest,
    files_overlapping,
    manifest_name,
    parse_history_file,
    parse_manifest,
    parse_manifest_name,
    parse_version,
)
from lakewright.storage.base import MissingFileError, Storage

# Names and times are a small part of a file, which takes several calls to read alone.
_READ_WHOLE_BYTES = 1 << 20


def load_manifest(storage: Storage, folder: str) -> Manifest:
    """The files of the current state of history; none if nothing was archived yet.

    The version file is replaced by deleting and creating it, so it may be missing for a moment:
    then the newest manifest counts.
    """
    version = f"{folder}/_version_"
    try:
        with found_in(version):
            newest = parse_version(storage.read(version))
    except MissingFileError:
        names = (parse_manifest_name(file.name) for file in storage.list_files(folder))
        numbers = [number for number in names if number is not None]
        if not numbers:
            return Manifest(())
        newest = max(numbers)
    manifest = f"{folder}/{manifest_name(newest)}"
    with found_in(manifest):
        return parse_manifest(storage.read(manifest))


def load_entries(
    storage: Storage,
    folder: str,
    *,
    first: str = "",
    last: str = "9",
    with_content: bool = False,
) -> list[HistoryEntry]:
    """The archived entries with requested times in [first, last], oldest first."""
    files = files_overlapping(load_manifest(storage, folder), first, last)
    entries = _entries(storage, folder, files, with_content=with_content)
    entries = [entry for entry in entries if first <= entry.requested_at <= last]
    return sorted(entries, key=lambda entry: entry.requested_at)


def load_late_entries(storage: Storage, folder: str, since_ms: int) -> list[HistoryEntry]:
    """The archived entries, without content, that may have been archived since a moment."""
    written = {file.name: file.modified_ms for file in storage.list_files(folder)}
    if not written:
        return []
    files = [
        file
        for file in load_manifest(storage, folder).files
        if written.get(file.name, since_ms) >= since_ms
    ]
    return _entries(storage, folder, files, with_content=False)


def _entries(
    storage: Storage, folder: str, files: Iterable[HistoryFile], *, with_content: bool
) -> list[HistoryEntry]:
    files = list(files)
    large = [file for file in files if not with_content and file.size > _READ_WHOLE_BYTES]
    small = [file for file in files if file not in large]
    entries: list[HistoryEntry] = []
    paths = [f"{folder}/{file.name}" for file in small]
    for path, data in zip(paths, storage.read_many(paths), strict=True):
        with found_in(path):
            entries += parse_history_file(data, with_content=with_content)
    for file in large:
        path = f"{folder}/{file.name}"
        with found_in(path), storage.open_input(path) as source:
            entries += parse_history_file(source, with_content=False)
    return entries


def archived_writes(entries: Iterable[HistoryEntry]) -> list[Instant]:
    """The writes among history entries, as instants."""
    return [
        Instant(entry.requested_at, entry.action, completed_at=entry.completed_at)
        for entry in entries
        if entry.action in WRITE_ACTIONS
    ]
