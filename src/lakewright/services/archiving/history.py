"""Writes the archived timeline: adds instants, merges files, deletes what no manifest lists.

Instants are added under the table's lock. Files are merged in three steps, so that other writers
wait for none of the reading and writing:

    plan        no lock     from the current manifest: a batch of files of one level
    write       no lock     the merged file, which no manifest lists yet
    publish     lock        if the manifest still lists the batch: a manifest with the merged file

The batch stays until a later archiving deletes what the newest manifests do not list. So a crash
leaves the old manifest or the new one, and perhaps a file that no manifest lists. The name of a
merged file follows from its batch, so two processes that merge the same batch write the same name:
the first one creates it, and each publishes only a file that it wrote or has compared. A process
that is paused after it has lost its lock cannot publish a number that another one has published
since; if that manifest is deleted by then, archiving still goes on from the newest one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass

import pyarrow as pa

from lakewright.errors import ConflictError, CorruptError, UnavailableError, errors_in_file
from lakewright.format.archived_file import (
    TAIL_BYTES,
    ArchivedInstant,
    Selection,
    format_archived_file,
    merge_sorted,
    parse_archived_file,
    stream_archived_file,
    write_archived_file,
)
from lakewright.format.archived_timeline import (
    VERSION_FILE,
    ArchivedTimelineFile,
    LevelMerge,
    Manifest,
    archived_file_of,
    find_unreferenced,
    format_manifest,
    format_version,
    manifest_name,
    parse_manifest,
    parse_manifest_name,
    plan_level_merge,
    with_merge,
)
from lakewright.services.archiving.planner import ArchivingSettings
from lakewright.storage.base import MissingFileError, Storage
from lakewright.table.archived_timeline import load_manifest
from lakewright.table.locks.base import Lock
from lakewright.table.transaction import WriterContext

_EntryKey = tuple[str, str]


@dataclass
class HistoryWriter:
    """Changes the archived timeline; the caller holds the table's lock, except to look at it.

    `published` counts the manifests that were written by this object.
    """

    storage: Storage
    folder: str
    manifest: Manifest
    version: int
    published: int = 0

    @classmethod
    def load(cls, storage: Storage, folder: str) -> HistoryWriter:
        """Load the newest manifest, which the version file need not name.

        The process that wrote it may have crashed before it replaced the version file; or one that
        had lost its lock has replaced the version file later, with an older number. Either way it
        lists everything that was archived.
        """
        names = storage.list_files(folder)
        numbers = [n for file in names if (n := parse_manifest_name(file.name)) is not None]
        version = max(numbers, default=0)
        if version:
            with suppress(CorruptError):
                return cls(storage, folder, _load(storage, folder, version), version)
        # Not every writer creates a manifest at once: its process may have crashed half-way.
        return cls(storage, folder, load_manifest(storage, folder), version)

    def add(self, entries: Sequence[ArchivedInstant]) -> None:
        """Add entries to the archived timeline."""
        if entries:
            file = self._write(entries)
            self.publish(Manifest((*self.manifest.files, file)))

    def publish(self, manifest: Manifest) -> None:
        """Make a manifest the current one."""
        path = f"{self.folder}/{manifest_name(self.version + 1)}"
        # If two processes archive without a common lock, one of them fails here.
        self.storage.create(path, format_manifest(manifest))
        self.version += 1
        self.storage.replace(f"{self.folder}/{VERSION_FILE}", format_version(self.version))
        self.manifest = manifest
        self.published += 1

    def delete_unreferenced(self, keep: int) -> None:
        """Delete all but the newest `keep` manifests, and the files that only those refer to.

        A file that is as new as those manifests stays: another process may be about to publish it.
        """
        files = self.storage.list_files(self.folder)
        manifests = self._manifests([file.name for file in files])
        # An unreadable manifest may list any file: then nothing is deleted.
        if not manifests:
            return
        oldest_kept = manifest_name(sorted(manifests)[-keep:][0])
        kept_since_ms = next(file.modified_ms for file in files if file.name == oldest_kept)
        older = [file.name for file in files if file.modified_ms < kept_since_ms]
        unreferenced = find_unreferenced(manifests, older, keep)
        self.storage.delete_many(f"{self.folder}/{manifest_name(n)}" for n in unreferenced.versions)
        self.storage.delete_many(f"{self.folder}/{name}" for name in unreferenced.files)

    def delete_unlisted(self, name: str) -> bool:
        """Delete a file unless a manifest lists it; return whether it is deleted."""
        manifests = self._manifests([file.name for file in self.storage.list_files(self.folder)])
        if manifests is None or any(
            file.name == name for manifest in manifests.values() for file in manifest.files
        ):
            return False
        self.storage.delete(f"{self.folder}/{name}")
        return True

    def _manifests(self, names: Collection[str]) -> dict[int, Manifest] | None:
        """Load all manifests, by number; None if one cannot be read."""
        numbers = [number for name in names if (number := parse_manifest_name(name)) is not None]
        try:
            return {number: _load(self.storage, self.folder, number) for number in numbers}
        except CorruptError:
            return None

    def _write(self, entries: Sequence[ArchivedInstant]) -> ArchivedTimelineFile:
        data = format_archived_file(entries)
        name = archived_file_of(entries).name
        path = f"{self.folder}/{name}"
        try:
            self.storage.create(path, data)
        except ConflictError:
            if any(file.name == name for file in self.manifest.files):
                raise
            # No manifest lists the file: a run crashed before it published one.
            existing = self.storage.read(path)
            if _keys(existing) == {(entry.requested_at, entry.action) for entry in entries}:
                data = existing
            else:
                self.storage.replace(path, data)
        return ArchivedTimelineFile.parse(name, len(data))


@dataclass(frozen=True, slots=True)
class MergedFile:
    """A merged file that no manifest lists yet: its size and its last bytes, with the footer."""

    size: int
    tail: bytes

    @classmethod
    def of(cls, data: bytes) -> MergedFile:
        """Describe the content of a merged file."""
        return cls(len(data), data[-TAIL_BYTES:])

    def is_at(self, storage: Storage, path: str) -> bool:
        """Whether the file still exists as it was written."""
        try:
            end = storage.read_range(path, self.size - len(self.tail), len(self.tail) + 1)
        except MissingFileError:
            return False
        return end == self.tail


def merge_history(writer: WriterContext, folder: str, settings: ArchivingSettings) -> int:
    """Merge the files of full levels; return the number of merges. The caller holds no lock.

    What another process changes at the same time is left to the next archiving.
    """
    storage, merges = writer.storage, 0
    while True:
        merge = _plan(storage, folder, settings)
        if merge is None:
            return merges
        with suppress(ConflictError, MissingFileError, UnavailableError):
            merged = _write_merged(writer, folder, merge)
            if merged is not None and writer.run_locked(
                _Publication(writer, folder, merge, merged)
            ):
                merges += 1
                continue
        return merges


def _plan(storage: Storage, folder: str, settings: ArchivingSettings) -> LevelMerge | None:
    manifest = HistoryWriter.load(storage, folder).manifest
    merge = plan_level_merge(manifest, settings.merge_files, settings.merge_bytes)
    return None if merge is None or _lists(manifest, merge.target.name) else merge


def _write_merged(writer: WriterContext, folder: str, merge: LevelMerge) -> MergedFile | None:
    """Write the merged file; None if there is one already that cannot be used or deleted."""
    storage, path = writer.storage, f"{folder}/{merge.target.name}"
    data, keys = _merged(storage, folder, merge)
    try:
        storage.create(path, data)
    except ConflictError:
        # Of another process that merges the same files, or of one that crashed.
        existing = storage.read(path)
        if _keys(existing) == keys:
            return MergedFile.of(existing)
        if not writer.run_locked(_Deletion(writer, folder, merge.target.name)):
            return None
        storage.create(path, data)
    return MergedFile.of(data)


def _merged(storage: Storage, folder: str, merge: LevelMerge) -> tuple[bytes, set[_EntryKey]]:
    """Return the merged file and the keys of its entries.

    The files are in memory as they are stored; what they hold is decoded a little at a time.
    """
    sources = [f"{folder}/{source.name}" for source in merge.sources]
    contents = storage.read_many(sources)
    keys: set[_EntryKey] = set()

    def merged() -> Iterator[ArchivedInstant]:
        for entry in merge_sorted(map(stream_archived_file, contents)):
            keys.add((entry.requested_at, entry.action))
            yield entry

    sink = pa.BufferOutputStream()
    with errors_in_file(f"{folder}: {', '.join(source.name for source in merge.sources)}"):
        write_archived_file(sink, merged())
    return sink.getvalue().to_pybytes(), keys


@dataclass(frozen=True, slots=True)
class _Deletion:
    """Deletes a file that no manifest lists, under the lock."""

    writer: WriterContext
    folder: str
    name: str

    def __call__(self, lock: Lock) -> bool:
        lock.verify()
        history = HistoryWriter.load(self.writer.storage, self.folder)
        return history.delete_unlisted(self.name)


@dataclass(frozen=True, slots=True)
class _Publication:
    """Publishes a merge under the lock, unless its sources or its file have changed."""

    writer: WriterContext
    folder: str
    merge: LevelMerge
    merged: MergedFile

    def __call__(self, lock: Lock) -> bool:
        storage, target = self.writer.storage, self.merge.target.name
        history = HistoryWriter.load(storage, self.folder)
        if not set(self.merge.sources) <= set(history.manifest.files):
            return False
        if _lists(history.manifest, target):
            return False
        # Archiving deletes files that no manifest lists.
        if not self.merged.is_at(storage, f"{self.folder}/{target}"):
            return False
        lock.verify()
        history.publish(with_merge(history.manifest, self.merge, self.merged.size))
        return True


def _lists(manifest: Manifest, name: str) -> bool:
    return any(file.name == name for file in manifest.files)


def _load(storage: Storage, folder: str, number: int) -> Manifest:
    path = f"{folder}/{manifest_name(number)}"
    with errors_in_file(path):
        return parse_manifest(storage.read(path))


def _keys(data: bytes) -> set[_EntryKey] | None:
    """Requested time and action of each entry of an archive file; None if it is corrupt."""
    try:
        entries = parse_archived_file(data, Selection())
    except CorruptError:
        return None
    return {(entry.requested_at, entry.action) for entry in entries}
