"""How many connections the server holds, and how long it waits for a request to arrive.

Uvicorn limits neither. A client that opens connections and sends half of a request would otherwise
keep them until no file descriptor is left for the others.
"""

from __future__ import annotations

import asyncio
import itertools
import resource

import h11
import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

REQUEST_S = 10
_MOST_CONNECTIONS = 100
# Of a process's file descriptors; the others are for tables, jobs and what is being accepted.
_SHARE = 3
_BACKLOG = 16
_GOODBYE_S = 3


def server_config(app: ASGIApp) -> uvicorn.Config:
    """How the page is served."""
    return uvicorn.Config(
        app,
        http=LimitedProtocol,
        log_level="warning",
        access_log=False,
        server_header=False,
        ws="none",
        backlog=_BACKLOG,
        timeout_graceful_shutdown=_GOODBYE_S,
    )


def most_connections() -> int:
    """How many connections this process holds at a time, by how many files it may have open."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files == resource.RLIM_INFINITY:
        return _MOST_CONNECTIONS
    return max(1, min(_MOST_CONNECTIONS, files // _SHARE))


class LimitedProtocol(H11Protocol):
    """A connection, one of a limited number, whose requests arrive within `REQUEST_S` seconds.

    Where one more comes, the one that has waited longest for a request is closed: half requests
    keep nobody out. Where all of them are being answered, the new one is closed.
    """

    _turns = itertools.count()
    _turn = 0
    _timer: asyncio.TimerHandle | None = None

    @property
    def is_waiting(self) -> bool:
        """Whether a request has yet to arrive, or the rest of one."""
        return self.conn.their_state in (h11.IDLE, h11.SEND_BODY)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """See `asyncio.Protocol`."""
        self.transport = transport
        if len(self.connections) >= most_connections() and not self._make_room():
            transport.abort()
            return
        super().connection_made(transport)
        self._await_request()

    def data_received(self, data: bytes) -> None:
        """See `asyncio.Protocol`."""
        super().data_received(data)
        if not self.is_waiting:
            self._stop_timer()
        elif self._timer is None:
            self._await_request()

    def connection_lost(self, exc: Exception | None) -> None:
        """See `asyncio.Protocol`."""
        self._stop_timer()
        super().connection_lost(exc)

    def _make_room(self) -> bool:
        known = [each for each in self.connections if isinstance(each, LimitedProtocol)]
        waiting = [each for each in known if each.is_waiting]
        if not waiting:
            return False
        oldest = min(waiting, key=lambda each: each._turn)
        # It is told of later than the next connection is made.
        self.connections.discard(oldest)
        oldest.transport.abort()
        return True

    def _await_request(self) -> None:
        self._turn = next(self._turns)
        self._timer = self.loop.call_later(REQUEST_S, self.transport.abort)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
