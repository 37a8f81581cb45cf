"""Tables on a disk of this machine, or on a network file system that is mounted here.

Several hosts may share a table on NFS only if they mount it with `noac` (or `actimeo=0`): by
default a client caches a folder for up to a minute, and a writer would overlook the commits of
others. A lock file that expires needs `flock` on a folder, which NFS does not support.
"""

from __future__ import annotations

import fcntl
import os
import re
import stat
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import BinaryIO

import pyarrow as pa

from lakewright.errors import ConflictError, CorruptError, InvalidError
from lakewright.storage.base import (
    FileStatus,
    IgnoredEntry,
    MissingFileError,
    VersionedStorage,
    check_folder,
    check_path,
    check_range,
    content_version,
    flag,
    is_hadoop_setting,
    is_path,
    is_temporary,
    join_path,
    map_in_threads,
    split_path,
)
from lakewright.storage.durable_disk import (
    DISK,
    DirectoryChanges,
    Disk,
    is_sidecar,
    matches,
    sidecar_name,
)
from lakewright.storage.os_errors import NOT_A_FILE, filling, reading, writing

_MANY_FILES = 32  # deleting fewer files takes less time than starting threads
_DELETE_BATCH = 128  # files of one folder that one thread deletes, with one sync
OPTIONS = ("verify_sidecars", "durable")


