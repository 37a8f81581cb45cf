"""What `lakewright ui` does: it opens the tables, and serves the page until a signal says stop."""

from __future__ import annotations

import json
import secrets
import socket
from collections.abc import Mapping, Sequence
from contextlib import suppress

import uvicorn

from lakewright.clock import SystemClock
from lakewright.errors import InvalidError, UnavailableError
from lakewright.interfaces.cli.terminal import say
from lakewright.interfaces.ui.app import ui_app
from lakewright.interfaces.ui.guards import Guard, is_loopback
from lakewright.interfaces.ui.limits import server_config
from lakewright.interfaces.ui.link import opened_link
from lakewright.interfaces.ui.served import ServedTable
from lakewright.interfaces.ui.work import Jobs


def serve(
    paths: Sequence[str],
    options: Mapping[str, str],
    *,
    host: str,
    port: int,
    allow_writes: bool,
    open_browser: bool,
    master: str,
    load: Sequence[str],
    as_json: bool,
) -> None:
    """Serve the page of some tables; returns when a signal has said stop."""
    tables = [ServedTable.at(path, options) for path in paths]
    names = [table.summary()["name"] for table in tables]
    guard = Guard(secrets.token_urlsafe(24), host, allow_writes=allow_writes)
    jobs = Jobs(SystemClock(), master=master, load=load)
    with _bound(host, port) as bound, opened_link() as link:
        url = _url(host, bound.getsockname()[1], guard.token)
        _tell(url, names, guard, as_json=as_json)
        if open_browser:
            link.open(url)
        config = server_config(ui_app(tables, jobs, guard))
        with suppress(KeyboardInterrupt):
            uvicorn.Server(config).run(sockets=[bound])


def _bound(host: str, port: int) -> socket.socket:
    """A socket at an address, where nobody else listens yet."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except (OSError, OverflowError) as error:
        raise InvalidError("there is no such address here", host=host, port=port) from error
    found = socket.socket(family, kind, protocol)
    found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        found.bind(address)
        # Whoever follows the link at once waits for the server, and is not refused.
        found.listen()
    except OSError as error:
        found.close()
        raise UnavailableError(
            "this port cannot be taken: --port 0 takes one that is free",
            host=host,
            port=port,
            reason=error.strerror or str(error),
        ) from error
    return found


def _url(host: str, port: int, token: str) -> str:
    name = f"[{host}]" if ":" in host else host
    # Behind `#` it stays in the browser: it is in no request, no log and no referrer.
    return f"http://{name}:{port}/#token={token}"


def _tell(url: str, names: Sequence[str], guard: Guard, *, as_json: bool) -> None:
    if not is_loopback(guard.host):
        say(
            f"warning: bound to {guard.host}: all that is said, the token too, goes over the "
            "network in the clear",
            err=True,
        )
    if as_json:
        told = {"url": url, "tables": list(names), "allow_writes": guard.allow_writes}
        say(json.dumps(told))
        return
    say(f"{', '.join(names)}: {url}")
    may = "look at these tables"
    if guard.allow_writes:
        may += ", run services and cancel plans"
    say(f"who has this link may {may}: keep it to yourself")
    say("Ctrl-C to stop")
