"""Storages that count, and storages that die: to test what code asks for and what it survives."""

from __future__ import annotations

import io
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, BinaryIO, TypeVar

from lakewright.errors import UnsupportedError
from lakewright.storage.base import Storage, VersionedStorage
from lakewright.storage.metered import ForwardingStorage

Result = TypeVar("Result")


class Crash(BaseException):
    """The process is dead: no handler of the library may take this for an error of its own."""


class _Wrapped(ForwardingStorage, VersionedStorage):
    """Forwards every call to another storage, with versions if that has some."""

    __slots__ = ()

    def read_versioned(self, path: str) -> tuple[bytes, str]:
        """Forward; UnsupportedError if the storage behind has no versions."""
        return self._call(self._versioned().read_versioned, path)

    def replace_if(self, path: str, data: bytes, version: str | None) -> str:
        """Forward; UnsupportedError if the storage behind has no versions."""
        return self._call(self._versioned().replace_if, path, data, version)

    def _versioned(self) -> VersionedStorage:
        if not isinstance(self.inner, VersionedStorage):
            raise UnsupportedError("this storage has no versions", root=self.root)
        return self.inner


class CountingStorage(_Wrapped):
    """Counts what is asked of a storage, whether it succeeds or not.

    `calls` counts by method name. `touched` has one (method, path) for every path asked about,
    so that a `read_many` of fifty files is one call and fifty entries: what a store would bill.
    """

    __slots__ = ("_lock", "calls", "touched")

    def __init__(self, inner: Storage) -> None:
        super().__init__(inner)
        self.calls: Counter[str] = Counter()
        self.touched: list[tuple[str, str]] = []
        self._lock = threading.Lock()

    def reset(self) -> None:
        """Begin to count anew."""
        with self._lock:
            self.calls.clear()
            self.touched.clear()

    def _call(self, method: Callable[..., Result], *arguments: Any) -> Result:
        name, first = method.__name__, arguments[0]
        with self._lock:
            self.calls[name] += 1
            self.touched += [
                (name, path) for path in ([first] if isinstance(first, str) else first)
            ]
        return method(*arguments)


class CrashingStorage(_Wrapped):
    """Dies at the first change after `survive` changes, and stays dead.

    With `after_effect` that last change still happens, and only its caller never hears of it. With
    `reads` every call counts: a process may die after it has read, and before it acts on that.
    `delete_many` and `delete_folder` are as many changes as there are files to delete, and what
    `open_output` writes is one change: each is a moment at which a process can die.
    """

    __slots__ = ("_after_effect", "_dead", "_left", "_lock", "_reads")

    def __init__(
        self, inner: Storage, survive: int, *, after_effect: bool = False, reads: bool = False
    ) -> None:
        super().__init__(inner)
        self._left = survive
        self._reads = reads
        self._after_effect = after_effect
        self._dead = False
        self._lock = threading.RLock()

    @property
    def crashed(self) -> bool:
        """Whether the moment has come."""
        return self._dead

    def delete_many(self, paths: Iterable[str]) -> None:
        """Delete one by one."""
        for path in paths:
            self.delete(path)

    def delete_folder(self, folder: str) -> None:
        """Delete one by one, then what is left of the folder."""
        self.delete_many(sorted(file.path for file in self.list_tree(folder)))
        self._call(self.inner.delete_folder, folder)

    @contextmanager
    def open_output(self, path: str) -> Iterator[BinaryIO]:
        """Collect the file and create it when the block ends."""
        pieces = io.BytesIO()
        yield pieces
        self.create(path, pieces.getvalue())

    def _call(self, method: Callable[..., Result], *arguments: Any) -> Result:
        if method.__name__ not in _CHANGES and not self._reads:
            self._check_alive(method.__name__)
            return method(*arguments)
        with self._lock:
            self._check_alive(method.__name__)
            self._left -= 1
            self._dead = self._left < 0
            if self._dead and not self._after_effect:
                raise Crash(f"before {method.__name__} {arguments[0]}")
            result = method(*arguments)
            if self._dead:
                raise Crash(f"after {method.__name__} {arguments[0]}")
            return result

    def _check_alive(self, name: str) -> None:
        if self._dead:
            raise Crash(f"dead before {name}")


_CHANGES = {"create", "replace", "replace_if", "delete", "delete_folder"}
