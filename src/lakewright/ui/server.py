"""The web server of `lakewright ui`: routes, access checks, error responses, and `serve`."""

from __future__ import annotations

import json
import re
import secrets
import socket
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from lakewright.client.documents import error_document
from lakewright.clock import SystemClock
from lakewright.errors import (
    ConflictError,
    CorruptError,
    InvalidError,
    LakewrightError,
    UnavailableError,
    UnsupportedError,
)
from lakewright.ui.browser_link import opened_link
from lakewright.ui.connection_limits import server_config
from lakewright.ui.guards import HEADERS, Guard, Refusal, is_loopback
from lakewright.ui.jobs import Jobs
from lakewright.ui.partitions import Page
from lakewright.ui.table_view import NotFoundError, TableView
from lakewright.utils.terminal import say

Document = dict[str, Any]

STATIC = Path(__file__).parent / "static"
_MAX_BODY_BYTES = 10_000
_MAX_REASON = 500
_SURROGATE = re.compile("[\ud800-\udfff]")
_STATUS: dict[type[LakewrightError], int] = {
    NotFoundError: 404,
    InvalidError: 400,
    ConflictError: 409,
    UnavailableError: 503,
    UnsupportedError: 501,
    CorruptError: 500,
}
_STATUS_MESSAGES = {
    404: "there is nothing at this address",
    405: "this address does not take that method",
}


@dataclass(frozen=True)
class Routes:
    """The request handlers for the served tables."""

    tables: Sequence[TableView]
    jobs: Jobs
    allow_writes: bool

    def all(self, request: Request) -> Document:
        """The served tables; for a table that cannot be opened, the error instead of a summary."""
        return {
            "allow_writes": self.allow_writes,
            "tables": [{"number": n, **_summary(t)} for n, t in enumerate(self.tables)],
        }

    def table(self, request: Request) -> Document:
        """One table."""
        number, table = self._table(request)
        return {"number": number, "allow_writes": self.allow_writes, **table.summary()}

    def pulse(self, request: Request) -> Document:
        """The version of the table and the state of its jobs, for polling."""
        number, table = self._table(request)
        return {**table.pulse(), "jobs": self.jobs.jobs_of(number)}

    def timeline(self, request: Request) -> Document:
        """The active timeline, and the archived timeline if requested."""
        archived = request.query_params.get("archived", "0")
        if archived not in ("0", "1"):
            raise InvalidError("archived is 0 or 1", archived=archived)
        return self._table(request)[1].timeline(archived=archived == "1")

    def instant(self, request: Request) -> Document:
        """One instant."""
        params = request.path_params
        return self._table(request)[1].instant(params["at"], params["action"])

    def properties(self, request: Request) -> Document:
        """The table properties."""
        return self._table(request)[1].properties()

    def partitions(self, request: Request) -> Document:
        """A page of partitions."""
        query = request.query_params
        order = query.get("order", "asc")
        if order not in ("asc", "desc"):
            raise InvalidError("the order is asc or desc", order=order)
        page = Page(
            search=query.get("search", ""),
            sort=query.get("sort", "partition"),
            descending=order == "desc",
            offset=_number(query, "offset", 0),
            limit=_number(query, "limit", 50),
        )
        return self._table(request)[1].partitions(page)

    def groups(self, request: Request) -> Document:
        """The file groups of a partition; the path of a non-partitioned table is empty."""
        query = request.query_params
        if "partition" not in query:
            raise InvalidError("which partition? give its path as partition=...")
        return self._table(request)[1].groups(query["partition"], _number(query, "offset", 0))

    def freshness(self, request: Request) -> Document:
        """Completion and freshness."""
        return self._table(request)[1].freshness()

    def plans(self, request: Request) -> Document:
        """The pending instants, and recent rollbacks."""
        return self._table(request)[1].plans()

    def services(self, request: Request) -> Document:
        """The table services, and the jobs started from the page."""
        number, table = self._table(request)
        return {**table.services(), "jobs": self.jobs.jobs_of(number)}

    def preview(self, request: Request) -> Document:
        """The plan that a service would schedule now."""
        return self._table(request)[1].preview(request.path_params["service"])

    def run(self, request: Request, body: Mapping[str, Any]) -> Document:
        """Run a service."""
        number, table = self._table(request)
        return self.jobs.run(number, table, request.path_params["service"])

    def stop(self, request: Request, body: Mapping[str, Any]) -> Document:
        """Ask a job to stop."""
        number, _ = self._table(request)
        return self.jobs.stop(number, request.path_params["job"])

    def cancel(self, request: Request, body: Mapping[str, Any]) -> Document:
        """Cancel a plan."""
        reason = body.get("reason", "")
        if not isinstance(reason, str) or len(reason) > _MAX_REASON:
            raise InvalidError(f"a reason is a text of up to {_MAX_REASON} characters")
        return self._table(request)[1].cancel(request.path_params["at"], "the page", reason)

    def _table(self, request: Request) -> tuple[int, TableView]:
        number = request.path_params["table"]
        if not 0 <= number < len(self.tables):
            served = f"0 to {len(self.tables) - 1}" if len(self.tables) > 1 else "0 alone"
            raise NotFoundError("no table of this number is served", table=number, served=served)
        return number, self.tables[number]


