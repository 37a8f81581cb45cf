"""Storages that count what is asked of them, by the kind of call that a store bills."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from typing import Any, TypeVar

from lakewright.storage.base import Storage, VersionedStorage
from lakewright.storage.forwarding import ForwardingStorage

Result = TypeVar("Result")

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


class CountedStorage(ForwardingStorage):
    """Counts calls by kind, one for each path; sent to a worker it is the storage behind."""

    __slots__ = ("_calls", "_lock")

    def __init__(self, inner: Storage) -> None:
        super().__init__(inner)
        self._calls: Counter[str] = Counter()
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[Any, ...]:
        return _itself, (self.inner,)

    def taken(self) -> dict[str, int]:
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


class CountedVersionedStorage(CountedStorage, VersionedStorage):
    """The same, of a storage that has versions."""

    __slots__ = ()

    inner: VersionedStorage

    def read_versioned(self, path: str) -> tuple[bytes, str]:
        """Forward."""
        return self._call(self.inner.read_versioned, path)

    def replace_if(self, path: str, data: bytes, version: str | None) -> str:
        """Forward."""
        return self._call(self.inner.replace_if, path, data, version)


def counted(storage: Storage) -> CountedStorage:
    """The storage, counted; one that is counted already stays as it is."""
    if isinstance(storage, CountedStorage):
        return storage
    versioned = isinstance(storage, VersionedStorage)
    return CountedVersionedStorage(storage) if versioned else CountedStorage(storage)
