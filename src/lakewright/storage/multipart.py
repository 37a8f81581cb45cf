"""Uploads of large files in parts, while they are still being written."""

from __future__ import annotations

import io
import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from tempfile import SpooledTemporaryFile
from typing import IO, Any

from lakewright.errors import UnavailableError

# Parts that wait for the upload; the client holds some more.
_MAX_WAITING = 1
# Files that a process uploads at once, each with some parts in memory.
_UPLOADS = threading.BoundedSemaphore(8)


class _Aborted(Exception):
    """The file is not to appear."""


class PartQueue:
    """The parts of one file, passed from the thread that writes it to the one that uploads it."""

    def __init__(self, max_waiting: int = _MAX_WAITING) -> None:
        self._max_waiting = max_waiting
        self._parts: deque[bytes] = deque()
        self._changed = threading.Condition()
        self._ended = self._aborted = self._stopped = False

    def put(self, part: bytes) -> None:
        """Add a part; wait while enough parts wait, unless nobody takes them any more."""
        with self._changed:
            self._changed.wait_for(lambda: self._stopped or len(self._parts) < self._max_waiting)
            self._parts.append(part)
            self._changed.notify_all()

    def end(self) -> None:
        """No part follows: the file is complete."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def abort(self) -> None:
        """Fail the upload."""
        with self._changed:
            self._aborted = True
            self._changed.notify_all()

    def stop(self) -> None:
        """The upload has ended: parts are not taken any more."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()

    @property
    def stopped(self) -> bool:
        """Whether the upload has ended."""
        return self._stopped

    def __iter__(self) -> Iterator[bytes]:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._parts or self._ended or self._aborted)
                if self._aborted:
                    raise _Aborted
                if not self._parts:
                    return
                part = self._parts.popleft()
                self._changed.notify_all()
            yield part


class MultipartOutput(io.RawIOBase):
    """A file that is written in pieces: a small one is kept, a large one is uploaded meanwhile.

    `upload(parts)` uploads the parts that it iterates over, and makes the file appear when they
    end; if the iteration fails, no file may appear. A few large files of a process are uploaded at
    once, which bounds its memory; others are kept on local disk.
    """

    def __init__(
        self, upload: Callable[[PartQueue], object], *, part_bytes: int, small_bytes: int
    ) -> None:
        super().__init__()
        self._upload = upload
        self._part_bytes = part_bytes
        self._small_bytes = small_bytes
        self._kept = SpooledTemporaryFile(small_bytes)  # noqa: SIM115
        self._size = 0
        self._buffer = bytearray()
        self._queue: PartQueue | None = None
        self._pool: ThreadPoolExecutor | None = None
        self._uploading: Future[Any] | None = None

    def writable(self) -> bool:
        """Always True."""
        return True

    def tell(self) -> int:
        """Return how many bytes were written."""
        return self._size

    def write(self, data: Any) -> int:
        """Add bytes; raise the error of the upload if it has failed."""
        view = memoryview(data)
        self._size += view.nbytes
        if self._queue is None:
            self._kept.write(view)
            if self._size > self._small_bytes and _UPLOADS.acquire(blocking=False):
                self._start()
        else:
            self._buffer += view
        if self._queue is not None:
            self._send(self._part_bytes)
        return view.nbytes

    def kept(self) -> IO[bytes] | None:
        """Return the whole content, to be read, or None if it is being uploaded."""
        if self._queue is not None:
            return None
        self._kept.seek(0)
        return self._kept

    def complete(self) -> None:
        """Upload what is left of a file that is being uploaded, and wait until it has appeared."""
        assert self._queue is not None
        self._send(1)
        self._queue.end()
        self._wait()

    def discard(self) -> None:
        """Free what is kept; a file that is still being uploaded does not appear."""
        if self._queue is not None and self._uploading is not None:
            self._queue.abort()
            # The error is that of the writer, or was raised by `write`.
            self._uploading.exception()
            self._shut_down()
        self._kept.close()

    def _start(self) -> None:
        queue = self._queue = PartQueue()
        self._pool = ThreadPoolExecutor(1, "upload")
        self._uploading = self._pool.submit(self._run, queue)
        self._kept.seek(0)
        while piece := self._kept.read(self._part_bytes):
            self._buffer += piece
            self._send(self._part_bytes)
        self._kept.close()

    def _run(self, queue: PartQueue) -> None:
        try:
            self._upload(queue)
        finally:
            queue.stop()
            _UPLOADS.release()

    def _send(self, at_least: int) -> None:
        assert self._queue is not None
        while len(self._buffer) >= at_least:
            part = bytes(self._buffer[: self._part_bytes])
            del self._buffer[: self._part_bytes]
            self._queue.put(part)
            if self._queue.stopped:
                self._wait()
                raise UnavailableError("the upload of a file has ended before the file")

    def _wait(self) -> None:
        assert self._uploading is not None
        try:
            self._uploading.result()
        finally:
            self._shut_down()

    def _shut_down(self) -> None:
        if self._pool is not None:
            self._pool.shutdown()