Rule = Callable[[str, Mapping[str, str]], Refusal | None]


class GuardMiddleware:
    """Checks every request against a rule, and adds the security headers to every response."""

    def __init__(self, app: ASGIApp, rule: Rule) -> None:
        self._app = app
        self._rule = rule

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers[name] = value
                headers.setdefault("cache-control", "no-cache")
            await send(message)

        received = {
            name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]
        }
        refusal = self._rule(scope["method"], received)
        response: ASGIApp = self._app
        if refusal is not None:
            response = _json_response({"error": refusal.reason}, refusal.status)
        await response(scope, receive, with_headers)


def ui_app(
    tables: Sequence[TableView],
    jobs: Jobs,
    guard: Guard,
) -> Starlette:
    """The ASGI application that serves these tables."""
    routes = Routes(tables, jobs, allow_writes=guard.allow_writes)
    table = "/tables/{table:int}"
    reads: dict[str, Callable[[Request], Document]] = {
        "/tables": routes.all,
        table: routes.table,
        f"{table}/pulse": routes.pulse,
        f"{table}/timeline": routes.timeline,
        f"{table}/instants/{{action}}/{{at}}": routes.instant,
        f"{table}/properties": routes.properties,
        f"{table}/partitions": routes.partitions,
        f"{table}/groups": routes.groups,
        f"{table}/freshness": routes.freshness,
        f"{table}/plans": routes.plans,
        f"{table}/services": routes.services,
        f"{table}/services/{{service}}/preview": routes.preview,
    }
    writes: dict[str, Callable[[Request, Mapping[str, Any]], Document]] = {
        f"{table}/services/{{service}}/run": routes.run,
        f"{table}/jobs/{{job:int}}/stop": routes.stop,
        f"{table}/plans/{{at}}/cancel": routes.cancel,
    }

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        yield
        await run_in_threadpool(jobs.close)

    return Starlette(
        routes=[
            Mount(
                "/api",
                routes=[
                    *(
                        Route(path, _read_route(read), methods=["GET"])
                        for path, read in reads.items()
                    ),
                    *(
                        Route(path, _write_route(write), methods=["POST"])
                        for path, write in writes.items()
                    ),
                ],
                middleware=[Middleware(GuardMiddleware, guard.api_refusal)],
            ),
            Mount("/", StaticFiles(directory=STATIC, html=True)),
        ],
        middleware=[Middleware(GuardMiddleware, guard.refusal)],
        exception_handlers={
            LakewrightError: _error_response,
            HTTPException: _status_response,
            Exception: _bug_response,
        },
        lifespan=lifespan,
    )


def _read_route(read: Callable[[Request], Document]) -> Callable[[Request], Response]:
    def respond(request: Request) -> Response:
        return _json_response(read(request))

    return respond


def _write_route(write: Callable[[Request, Mapping[str, Any]], Document]) -> Callable[..., Any]:
    async def respond(request: Request) -> Response:
        body = await _body(request)
        return _json_response(await run_in_threadpool(write, request, body))

    return respond


async def _body(request: Request) -> Mapping[str, Any]:
    """The JSON object in the body of a request; an empty body is an empty object."""
    data = b""
    async for chunk in request.stream():
        data += chunk
        if len(data) > _MAX_BODY_BYTES:
            raise HTTPException(413, f"a request brings at most {_MAX_BODY_BYTES} bytes")
    try:
        body = json.loads(data or b"{}")
    except ValueError as error:
        raise InvalidError("the body of the request is no JSON") from error
    except RecursionError as error:
        raise InvalidError("the body of the request is nested too deeply") from error
    if not isinstance(body, dict):
        raise InvalidError("the body of the request is no JSON object")
    return body


