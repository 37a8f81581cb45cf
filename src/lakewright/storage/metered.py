"""Storages that wrap others: to intercept every call, or to count calls by kind."""

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
    """Forwards every call to another storage; subclasses override `_call` to intercept calls."""

    __slots__ = ("inner",)

    def __init__(self, inner: Storage) -> None:
        self.inner = inner

    def _call(self, method: Callable[..., Result], *arguments: Any) -> Result:
        return method(*arguments)

    @property
    def root(self) -> str:
        """The root of the inner storage."""
        return self.inner.root

    @property
    def has_own_clock(self) -> bool:
        """As the inner storage."""
        return self.inner.has_own_clock

    @property
    def is_remote(self) -> bool:
        """As the inner storage."""
        return self.inner.is_remote

    @property
    def parallel_listings(self) -> int:
        """As the inner storage."""
        return self.inner.parallel_listings

    @property
    def loses_unsynced(self) -> bool:
        """As the inner storage."""
        return self.inner.loses_unsynced

    def url(self, path: str) -> str:
        """Forward without `_call`: no request is made."""
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
        """Forward without `_call`: no object store has such files."""
        return self.inner.list_temporary()

    def list_ignored(self) -> list[IgnoredEntry]:
        """Forward without `_call`: only a disk has such entries."""
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
        """Forward; later reads from the file do not pass `_call`."""
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
        """Forward without `_call`: only disks and HDFS have folders without files."""
        self.inner.prune_folders(folder)

    def unsynced(self) -> Storage:
        """Return the unsynced inner storage, whose calls pass the same `_call`."""
        inner = self.inner.unsynced()
        return self if inner is self.inner else _SameCall(self, inner)

    def with_timeout(self, seconds: float) -> Storage:
        """Return the inner storage with this timeout, whose calls pass the same `_call`."""
        inner = self.inner.with_timeout(seconds)
        return self if inner is self.inner else _SameCall(self, inner)

    def sync(self, paths: Iterable[str]) -> None:
        """Forward without `_call`: only a disk syncs."""
        self.inner.sync(paths)


class _SameCall(ForwardingStorage):
    """Forwards to another storage, but through the `_call` of the first."""

    __slots__ = ("_first",)

    def __init__(self, first: ForwardingStorage, inner: Storage) -> None:
        super().__init__(inner)
        self._first = first

    def _call(self, method: Callable[..., Result], *arguments: Any) -> Result:
        return self._first._call(method, *arguments)


# Counted calls, by the kind of request that a store bills.
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


def _identity(storage: Storage) -> Storage:
    return storage


class MeteredStorage(ForwardingStorage):
    """Counts calls by kind, one for each path; a pickled copy is the inner storage, uncounted."""

    __slots__ = ("_calls", "_lock")

    def __init__(self, inner: Storage) -> None:
        super().__init__(inner)
        self._calls: Counter[str] = Counter()
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[Any, ...]:
        return _identity, (self.inner,)

    def take_counts(self) -> dict[str, int]:
        """Return the calls since the last call of this method."""
        with self._lock:
            counts = dict(self._calls)
            self._calls.clear()
        return counts

    def _call(self, method: Callable[..., Result], *arguments: Any) -> Result:
        first = arguments[0]
        with self._lock:
            self._calls[CALL_KINDS[method.__name__]] += 1 if isinstance(first, str) else len(first)
        return method(*arguments)


class MeteredVersionedStorage(MeteredStorage, VersionedStorage):
    """A metered storage with versions."""

    __slots__ = ()

    inner: VersionedStorage

    def read_versioned(self, path: str) -> tuple[bytes, str]:
        """Forward."""
        return self._call(self.inner.read_versioned, path)

    def replace_if(self, path: str, data: bytes, version: str | None) -> str:
        """Forward."""
        return self._call(self.inner.replace_if, path, data, version)


def metered(storage: Storage) -> MeteredStorage:
    """Return a metered storage; one that is metered already is returned as it is."""
    if isinstance(storage, MeteredStorage):
        return storage
    versioned = isinstance(storage, VersionedStorage)
    return MeteredVersionedStorage(storage) if versioned else MeteredStorage(storage)
