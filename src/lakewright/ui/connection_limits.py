"""Limits on the number of connections of the server and on the time to receive a request.

Uvicorn limits neither. A client that opens connections and sends incomplete requests would
otherwise keep them open until the process has no file descriptors left for other clients.
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
_MAX_CONNECTIONS = 100
# Connections may use a third of the file descriptors of the process; the rest is for tables, jobs
# and connections that are being accepted.
_DESCRIPTORS_PER_CONNECTION = 3
_BACKLOG = 16
_SHUTDOWN_S = 3


def server_config(app: ASGIApp) -> uvicorn.Config:
    """The configuration of the web server."""
    return uvicorn.Config(
        app,
        http=LimitedProtocol,
        log_level="warning",
        access_log=False,
        server_header=False,
        ws="none",
        backlog=_BACKLOG,
        timeout_graceful_shutdown=_SHUTDOWN_S,
    )


def max_connections() -> int:
    """The maximum number of open connections, derived from the limit on open files."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files == resource.RLIM_INFINITY:
        return _MAX_CONNECTIONS
    return max(1, min(_MAX_CONNECTIONS, files // _DESCRIPTORS_PER_CONNECTION))


class LimitedProtocol(H11Protocol):
    """One of a limited number of connections; a request must arrive within `REQUEST_S` seconds.

    If the limit is reached, a new connection closes the one that has waited longest for a request,
    so that incomplete requests do not lock out other clients. If the server is answering requests
    on all of them, it closes the new connection.
    """

    _sequence = itertools.count()
    _waiting_since = 0
    _timer: asyncio.TimerHandle | None = None

    @property
    def is_waiting(self) -> bool:
        """Whether the server waits for a request or for the rest of one."""
        return self.conn.their_state in (h11.IDLE, h11.SEND_BODY)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """See `asyncio.Protocol`."""
        self.transport = transport
        if len(self.connections) >= max_connections() and not self._make_room():
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
        limited = [
            connection for connection in self.connections if isinstance(connection, LimitedProtocol)
        ]
        waiting = [connection for connection in limited if connection.is_waiting]
        if not waiting:
            return False
        oldest = min(waiting, key=lambda connection: connection._waiting_since)
        # asyncio calls its connection_lost only after further connections may have been made.
        self.connections.discard(oldest)
        oldest.transport.abort()
        return True

    def _await_request(self) -> None:
        self._waiting_since = next(self._sequence)
        self._timer = self.loop.call_later(REQUEST_S, self.transport.abort)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
