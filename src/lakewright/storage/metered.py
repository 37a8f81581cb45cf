"""Storages in front of others: every call goes through one door."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from typing import Any, BinaryIO, TypeVar

import pyarrow as pa

from lakewright.storage.base import FileStatus, IgnoredEntry, Storage, VersionedStorage

Result = TypeVar("Result")


class ForwardingStorage(Storage):
    """Forwards every call to another storage; `_call` is the door."""

    __slots__ = ("inner",)

    def __init__(self, inner: Storage) -> None:
        self.inner = inner

    def _call(self, method: Callable[..., Result], *arguments: Any) -> Result:
        return method(*arguments)

    @property
    def root(self) -> str:
        """The root of the storage behind."""
        return self.inner.root

    @property
    def has_own_clock(self) -> bool:
        """As the storage behind."""
        return self.inner.has_own_clock

    @property
    def parallel_listings(self) -> int:
        """As the storage behind."""
        return self.inner.parallel_listings

    @property
    def loses_unsynced(self) -> bool:
        """As the storage behind."""
        return self.inner.loses_unsynced

    def url(self, path: str) -> str:
        """Forward; this asks nothing of the store and is not counted."""
        return self.inner.url(path)

    def list_files(self, folder: str) -> list[FileStatus]:
        """Forward."""
        return self._call(self.inner.list_files, folder)

    def list_folders(self, folder: str) -> list[str]:
        """Forward."""
        return self._call(self.inner.list_folders, folder)

    def list_tree(self, folder: str) -> Iterator[FileStatus]:
        """Forward."""
        return self._call(self.inner.list_tree, folder)

    def list_many(self, folders: Iterable[str]) -> dict[str, list[FileStatus]]:
        """Forward."""
        return self._call(self.inner.list_many, list(folders))

    def list_temporary(self) -> list[FileStatus]:
        """Forward; it is not counted, as only a disk has such files."""
        return self.inner.list_temporary()

    def list_ignored(self) -> list[IgnoredEntry]:
        """Forward; it is not counted, as only a disk has such files."""
        return self.inner.list_ignored()

    def status(self, path: str) -> FileStatus | None:
        """Forward."""
        return self._call(self.inner.status, path)

    def exists(self, path: str) -> bool:
        """Forward."""
        return self._call(self.inner.exists, path)

    def read(self, path: str) -> bytes:
        """Forward."""
        return self._call(self.inner.read, path)

    def read_range(self, path: str, offset: int, length: int) -> bytes:
        """Forward."""
        return self._call(self.inner.read_range, path, offset, length)

    def read_many(self, paths: Iterable[str]) -> list[bytes]:
        """Forward."""
        return self._call(self.inner.read_many, list(paths))

    def open_input(self, path: str) -> pa.NativeFile:
        """Forward; what is read from the file later is not seen here."""
        return self._call(self.inner.open_input, path)

    def create(self, path: str, data: bytes) -> None:
        """Forward."""
        self._call(self.inner.create, path, data)

    def open_output(self, path: str) -> AbstractContextManager[BinaryIO]:
        """Forward."""
        return self._call(self.inner.open_output, path)

    def replace(self, path: str, data: bytes) -> None:
        """Forward."""
        self._call(self.inner.replace, path, data)

    def delete(self, path: str) -> None:
        """Forward."""
        self._call(self.inner.delete, path)

    def delete_many(self, paths: Iterable[str]) -> None:
        """Forward."""
        self._call(self.inner.delete_many, list(paths))

    def delete_folder(self, folder: str) -> None:
        """Forward."""
        self._call(self.inner.delete_folder, folder)

    def prune_folders(self, folder: str) -> None:
        """Forward; it is not counted, as only disks and HDFS have folders without files."""
        self.inner.prune_folders(folder)

    def unsynced(self) -> Storage:
        """The storage behind without its syncs, through the same door."""
        inner = self.inner.unsynced()
        return self if inner is self.inner else _SameDoor(self, inner)

    def sync(self, paths: Iterable[str]) -> None:
        """Forward; it is not counted, as only a disk does something here."""
        self.inner.sync(paths)


class _SameDoor(ForwardingStorage):
    """Another storage, whose calls go through the door of the first."""

    __slots__ = ("_first",)

    def __init__(self, first: ForwardingStorage, inner: Storage) -> None:
        super().__init__(inner)
        self._first = first

    def _call(self, method: Callable[..., Result], *arguments: Any) -> Result:
        return self._first._call(method, *arguments)


# ------------------------------------------------------------------------------------------------
# Storages that count what is asked of them, by the kind of call that a store bills.


CALL_KINDS = {
    "list_files": "list",
    "list_folders": "list",
    "list_tree": "list",
    "list_many": "list",
    "status": "status",
    "exists": "status",
    "read": "read",
    "read_range": "read",
    "read_many": "read",
    "read_versioned": "read",
    "open_input": "read",
    "create": "create",
    "open_output": "create",
    "replace": "replace",
    "replace_if": "replace",
    "delete": "delete",
    "delete_many": "delete",
    "delete_folder": "delete",
}


def _itself(storage: Storage) -> Storage:
    return storage


class MeteredStorage(ForwardingStorage):
    """Counts calls by kind, one for each path; sent to a worker it is the storage behind."""

    __slots__ = ("_calls", "_lock")

    def __init__(self, inner: Storage) -> None:
        super().__init__(inner)
        self._calls: Counter[str] = Counter()
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[Any, ...]:
        return _itself, (self.inner,)

    def take_counts(self) -> dict[str, int]:
        """The calls since this was asked last."""
        with self._lock:
            found = dict(self._calls)
            self._calls.clear()
        return found

    def _call(self, method: Callable[..., Result], *arguments: Any) -> Result:
        first = arguments[0]
        with self._lock:
            self._calls[CALL_KINDS[method.__name__]] += 1 if isinstance(first, str) else len(first)
        return method(*arguments)


class MeteredVersionedStorage(MeteredStorage, VersionedStorage):
    """The same, of a storage that has versions."""

    __slots__ = ()

    inner: VersionedStorage

    def read_versioned(self, path: str) -> tuple[bytes, str]:
        """Forward."""
        return self._call(self.inner.read_versioned, path)

    def replace_if(self, path: str, data: bytes, version: str | None) -> str:
        """Forward."""
        return self._call(self.inner.replace_if, path, data, version)


def metered(storage: Storage) -> MeteredStorage:
    """The storage, counted; one that is counted already stays as it is."""
    if isinstance(storage, MeteredStorage):
        return storage
    versioned = isinstance(storage, VersionedStorage)
    return MeteredVersionedStorage(storage) if versioned else MeteredStorage(storage)