@dataclass(frozen=True, slots=True)
class LocalStorage(VersionedStorage):
    """Files below `folder`, which may be given as a path or as a `file:` URI.

    New bytes are written to a temporary file beside their target (a name that every reader of
    the format ignores), which is then linked or renamed: a killed process can leave a temporary
    file behind, but never half a file.

    - Hudi on the same disk writes a checksum file beside each file and refuses a file that does
      not match it. This storage deletes it before it replaces or deletes the file. `read` and
      `open_input` verify it, unless `verify_sidecars` is off; `read_range` does not.
    - With `durable`, which is the default, completed calls survive a power failure: the content of
      a file is synced before the file gets its name; then its folder and the folders above it are
      synced. Otherwise they survive only a crash of the process, as with Hadoop on a local disk.
    - A symbolic link to a folder is not part of the table: listings leave it out, and nothing is
      written or deleted behind it. The root may be a link, and so may files.
    """

    folder: str
    verify_sidecars: bool = True
    durable: bool = True
    disk: Disk = field(default=DISK, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Make the folder absolute, without resolving symbolic links."""
        object.__setattr__(self, "folder", os.path.abspath(_without_scheme(self.folder)))

    @classmethod
    def at(cls, uri: str, options: Mapping[str, str]) -> LocalStorage:
        """Open a storage by its URI or path; options: `verify_sidecars`, `durable`."""
        for name in options:
            # One set of options serves many tables: ignore settings of other stores.
            if name not in OPTIONS and not is_hadoop_setting(name):
                raise InvalidError("unknown option for a local table", option=name, known=OPTIONS)
        return cls(
            uri,
            verify_sidecars=flag(options, "verify_sidecars", default=True),
            durable=flag(options, "durable", default=True),
        )

    @property
    def root(self) -> str:
        """The base path as a `file://` URI, without escapes, like Hadoop's."""
        return f"file://{self.folder}"

    @property
    def loses_unsynced(self) -> bool:
        """Always: a power failure can lose unsynced files."""
        return True

    def list_files(self, folder: str) -> list[FileStatus]:
        """Return the files directly in `folder`, sorted by name."""
        files, _ = self._scan(folder) if self._listable(folder) else ([], [])
        return sorted(files, key=lambda file: file.path)

    def list_folders(self, folder: str) -> list[str]:
        """Return the paths of the folders directly in `folder`, sorted."""
        _, folders = self._scan(folder) if self._listable(folder) else ([], [])
        return sorted(folders)

    def list_tree(self, folder: str) -> Iterator[FileStatus]:
        """Yield all files in `folder` and below."""
        pending = [folder] if self._listable(folder) else []
        while pending:
            files, folders = self._scan(pending.pop())
            yield from files
            pending += folders

    def list_temporary(self) -> list[FileStatus]:
        """Return the temporary files of running or killed processes."""
        files = []
        with reading(""):
            for parent, _, names in os.walk(self.folder):
                for name in filter(is_temporary, names):
                    full = f"{parent}/{name}"
                    with suppress(FileNotFoundError):
                        path = os.path.relpath(full, self.folder)
                        files.append(_status(path, os.stat(full)))
        return files

    def list_ignored(self) -> list[IgnoredEntry]:
        """Return entries whose names are no valid paths, and links to folders."""
        ignored = []
        with reading(""):
            for parent, folders, names in os.walk(self.folder):
                for name in (*folders, *names):
                    full = f"{parent}/{name}"
                    shown = _escaped(os.path.relpath(full, self.folder))
                    if not is_path(name):
                        ignored.append(IgnoredEntry(shown, "the name is no path of a table"))
                    elif os.path.islink(full) and os.path.isdir(full):
                        ignored.append(IgnoredEntry(shown, "a symbolic link to a folder"))
        return sorted(ignored, key=lambda entry: entry.name)

    def status(self, path: str) -> FileStatus | None:
        """Return size and modification time of one file, or None if it does not exist."""
        full = self._full(path)
        with reading(path):
            try:
                stats = os.stat(full)
            except NOT_A_FILE:
                return None
        return _status(path, stats) if stat.S_ISREG(stats.st_mode) else None

    def read(self, path: str) -> bytes:
        """Return the whole file, verified against Hadoop's checksum file if it has one."""
        full = self._full(path)
        # Read the bytes before the checksum: this library deletes the checksum before it changes
        # the bytes. A Java writer rewrites both, so only a second mismatch counts.
        for _ in range(2):
            with reading(path):
                data = _bytes_of(full)
                if not self.verify_sidecars or matches(data, _sidecar_bytes(full)):
                    return data
        sidecar = _sidecar(full)
        raise CorruptError("a file does not match its checksum file", file=full, sidecar=sidecar)

    def read_range(self, path: str, offset: int, length: int) -> bytes:
        """Return up to `length` bytes from `offset`; fewer, or none, at the end of the file."""
        check_range(path, offset, length)
        full = self._full(path)
        with reading(path), open(full, "rb") as file:
            file.seek(offset)
            return file.read(length)

    def open_input(self, path: str) -> pa.NativeFile:
        """Open a file for random access; the caller closes it.

        A file with a checksum file is read as a whole, because a part cannot be verified. Only
        files that Hadoop wrote to this disk have one.
        """
        full = self._full(path)
        if self.verify_sidecars and os.path.exists(_sidecar(full)):
            return pa.BufferReader(self.read(path))
        with reading(path):
            if os.path.isdir(full):
                raise IsADirectoryError(full)
            return pa.OSFile(full)

    def create(self, path: str, data: bytes) -> None:
        """Write a new file; ConflictError if it exists."""
        with writing(path), self._changes.unfinished(*_split(path)) as unfinished:
            unfinished.file.write(data)
            self._changes.publish(unfinished)

    @contextmanager
    def open_output(self, path: str) -> Iterator[BinaryIO]:
        """Write a new file in pieces; the whole file appears when the block ends."""
        with writing(path), self._changes.unfinished(*_split(path)) as unfinished:
            with filling(path):
                yield unfinished.file
            self._changes.publish(unfinished)

    def replace(self, path: str, data: bytes) -> None:
        """Write a file whether it exists or not."""
        with writing(path), self._changes.unfinished(*_split(path)) as unfinished:
            unfinished.file.write(data)
            self._changes.publish_over(unfinished)

    def read_versioned(self, path: str) -> tuple[bytes, str]:
        """Return the whole file and its version."""
        data = self.read(path)
        return data, content_version(data)

    def replace_if(self, path: str, data: bytes, version: str | None) -> str:
        """Write a file if it still has `version`; return the new version."""
        if version is None:
            self.create(path, data)
            return content_version(data)
        try:
            with reading(path), self._changes.opened(_split(path)[0]) as folder, _locked(folder):
                if self.read_versioned(path)[1] == version:
                    self.replace(path, data)
                    return content_version(data)
        except MissingFileError as error:
            raise ConflictError("the file does not exist any more", path=path) from error
        raise ConflictError("the file was replaced concurrently", path=path)

    def delete(self, path: str) -> None:
        """Delete a file if it exists, and before it its checksum file."""
        self.delete_many([path])

    def delete_many(self, paths: Iterable[str]) -> None:
        """Delete several files, concurrently, because each sync waits for the disk."""
        by_folder = _by_folder(paths)
        batches = [
            (folder, names[start : start + _DELETE_BATCH])
            for folder, names in by_folder.items()
            for start in range(0, len(names), _DELETE_BATCH)
        ]
        few = not self.durable and sum(map(len, by_folder.values())) < _MANY_FILES
        map_in_threads(self._delete_batch, batches, 1 if few else self.disk.threads)

    def delete_folder(self, folder: str) -> None:
        """Delete a folder with everything in it, or a link itself; never the root."""
        with writing(folder):
            self._changes.delete_folder(*_split(folder))

    def unsynced(self) -> LocalStorage:
        """Return the storage of the same folder without syncs."""
        return replace(self, durable=False) if self.durable else self

    def sync(self, paths: Iterable[str]) -> None:
        """Sync files concurrently, then their folders; does nothing unless `durable`."""
        if self.durable:
            by_folder = _by_folder(paths)
            files = [join_path(folder, name) for folder in by_folder for name in by_folder[folder]]
            map_in_threads(self._sync_content, files, self.disk.threads)
            map_in_threads(self._sync_named, [*by_folder], self.disk.threads)

    def prune_folders(self, folder: str) -> None:
        """Delete a folder and the folders below it that contain no file; never the root."""
        with writing(folder):
            self._changes.prune_folders(*_split(folder))

    def _full(self, path: str) -> str:
        return f"{self.folder}/{check_path(path)}"

    def _scan(self, folder: str) -> tuple[list[FileStatus], list[str]]:
        files, folders = [], []
        full = f"{self.folder}/{folder}"
        with reading(folder), suppress(*NOT_A_FILE), os.scandir(full) as entries:
            for entry in entries:
                # A file may be deleted between the two calls; a dangling link is no file either.
                with suppress(FileNotFoundError):
                    # A printable name is a valid path; the full check takes longer.
                    if not (entry.name.isprintable() or is_path(entry.name)):
                        continue
                    if entry.is_dir(follow_symlinks=False):
                        folders.append(join_path(folder, entry.name))
                    elif entry.is_symlink() and entry.is_dir():
                        _warn_of_link(f"{full}/{entry.name}")
                    elif not _hidden(entry.name):
                        files.append(_status(join_path(folder, entry.name), entry.stat()))
        return files, folders

    def _listable(self, folder: str) -> bool:
        """Whether neither the folder nor a folder above it is a symbolic link."""
        full = self.folder
        for name in check_folder(folder).split("/"):
            full = f"{full}/{name}"
            if name and os.path.islink(full):
                _warn_of_link(full)
                return False
        return True

    @property
    def _changes(self) -> DirectoryChanges:
        return DirectoryChanges(self.folder, self.durable, self.disk)

    def _sync_content(self, path: str) -> None:
        with writing(path), suppress(*NOT_A_FILE):
            self._changes.sync_content(*split_path(path))

    def _sync_named(self, folder: str) -> None:
        with writing(folder):
            self._changes.sync_entry(folder)

    def _delete_batch(self, files: tuple[str, list[str]]) -> None:
        with writing(files[0]):
            self._changes.delete(*files)


def _split(path: str) -> tuple[str, str]:
    return split_path(check_path(path))


def _by_folder(paths: Iterable[str]) -> dict[str, list[str]]:
    by_folder: dict[str, list[str]] = {}
    for path in paths:
        folder, name = _split(path)
        by_folder.setdefault(folder, []).append(name)
    return by_folder


def _without_scheme(uri: str) -> str:
    if not uri.startswith("file:"):
        return uri
    path = uri.removeprefix("file:")
    if path.startswith("//"):
        path = path[2:]
    if not path.startswith("/"):
        raise InvalidError("a file URI names no absolute path on this machine", uri=uri)
    return path


def _warn_of_link(full: str) -> None:
    warnings.warn(
        f"{full} is a symbolic link to a folder: it is no part of the table, and not listed",
        RuntimeWarning,
        stacklevel=4,
    )


def _escaped(name: str) -> str:
    """Return a printable name: invalid UTF-8 and control characters as escapes."""
    text = name.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
    return re.sub(r"[\x00-\x1f\x7f]", lambda match: f"\\x{ord(match[0]):02x}", text)


def _hidden(name: str) -> bool:
    return is_sidecar(name) or is_temporary(name)


def _status(path: str, stats: os.stat_result) -> FileStatus:
    return FileStatus(path, stats.st_size, stats.st_mtime_ns // 1_000_000)


def _sidecar(full: str) -> str:
    folder, name = os.path.split(full)
    return f"{folder}/{sidecar_name(name)}"


def _bytes_of(full: str) -> bytes:
    with open(full, "rb", buffering=0) as file:
        return file.read()


def _sidecar_bytes(full: str) -> bytes:
    try:
        return _bytes_of(sidecar) if os.path.exists(sidecar := _sidecar(full)) else b""
    except FileNotFoundError:
        return b""


@contextmanager
def _locked(folder: int) -> Iterator[None]:
    # The lock is on the folder itself: it leaves no file, and ends with its process.
    fcntl.flock(folder, fcntl.LOCK_EX)
    try:
        yield
    finally:
        fcntl.flock(folder, fcntl.LOCK_UN)
