"""The archived timeline, loaded as far as a question needs it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

from lakewright.errors import found_in
from lakewright.format.archived_timeline import (
    ArchivedInstant,
    ArchivedTimelineFile,
    Manifest,
    files_overlapping,
    manifest_name,
    parse_archived_file,
    parse_manifest,
    parse_manifest_name,
    parse_version,
)
from lakewright.model.instant import WRITE_ACTIONS, Action, Instant
from lakewright.storage.base import MissingFileError, Storage

# Names and times are a small part of a file, which takes several calls to read alone.
_READ_WHOLE_BYTES = 1 << 20

_Loaded = TypeVar("_Loaded")


def load_manifest(storage: Storage, folder: str) -> Manifest:
    """The files of the current state of history; none if nothing was archived yet.

    The version file is replaced by deleting and creating it, so it may be missing for a moment:
    then the newest manifest counts.
    """
    return _retry_once(lambda: _manifest(storage, folder))


def _retry_once(load: Callable[[], _Loaded]) -> _Loaded:
    """What is loaded; a second time if archiving has just swept up the state that was met."""
    try:
        return load()
    except MissingFileError:
        return load()


def _manifest(storage: Storage, folder: str) -> Manifest:
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
) -> list[ArchivedInstant]:
    """The archived entries with requested times in [first, last], oldest first."""

    def load() -> list[ArchivedInstant]:
        files = files_overlapping(_manifest(storage, folder), first, last)
        return _entries(storage, folder, files, with_content=with_content)

    entries = [entry for entry in _retry_once(load) if first <= entry.requested_at <= last]
    return sorted(entries, key=lambda entry: entry.requested_at)


def load_entries_archived_since(
    storage: Storage, folder: str, since_ms: int
) -> list[ArchivedInstant]:
    """The archived entries, without content, that may have been archived since a moment.

    A moment after the newest file tells nothing: the clock of whoever named it may be ahead of the
    one of storage. Then all entries are given.
    """
    written = {file.name: file.modified_ms for file in storage.list_files(folder)}
    if not written:
        return []
    begin_ms = since_ms if max(written.values()) >= since_ms else 0

    def load() -> list[ArchivedInstant]:
        listed = _manifest(storage, folder).files
        files = [file for file in listed if written.get(file.name, begin_ms) >= begin_ms]
        return _entries(storage, folder, files, with_content=False)

    return _retry_once(load)


def archived_times_in(storage: Storage, folder: str, first: str, last: str = "9") -> list[str]:
    """The requested times, from `first` to `last`, of the writes that history holds.

    Also of those that archiving which was interrupted has left on the active timeline.
    """
    entries = load_entries(storage, folder, first=first, last=last)
    return [entry.requested_at for entry in entries if entry.action in WRITE_ACTIONS]


def _entries(
    storage: Storage, folder: str, files: Iterable[ArchivedTimelineFile], *, with_content: bool
) -> list[ArchivedInstant]:
    files = list(files)
    large = [file for file in files if not with_content and file.size > _READ_WHOLE_BYTES]
    small = [file for file in files if file not in large]
    entries: list[ArchivedInstant] = []
    paths = [f"{folder}/{file.name}" for file in small]
    for path, data in zip(paths, storage.read_many(paths), strict=True):
        with found_in(path):
            entries += parse_archived_file(data, with_content=with_content)
    for file in large:
        path = f"{folder}/{file.name}"
        with found_in(path), storage.open_input(path) as source:
            entries += parse_archived_file(source, with_content=False)
    return entries


def write_instants(entries: Iterable[ArchivedInstant]) -> list[Instant]:
    """The writes among history entries, as instants."""
    return [
        Instant(entry.requested_at, Action(entry.action), completed_at=entry.completed_at)
        for entry in entries
        if entry.action in WRITE_ACTIONS
    ]
