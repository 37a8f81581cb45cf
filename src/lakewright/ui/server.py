"""The web server: it hands requests on to the served tables, and refuses what is not allowed."""

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
_MOST_BODY = 10_000
_MOST_REASON = 500
_SURROGATE = re.compile("[\ud800-\udfff]")
_STATUS: dict[type[LakewrightError], int] = {
    NotFoundError: 404,
    InvalidError: 400,
    ConflictError: 409,
    UnavailableError: 503,
    UnsupportedError: 501,
    CorruptError: 500,
}
_TELLS = {
    404: "there is nothing at this address",
    405: "this address does not take that method",
}


@dataclass(frozen=True)
class Routes:
    """The answers to requests about some tables."""

    tables: Sequence[TableView]
    jobs: Jobs
    allow_writes: bool

    def all(self, request: Request) -> Document:
        """The tables that are served; one that cannot be opened tells why."""
        return {
            "allow_writes": self.allow_writes,
            "tables": [{"number": n, **_summary(t)} for n, t in enumerate(self.tables)],
        }

    def table(self, request: Request) -> Document:
        """One table."""
        number, table = self._table(request)
        return {"number": number, "allow_writes": self.allow_writes, **table.summary()}

    def pulse(self, request: Request) -> Document:
        """Whether anything is different."""
        number, table = self._table(request)
        return {**table.pulse(), "jobs": self.jobs.of(number)}

    def timeline(self, request: Request) -> Document:
        """The timeline, with history or without."""
        archived = request.query_params.get("archived", "0")
        if archived not in ("0", "1"):
            raise InvalidError("archived is 0 or 1", archived=archived)
        return self._table(request)[1].timeline(archived=archived == "1")

    def instant(self, request: Request) -> Document:
        """One instant."""
        words = request.path_params
        return self._table(request)[1].instant(words["at"], words["action"])

    def properties(self, request: Request) -> Document:
        """The table's properties."""
        return self._table(request)[1].properties()

    def partitions(self, request: Request) -> Document:
        """A page of partitions."""
        asked = request.query_params
        order = asked.get("order", "asc")
        if order not in ("asc", "desc"):
            raise InvalidError("the order is asc or desc", order=order)
        page = Page(
            search=asked.get("search", ""),
            sort=asked.get("sort", "partition"),
            descending=order == "desc",
            offset=_number(asked, "offset", 0),
            limit=_number(asked, "limit", 50),
        )
        return self._table(request)[1].partitions(page)

    def groups(self, request: Request) -> Document:
        """The file groups of a partition; one without a path is that of the whole table."""
        asked = request.query_params
        if "partition" not in asked:
            raise InvalidError("which partition? give its path as partition=...")
        return self._table(request)[1].groups(asked["partition"], _number(asked, "offset", 0))

    def freshness(self, request: Request) -> Document:
        """Completion and freshness."""
        return self._table(request)[1].freshness()

    def plans(self, request: Request) -> Document:
        """What is pending."""
        return self._table(request)[1].plans()

    def services(self, request: Request) -> Document:
        """The services, and what was run from here."""
        number, table = self._table(request)
        return {**table.services(), "jobs": self.jobs.of(number)}

    def preview(self, request: Request) -> Document:
        """What a service would do."""
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
        if not isinstance(reason, str) or len(reason) > _MOST_REASON:
            raise InvalidError(f"a reason is a text of up to {_MOST_REASON} characters")
        return self._table(request)[1].cancel(request.path_params["at"], "the page", reason)

    def _table(self, request: Request) -> tuple[int, TableView]:
        number = request.path_params["table"]
        if not 0 <= number < len(self.tables):
            served = f"0 to {len(self.tables) - 1}" if len(self.tables) > 1 else "0 alone"
            raise NotFoundError("no table of this number is served", table=number, served=served)
        return number, self.tables[number]


Rule = Callable[[str, Mapping[str, str]], Refusal | None]


class GuardMiddleware:
    """Holds every request to a rule, and puts the headers on every answer."""

    def __init__(self, app: ASGIApp, rule: Rule) -> None:
        self._app = app
        self._rule = rule

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
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

        told = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        refused = self._rule(scope["method"], told)
        answer: ASGIApp = self._app
        if refused is not None:
            answer = _answer({"error": refused.reason}, refused.status)
        await answer(scope, receive, with_headers)


