"""The archived timeline, loaded as far as a question needs it."""

from __future__ import annotations

from collections.abc import Iterable

from lakewright.core.instant import WRITE_ACTIONS, Instant
from lakewright.format.history import (
    HistoryEntry,
    Manifest,
    files_overlapping,
    parse_history_file,
    parse_manifest,
    parse_version,
)
from lakewright.storage.base import MissingFileError, Storage


def load_manifest(storage: Storage, folder: str) -> Manifest:
    """The files of the current state of history; none if nothing was archived yet.

    The version file is replaced by deleting and creating it, so it may be missing for a moment:
    then the newest manifest counts.
    """
    try:
        newest = parse_version(storage.read(f"{folder}/_version_"))
    except MissingFileError:
        numbers = [
            int(file.name.removeprefix("manifest_"))
            for file in storage.list_files(folder)
            if file.name.startswith("manifest_") and file.name[9:].isdigit()
        ]
        if not numbers:
            return Manifest(())
        newest = max(numbers)
    return parse_manifest(storage.read(f"{folder}/manifest_{newest}"))


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
    datas = storage.read_many(f"{folder}/{file.name}" for file in files)
    entries = [
        entry
        for data in datas
        for entry in parse_history_file(data, with_content=with_content)
        if first <= entry.requested_at <= last
    ]
    return sorted(entries, key=lambda entry: entry.requested_at)


def archived_writes(entries: Iterable[HistoryEntry]) -> list[Instant]:
    """The writes among history entries, as instants."""
    return [
        Instant(entry.requested_at, entry.action, completed_at=entry.completed_at)
        for entry in entries
        if entry.action in WRITE_ACTIONS
    ]
