"""Test storages: one that counts calls, and one that simulates a crash of the process."""

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
    """A simulated crash of the process; a BaseException, so that no error handler catches it."""


class _Wrapped(ForwardingStorage, VersionedStorage):
    """Forwards every call to another storage; versioned if that one is."""

    __slots__ = ()

    def read_versioned(self, path: str) -> tuple[bytes, str]:
        """Forward the call; UnsupportedError if the inner storage has no versions."""
        return self._call(self._versioned().read_versioned, path)

    def replace_if(self, path: str, data: bytes, version: str | None) -> str:
        """Forward the call; UnsupportedError if the inner storage has no versions."""
        return self._call(self._versioned().replace_if, path, data, version)

    def _versioned(self) -> VersionedStorage:
        if not isinstance(self.inner, VersionedStorage):
            raise UnsupportedError("this storage has no versions", root=self.root)
        return self.inner


class CountingStorage(_Wrapped):
    """Counts the calls to a storage, whether they succeed or not.

    `calls` counts by method name. `touched` has one (method, path) for every path of a call, so
    that a `read_many` of fifty files is one call and fifty entries: what an object store bills.
    """

    __slots__ = ("_lock", "calls", "touched")

    def __init__(self, inner: Storage) -> None:
        super().__init__(inner)
        self.calls: Counter[str] = Counter()
        self.touched: list[tuple[str, str]] = []
        self._lock = threading.Lock()

    def reset(self) -> None:
        """Reset the counters."""
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
    """Raises `Crash` at the first change after `survive` changes, and at every later call.

    With `after_effect` the crash comes after that last change took effect, but before its caller
    gets the result. With `reads` every call counts, not only changes: a process may crash between
    reading and acting on what it read. `delete_many` and `delete_folder` count as one change per
    file, and the file of an `open_output` as one change: each is a point at which a process can
    crash.
    """

    __slots__ = ("_after_effect", "_crashed", "_lock", "_reads", "_remaining")

    def __init__(
        self, inner: Storage, survive: int, *, after_effect: bool = False, reads: bool = False
    ) -> None:
        super().__init__(inner)
        self._remaining = survive
        self._reads = reads
        self._after_effect = after_effect
        self._crashed = False
        self._lock = threading.RLock()

    @property
    def crashed(self) -> bool:
        """Whether the crash has happened."""
        return self._crashed

    def delete_many(self, paths: Iterable[str]) -> None:
        """Delete the files one by one."""
        for path in paths:
            self.delete(path)

    def delete_folder(self, folder: str) -> None:
        """Delete the files one by one, then the folder."""
        self.delete_many(sorted(file.path for file in self.list_tree(folder)))
        self._call(self.inner.delete_folder, folder)

    @contextmanager
    def open_output(self, path: str) -> Iterator[BinaryIO]:
        """Buffer the file and create it when the block ends."""
        buffer = io.BytesIO()
        yield buffer
        self.create(path, buffer.getvalue())

    def _call(self, method: Callable[..., Result], *arguments: Any) -> Result:
        if method.__name__ not in _CHANGES and not self._reads:
            self._check_not_crashed(method.__name__)
            return method(*arguments)
        with self._lock:
            self._check_not_crashed(method.__name__)
            self._remaining -= 1
            self._crashed = self._remaining < 0
            if self._crashed and not self._after_effect:
                raise Crash(f"before {method.__name__} {arguments[0]}")
            result = method(*arguments)
            if self._crashed:
                raise Crash(f"after {method.__name__} {arguments[0]}")
            return result

    def _check_not_crashed(self, name: str) -> None:
        if self._crashed:
            raise Crash(f"crashed before {name}")


_CHANGES = {"create", "replace", "replace_if", "delete", "delete_folder"}
