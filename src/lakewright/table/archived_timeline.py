"""Reading the archived timeline, only as far as a caller needs it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from typing import TypeVar

from lakewright.errors import errors_in_file
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
from lakewright.format.timeline_metadata import parse_requested_replace
from lakewright.model.instant import WRITE_ACTIONS, Action, Instant
from lakewright.model.plans import ClusteringPlan
from lakewright.storage.base import MissingFileError, Storage

# Actions and times are a small part of a file, but reading only that part takes several requests:
# files up to this size are read whole.
_READ_WHOLE_BYTES = 1 << 20

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
    storage: Storage,
    folder: str,
    *,
    first: str = "",
    last: str = "9",
    with_content: bool = False,
) -> list[ArchivedInstant]:
    """Return the archived entries with requested times in [first, last], oldest first."""

    def load() -> list[ArchivedInstant]:
        files = files_overlapping(_load_current_manifest(storage, folder), first, last)
        return _read_entries(storage, folder, files, with_content=with_content)

    entries = [entry for entry in _retry_once(load) if first <= entry.requested_at <= last]
    return sorted(entries, key=lambda entry: entry.requested_at)


def load_entries_archived_since(
    storage: Storage, folder: str, since_ms: int
) -> list[ArchivedInstant]:
    """Return the entries, without content, that may have been archived since a moment.

    A moment after the newest file proves nothing: the clock of the process that chose it may be
    ahead of the clock of storage. Then all entries are returned.
    """
    modified_ms = {file.name: file.modified_ms for file in storage.list_files(folder)}
    if not modified_ms:
        return []
    earliest_ms = since_ms if max(modified_ms.values()) >= since_ms else 0

    def load() -> list[ArchivedInstant]:
        listed = _load_current_manifest(storage, folder).files
        files = [file for file in listed if modified_ms.get(file.name, earliest_ms) >= earliest_ms]
        return _read_entries(storage, folder, files, with_content=False)

    return _retry_once(load)


def archived_times_in(storage: Storage, folder: str, first: str, last: str = "9") -> list[str]:
    """Return the requested times in [first, last] of the writes in the archived timeline.

    This includes writes that interrupted archiving has left on the active timeline as well.
    """
    entries = load_entries(storage, folder, first=first, last=last)
    return [entry.requested_at for entry in entries if entry.action in WRITE_ACTIONS]


def _read_entries(
    storage: Storage, folder: str, files: Iterable[ArchivedTimelineFile], *, with_content: bool
) -> list[ArchivedInstant]:
    files = list(files)
    large = [file for file in files if not with_content and file.size > _READ_WHOLE_BYTES]
    small = [file for file in files if file not in large]
    entries: list[ArchivedInstant] = []
    paths = [f"{folder}/{file.name}" for file in small]
    for path, data in zip(paths, storage.read_many(paths), strict=True):
        with errors_in_file(path):
            entries += parse_archived_file(data, with_content=with_content)
    for file in large:
        path = f"{folder}/{file.name}"
        with errors_in_file(path), storage.open_input(path) as source:
            entries += parse_archived_file(source, with_content=False)
    return entries


def load_archived_metadata(
    storage: Storage,
    folder: str,
    actions: Collection[str],
    parse: Callable[[bytes], _Metadata],
    *,
    first: str = "",
    last: str = "9",
) -> Iterator[tuple[Instant, _Metadata]]:
    """Yield the archived instants of these actions with their metadata, oldest first.

    Only instants with requested times in [first, last] that were archived with their metadata; this
    includes instants that interrupted archiving has left on the active timeline as well.
    """
    for entry in load_entries(storage, folder, first=first, last=last, with_content=True):
        if entry.action in actions and entry.metadata:
            instant = Instant(
                entry.requested_at, Action(entry.action), completed_at=entry.completed_at
            )
            with errors_in_file(f"{folder}: {entry.requested_at}"):
                metadata = parse(entry.metadata)
            yield instant, metadata


def archived_clustering_plans(
    storage: Storage, folder: str, times: Collection[str]
) -> dict[str, ClusteringPlan | None]:
    """Return the plans of archived replace commits; None for those that are no clusterings."""
    entries = load_entries(storage, folder, first=min(times), last=max(times), with_content=True)
    plans: dict[str, ClusteringPlan | None] = {}
    for entry in entries:
        if entry.requested_at in times and entry.plan:
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
