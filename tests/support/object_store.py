"""An object store in memory that records every request, and which requests waited for which.

The requests are those that `ObjectStorage` sends by its client. `Request.after` is the number of
requests that had to be answered, one after the other, before this one could be sent: requests of
different threads do not wait for one another.
"""

from __future__ import annotations

import secrets
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import obstore
import pytest
from obstore.store import MemoryStore

from lakewright.storage import object_store
from lakewright.storage.object_store import ObjectLocation, ObjectStorage

_PAGE = 1000


@dataclass(frozen=True, slots=True)
class Request:
    """One request: what it asks for, of which key, and how many answers it had to wait for."""

    kind: str
    path: str
    after: int


class _Waited(threading.local):
    answers = 0


@dataclass
class Requests:
    """The requests to a store since the last `clear`."""

    storage: ObjectStorage
    log: list[Request] = field(default_factory=list)
    _waited: _Waited = field(default_factory=_Waited)
    _ends: dict[Future[Any], int] = field(default_factory=dict)

    def clear(self) -> None:
        """Forget all requests."""
        self.log.clear()
        self._ends.clear()
        self._waited.answers = 0

    def by_kind(self) -> Counter[str]:
        """Return how many requests of each kind there were."""
        return Counter(request.kind for request in self.log)

    def lists_below(self, folder: str) -> list[str]:
        """Return the folders below `folder`, or it itself, that were listed."""
        listed = [request.path for request in self.log if request.kind == "LIST"]
        return [path for path in listed if f"{path}/".startswith(f"{folder}/")]

    @property
    def longest_chain(self) -> int:
        """How many requests waited for one another, at most."""
        return max((request.after + 1 for request in self.log), default=0)

    def chain(self) -> list[Request]:
        """Return the requests in the order of their places in the chains, for messages."""
        return sorted(self.log, key=lambda request: request.after)

    def add(self, kind: str, path: str) -> None:
        """Record a request of this thread."""
        self.log.append(Request(kind, path, self._waited.answers))
        self._waited.answers += 1

    def submit(
        self, original: Callable[..., Any], pool: ThreadPoolExecutor, call: Callable[..., Any]
    ) -> Future[Any]:
        """Submit a call that waits for what its caller has waited for."""
        start, done = self._waited.answers, threading.Event()
        box: list[Future[Any]] = []

        def run() -> Any:
            self._waited.answers = start
            try:
                return call()
            finally:
                done.wait()
                self._ends[box[0]] = self._waited.answers

        future: Future[Any] = original(pool, run)
        box.append(future)
        done.set()
        return future

    def waited_for(self, future: Future[Any]) -> None:
        """The caller of this thread has the result of a call in another thread."""
        self._waited.answers = max(self._waited.answers, self._ends.get(future, 0))


class _RecordingClient:
    """The functions of the client, each of which records its requests first."""

    def __init__(self, requests: Requests) -> None:
        self._requests = requests

    def __getattr__(self, name: str) -> Any:
        return getattr(obstore, name)

    def head(self, store: Any, path: str) -> Any:
        self._requests.add("HEAD", path)
        return obstore.head(store, path)

    def get(self, store: Any, path: str, *, options: Any = None) -> Any:
        self._requests.add("HEAD" if options and options.get("head") else "GET", path)
        return obstore.get(store, path, options=options)

    def get_range(self, store: Any, path: str, **range_: int) -> Any:
        self._requests.add("GET", path)
        return obstore.get_range(store, path, **range_)

    def put(self, store: Any, path: str, data: Any, **options: Any) -> Any:
        self._requests.add("PUT", path)
        return obstore.put(store, path, data, **options)

    def delete(self, store: Any, paths: str | Sequence[str]) -> Any:
        keys = [paths] if isinstance(paths, str) else list(paths)
        for first in range(0, len(keys), _PAGE):
            self._requests.add("DELETE", keys[first])
        return obstore.delete(store, keys)

    def list_with_delimiter(self, store: Any, prefix: str | None) -> Any:
        self._requests.add("LIST", prefix or "")
        return obstore.list_with_delimiter(store, prefix)

    def list(self, store: Any, prefix: str | None, **options: Any) -> Iterable[Any]:
        self._requests.add("LIST", prefix or "")
        for number, page in enumerate(obstore.list(store, prefix, **options)):
            if number:
                self._requests.add("LIST", prefix or "")
            yield page


@contextmanager
def recorded_requests(kind: str = "memory") -> Iterator[Requests]:
    """An empty object store in memory, and the requests to it while the block runs.

    `kind` may be that of a store whose requests differ.
    """
    location = ObjectLocation(f"memory-objects://{secrets.token_hex(8)}", kind, "bucket", "")
    requests = Requests(ObjectStorage(location))
    submit, result = ThreadPoolExecutor.submit, Future.result

    def recording_submit(
        pool: ThreadPoolExecutor, call: Callable[..., Any], /, *arguments: Any, **named: Any
    ) -> Future[Any]:
        return requests.submit(submit, pool, lambda: call(*arguments, **named))

    def recording_result(future: Future[Any], timeout: float | None = None) -> Any:
        try:
            return result(future, timeout)
        finally:
            requests.waited_for(future)

    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(object_store._CLIENTS, kind, lambda *_, **__: MemoryStore())
        patch.setattr(object_store, "obstore", _RecordingClient(requests))
        patch.setattr(ThreadPoolExecutor, "submit", recording_submit)
        patch.setattr(Future, "result", recording_result)
        yield requests
