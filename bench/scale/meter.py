"""One point of a curve: what a job asks of its storage, how long it takes, how much it holds."""

from __future__ import annotations

import ctypes
import gc
import re
import resource
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

from bench.scale.subject import Subject
from lakewright.storage.base import FileStatus, Storage
from lakewright.testing.storage import CountingStorage

Result = TypeVar("Result")

_STATUS = Path("/proc/self/status")
_CHUNK = 1000
_REPEAT_WITHIN = 0.5


@dataclass(frozen=True, slots=True)
class Point:
    """What a job cost at one size.

    `calls` counts every path asked for, as a store bills them. `seconds` are of the processor, and
    without the time that the synthetic storage itself took. `peak` are bytes above those held
    before the job began; None where it was not measured.
    """

    size: int
    calls: int
    bytes_read: int
    seconds: float
    storage_seconds: float
    peak: int | None = None


class MeteredStorage(CountingStorage):
    """Counts calls and bytes, and keeps the storage's own time apart."""

    __slots__ = ("bytes_read", "requests", "seconds")

    def __init__(self, inner: Storage) -> None:
        super().__init__(inner)
        self.requests = 0
        self.bytes_read = 0
        self.seconds = 0.0

    def list_tree(self, folder: str) -> Iterator[FileStatus]:
        files = self._call(self.inner.list_tree, folder)
        while True:
            with self._timed():
                chunk = list(islice(files, _CHUNK))
            if not chunk:
                return
            yield from chunk

    def _call(self, method: Callable[..., Result], *arguments: Any) -> Result:
        with self._timed():
            result = method(*arguments)
        pieces = result if isinstance(result, list) else [result]
        size = sum(len(piece) for piece in pieces if isinstance(piece, bytes))
        with self._lock:
            self.requests += 1 if isinstance(arguments[0], str) else len(arguments[0])
            self.bytes_read += size
        return result

    @contextmanager
    def _timed(self) -> Iterator[None]:
        # Of this thread alone: while it waits for its turn, others of the library work.
        started = time.thread_time()
        yield
        with self._lock:
            self.seconds += time.thread_time() - started


def measure(subject: Subject, size: int, *, repeats: int = 20) -> Point:
    """Build the subject at one size and do its job, several times if it is short.

    The best time counts: what disturbs a short job only adds to it.
    """
    storage = subject.build(size)
    _give_memory_back()
    rss_before = _resident_bytes("VmRSS")
    best = _run(subject, storage, size)
    peak = None if rss_before is None else max(0, (_resident_bytes("VmHWM") or 0) - rss_before)
    spent = best.seconds + best.storage_seconds
    for _ in range(0 if subject.changes else repeats - 1):
        if spent > _REPEAT_WITHIN:
            break
        repeated = _run(subject, storage, size)
        best = min(best, repeated, key=lambda point: point.seconds)
        spent += repeated.seconds + repeated.storage_seconds
    return replace(best, peak=peak)


def _run(subject: Subject, storage: Storage, size: int) -> Point:
    metered = MeteredStorage(storage)
    started = time.process_time()
    subject.run(metered)
    total = time.process_time() - started
    own_seconds = max(total - metered.seconds, 1e-6)
    return Point(size, metered.requests, metered.bytes_read, own_seconds, metered.seconds)


def _give_memory_back() -> None:
    """Let the peak begin at what is really held: what building needed is free again."""
    gc.collect()
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def _resident_bytes(name: str) -> int | None:
    """Bytes of resident memory, now (VmRSS) or at most so far (VmHWM)."""
    if _STATUS.exists():
        match = re.search(rf"^{name}:\s+(\d+) kB", _STATUS.read_text(), re.MULTILINE)
        return int(match[1]) * 1024 if match else None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
