"""Tables in the memory of this process, for tests, trials and examples."""

from __future__ import annotations

import io
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import BinaryIO

import pyarrow as pa

from lakewright.errors import ConflictError, InvalidError
from lakewright.storage.base import (
    FileStatus,
    MissingFileError,
    VersionedStorage,
    check_folder,
    check_path,
    check_range,
    content_version,
    is_hadoop_setting,
    join_path,
    split_path,
)


def _wall_ms() -> int:
    return time.time_ns() // 1_000_000


@dataclass(frozen=True, slots=True)
class _Stored:
    data: bytes
    modified_ms: int


@dataclass(slots=True)
class _Area:
    """The files of one name, by folder, so that listing a folder reads only its own files."""

    now_ms: Callable[[], int] = _wall_ms
    lock: threading.RLock = field(default_factory=threading.RLock)
    files: dict[str, dict[str, _Stored]] = field(default_factory=dict)
    folders: dict[str, set[str]] = field(default_factory=dict)

    def find(self, path: str) -> _Stored | None:
        folder, name = split_path(path)
        return self.files.get(folder, {}).get(name)

    def put(self, path: str, data: bytes) -> None:
        folder, name = split_path(path)
        self.files.setdefault(folder, {})[name] = _Stored(bytes(data), self.now_ms())
        while folder:
            parent, _ = split_path(folder)
            siblings = self.folders.setdefault(parent, set())
            if folder in siblings:
                return
            siblings.add(folder)
            folder = parent

    def remove(self, path: str) -> None:
        folder, name = split_path(path)
        self.files.get(folder, {}).pop(name, None)
        # Folders vanish with their last file, as on an object store.
        while not self.files.get(folder) and not self.folders.get(folder):
            self.files.pop(folder, None)
            self.folders.pop(folder, None)
            if not folder:
                return
            parent, _ = split_path(folder)
            self.folders.get(parent, set()).discard(folder)
            folder = parent

    def tree(self, folder: str) -> list[FileStatus]:
        files, pending = [], [folder]
        while pending:
            folder = pending.pop()
            files += self.listed(folder)
            pending += self.folders.get(folder, ())
        return files

    def listed(self, folder: str) -> list[FileStatus]:
        return [
            FileStatus(join_path(folder, name), len(stored.data), stored.modified_ms)
            for name, stored in self.files.get(folder, {}).items()
        ]


_AREAS: dict[str, _Area] = {}


@dataclass(frozen=True, slots=True)
class MemoryStorage(VersionedStorage):
    """Files in memory under a name, `memory://<name>`, until the process exits.

    Within one process, storages of the same name share their files; so does a pickled copy.
    """

    label: str

    def __post_init__(self) -> None:
        """Share the files of that name, or start with none."""
        _AREAS.setdefault(check_path(self.label), _Area())

    @classmethod
    def fresh(
        cls, files: Mapping[str, bytes] | None = None, now_ms: Callable[[], int] = _wall_ms
    ) -> MemoryStorage:
        """Return a storage with a new name and `files`; `now_ms` returns modification times."""
        label = secrets.token_hex(8)
        _AREAS[label] = _Area(now_ms)
        storage = cls(label)
        for path, data in (files or {}).items():
            storage.replace(path, data)
        return storage

    @classmethod
    def at(cls, uri: str, options: Mapping[str, str]) -> MemoryStorage:
        """Open a storage by its `memory://` URI; it has no options."""
        # One set of options serves many tables: ignore settings of other stores.
        unknown = sorted(name for name in options if not is_hadoop_setting(name))
        if unknown:
            raise InvalidError("a table in memory takes no options", options=unknown)
        return cls(uri.removeprefix("memory:").strip("/"))

    def files(self) -> dict[str, bytes]:
        """Return all current files, sorted by path: to compare them, or to fill another storage."""
        with self._area.lock:
            paths = sorted(file.path for file in self._area.tree(""))
            return {path: self.read(path) for path in paths}

    @property
    def parallel_listings(self) -> int:
        """One: nothing is waited for, so threads would only cost."""
        return 1

    @property
    def root(self) -> str:
        """The base path as a `memory://` URI, which only this library understands."""
        return f"memory://{self.label}"

    def list_files(self, folder: str) -> list[FileStatus]:
        """Return the files directly in `folder`, sorted by name."""
        with self._area.lock:
            files = self._area.listed(check_folder(folder))
        return sorted(files, key=lambda file: file.path)

    def list_folders(self, folder: str) -> list[str]:
        """Return the paths of the folders directly in `folder`, sorted."""
        with self._area.lock:
            return sorted(self._area.folders.get(check_folder(folder), ()))

    def list_tree(self, folder: str) -> Iterator[FileStatus]:
        """Yield all files in `folder` and below, as of the call."""
        with self._area.lock:
            return iter(self._area.tree(check_folder(folder)))

    def status(self, path: str) -> FileStatus | None:
        """Return size and modification time of one file, or None if it does not exist."""
        stored = self._area.find(check_path(path))
        if stored is None:
            return None
        return FileStatus(path, len(stored.data), stored.modified_ms)

    def read(self, path: str) -> bytes:
        """Return the whole file."""
        stored = self._area.find(check_path(path))
        if stored is None:
            raise MissingFileError("there is no such file", path=path)
        return stored.data

    def read_range(self, path: str, offset: int, length: int) -> bytes:
        """Return up to `length` bytes from `offset`; fewer, or none, at the end of the file."""
        check_range(path, offset, length)
        return self.read(path)[offset : offset + length]

    def open_input(self, path: str) -> pa.NativeFile:
        """Open a file for random access; the caller closes it."""
        return pa.BufferReader(self.read(path))

    def create(self, path: str, data: bytes) -> None:
        """Write a new file; ConflictError if it exists."""
        with self._area.lock:
            if self._area.find(check_path(path)) is not None:
                raise ConflictError("the file exists already", path=path)
            self._area.put(path, data)

    @contextmanager
    def open_output(self, path: str) -> Iterator[BinaryIO]:
        """Write a new file in pieces; the whole file appears when the block ends."""
        check_path(path)
        pieces = io.BytesIO()
        yield pieces
        self.create(path, pieces.getvalue())

    def replace(self, path: str, data: bytes) -> None:
        """Write a file whether it exists or not."""
        with self._area.lock:
            self._area.put(check_path(path), data)

    def read_versioned(self, path: str) -> tuple[bytes, str]:
        """Return the whole file and its version."""
        data = self.read(path)
        return data, content_version(data)

    def replace_if(self, path: str, data: bytes, version: str | None) -> str:
        """Write a file if it still has `version`; return the new version."""
        with self._area.lock:
            stored = self._area.find(check_path(path))
            if (stored and content_version(stored.data)) != version:
                raise ConflictError("the file was replaced concurrently", path=path)
            self._area.put(path, data)
        return content_version(data)

    def delete(self, path: str) -> None:
        """Delete a file if it exists."""
        with self._area.lock:
            self._area.remove(check_path(path))

    def delete_folder(self, folder: str) -> None:
        """Delete a folder with everything in it; never the root."""
        with self._area.lock:
            for file in self._area.tree(check_path(folder)):
                self._area.remove(file.path)

    @property
    def _area(self) -> _Area:
        # A pickled copy in another process has no files there: start with none.
        return _AREAS.get(self.label) or _AREAS.setdefault(self.label, _Area())