def _json_response(document: Document, status: int = 200) -> Response:
    # Values that have no JSON type are converted to text.
    text = json.dumps(document, default=str, ensure_ascii=False, allow_nan=False)
    # A lone surrogate cannot be encoded as UTF-8: it is shown as its escape sequence.
    text = _SURROGATE.sub(lambda match: rf"\\u{ord(match[0]):04x}", text)
    headers = {"cache-control": "no-store"}
    return Response(text.encode(), status, headers, media_type="application/json")


def _error_response(request: Request, error: Exception) -> Response:
    if not isinstance(error, LakewrightError):
        raise error
    status = next((code for kind, code in _STATUS.items() if isinstance(error, kind)), 500)
    return _json_response({"error": error.message, **error_document(error)}, status)


def _status_response(request: Request, error: Exception) -> Response:
    if not isinstance(error, HTTPException):
        raise error
    message = _STATUS_MESSAGES.get(error.status_code, error.detail)
    return _json_response({"error": message}, error.status_code)


def _bug_response(request: Request, error: Exception) -> Response:
    """The response to an unexpected exception; Starlette re-raises it for the server to log."""
    message = "an unexpected error: the output of the server has the details"
    response = _json_response({"error": message, "kind": type(error).__name__}, 500)
    # Starlette calls this handler outside of the middleware that adds the headers.
    response.headers.update(HEADERS)
    return response


def _number(query: Mapping[str, str], name: str, default: int) -> int:
    text = query.get(name, "")
    if not text:
        return default
    if not text.isascii() or not text.isdigit() or len(text) > 12:
        raise InvalidError(f"{name} is a whole number from 0 on", given=text[:_MAX_REASON])
    return int(text)


def _summary(table: TableView) -> Document:
    try:
        return table.summary()
    except LakewrightError as error:
        return {"path": table.path, "error": error.message}


# The command `lakewright ui`.


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
    """Serve the page of some tables until a signal stops the server."""
    tables = [TableView.at(path, options) for path in paths]
    names = [table.summary()["name"] for table in tables]
    guard = Guard(secrets.token_urlsafe(24), host, allow_writes=allow_writes)
    jobs = Jobs(SystemClock(), master=master, load=load)
    with _bound_socket(host, port) as bound, opened_link() as link:
        url = _url(host, bound.getsockname()[1], guard.token)
        _print_link(url, names, guard, as_json=as_json)
        if open_browser:
            link.open(url)
        config = server_config(ui_app(tables, jobs, guard))
        with suppress(KeyboardInterrupt):
            uvicorn.Server(config).run(sockets=[bound])


def _bound_socket(host: str, port: int) -> socket.socket:
    """A listening socket at an address; UnavailableError if the port is in use."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except (OSError, OverflowError) as error:
        raise InvalidError("there is no such address here", host=host, port=port) from error
    bound = socket.socket(family, kind, protocol)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        bound.bind(address)
        # A browser that opens the link before the server runs waits instead of being refused.
        bound.listen()
    except OSError as error:
        bound.close()
        raise UnavailableError(
            "this port cannot be taken: --port 0 takes one that is free",
            host=host,
            port=port,
            reason=error.strerror or str(error),
        ) from error
    return bound


def _url(host: str, port: int, token: str) -> str:
    name = f"[{host}]" if ":" in host else host
    # The browser does not send the fragment after `#`: the token is in no request line, log or
    # referrer.
    return f"http://{name}:{port}/#token={token}"


def _print_link(url: str, names: Sequence[str], guard: Guard, *, as_json: bool) -> None:
    if not is_loopback(guard.host):
        say(
            f"warning: bound to {guard.host}: all traffic, including the token, goes over the "
            "network in the clear",
            err=True,
        )
    if as_json:
        document = {"url": url, "tables": list(names), "allow_writes": guard.allow_writes}
        say(json.dumps(document))
        return
    say(f"{', '.join(names)}: {url}")
    permissions = "read these tables"
    if guard.allow_writes:
        permissions += ", run services and cancel plans"
    say(f"every user of this link may {permissions}: do not share it")
    say("Ctrl-C to stop")