def ui_app(
    tables: Sequence[TableView],
    jobs: Jobs,
    guard: Guard,
) -> Starlette:
    """The application that serves some tables."""
    pages = Routes(tables, jobs, allow_writes=guard.allow_writes)
    one = "/tables/{table:int}"
    looks: dict[str, Callable[[Request], Document]] = {
        "/tables": pages.all,
        one: pages.table,
        f"{one}/pulse": pages.pulse,
        f"{one}/timeline": pages.timeline,
        f"{one}/instants/{{action}}/{{at}}": pages.instant,
        f"{one}/properties": pages.properties,
        f"{one}/partitions": pages.partitions,
        f"{one}/groups": pages.groups,
        f"{one}/freshness": pages.freshness,
        f"{one}/plans": pages.plans,
        f"{one}/services": pages.services,
        f"{one}/services/{{service}}/preview": pages.preview,
    }
    changes: dict[str, Callable[[Request, Mapping[str, Any]], Document]] = {
        f"{one}/services/{{service}}/run": pages.run,
        f"{one}/jobs/{{job:int}}/stop": pages.stop,
        f"{one}/plans/{{at}}/cancel": pages.cancel,
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
                    *(Route(at, _read_route(look), methods=["GET"]) for at, look in looks.items()),
                    *(Route(at, _write_route(do), methods=["POST"]) for at, do in changes.items()),
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


def _read_route(look: Callable[[Request], Document]) -> Callable[[Request], Response]:
    def answer(request: Request) -> Response:
        return _answer(look(request))

    return answer


def _write_route(change: Callable[[Request, Mapping[str, Any]], Document]) -> Callable[..., Any]:
    async def answer(request: Request) -> Response:
        body = await _body(request)
        return _answer(await run_in_threadpool(change, request, body))

    return answer


async def _body(request: Request) -> Mapping[str, Any]:
    """The JSON object that a request brings; none is an empty one."""
    data = b""
    async for piece in request.stream():
        data += piece
        if len(data) > _MOST_BODY:
            raise HTTPException(413, f"a request brings at most {_MOST_BODY} bytes")
    try:
        found = json.loads(data or b"{}")
    except ValueError as error:
        raise InvalidError("the body of the request is no JSON") from error
    except RecursionError as error:
        raise InvalidError("the body of the request is nested too deeply") from error
    if not isinstance(found, dict):
        raise InvalidError("the body of the request is no JSON object")
    return found


def _answer(document: Document, status: int = 200) -> Response:
    # What is in no JSON (enums are texts, times are digits) is told as text.
    text = json.dumps(document, default=str, ensure_ascii=False, allow_nan=False)
    # Half of a pair is in no UTF-8: it is shown by its number.
    text = _SURROGATE.sub(lambda found: rf"\\u{ord(found[0]):04x}", text)
    headers = {"cache-control": "no-store"}
    return Response(text.encode(), status, headers, media_type="application/json")


def _error_response(request: Request, error: Exception) -> Response:
    if not isinstance(error, LakewrightError):
        raise error
    status = next((code for kind, code in _STATUS.items() if isinstance(error, kind)), 500)
    return _answer({"error": error.message, **error_document(error)}, status)


def _status_response(request: Request, error: Exception) -> Response:
    if not isinstance(error, HTTPException):
        raise error
    told = _TELLS.get(error.status_code, error.detail)
    return _answer({"error": told}, error.status_code)


def _bug_response(request: Request, error: Exception) -> Response:
    """What nobody has thought of; the server prints where it was."""
    told = "something went wrong that should not: what the server has printed tells more"
    answer = _answer({"error": told, "kind": type(error).__name__}, 500)
    answer.headers.update(HEADERS)
    return answer


def _number(asked: Mapping[str, str], name: str, usual: int) -> int:
    text = asked.get(name, "")
    if not text:
        return usual
    if not text.isascii() or not text.isdigit() or len(text) > 12:
        raise InvalidError(f"{name} is a whole number from 0 on", given=text[:_MOST_REASON])
    return int(text)


def _summary(table: TableView) -> Document:
    try:
        return table.summary()
    except LakewrightError as error:
        return {"path": table.path, "error": error.message}


# ------------------------------------------------------------------------------------------------
# What `lakewright ui` does: it opens the tables, and serves the page until a signal says stop.


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
    tables = [TableView.at(path, options) for path in paths]
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
