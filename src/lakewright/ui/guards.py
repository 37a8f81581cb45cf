"""Access rules that the server applies to every request. Pure."""

from __future__ import annotations

import hmac
import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

TOKEN_HEADER = "x-lakewright-token"
_READ_METHODS = ("GET", "HEAD")
_WRITE_METHOD = "POST"
_SAME_SITE = ("same-origin", "none")

HEADERS: Mapping[str, str] = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}


@dataclass(frozen=True, slots=True)
class Refusal:
    """The HTTP status and the reason with which the server refuses a request."""

    status: int
    reason: str


@dataclass(frozen=True, slots=True)
class Guard:
    """The access rules of one server: every request about tables, even to read, needs the token.

    The page itself (scripts, styles) needs no token: it contains no data of a table, and only its
    running script has the token, which is in the fragment of the link.
    """

    token: str
    host: str = "127.0.0.1"
    allow_writes: bool = False

    def refusal(self, method: str, headers: Mapping[str, str]) -> Refusal | None:
        """The refusal of any request, or None; header names are in lower case."""
        if not self._is_own_host(headers.get("host", "")):
            return Refusal(
                421,
                "this server is not known by that name: open it by its address, as it was printed",
            )
        if method not in (*_READ_METHODS, _WRITE_METHOD):
            return Refusal(405, "read with GET, change with POST; other methods are not supported")
        # Any site may link here: the link opens the page, which contains no data of a table.
        navigates = method == "GET" and headers.get("sec-fetch-mode") == "navigate"
        return None if navigates else _cross_site_refusal(headers)

    def api_refusal(self, method: str, headers: Mapping[str, str]) -> Refusal | None:
        """The refusal of a request about tables, or None; applied in addition to `refusal`."""
        refusal = _cross_site_refusal(headers)
        if refusal is not None:
            return refusal
        if method == _WRITE_METHOD and not self.allow_writes:
            return Refusal(
                403,
                "this page is read-only: start it with --allow-writes to run or cancel anything",
            )
        token = headers.get(TOKEN_HEADER)
        if not token:
            return Refusal(401, "a token is needed: open the link that was printed at the start")
        if not hmac.compare_digest(token.encode(), self.token.encode()):
            return Refusal(
                403, "the token is another one: open the link that was printed at the last start"
            )
        return None

    def _is_own_host(self, host_header: str) -> bool:
        """Whether the value of a `Host` header can only mean this server.

        Another site can make its own name resolve to this machine (DNS rebinding), but not a
        numeric address.
        """
        try:
            name = urlsplit(f"//{host_header}").hostname or ""
        except ValueError:
            return False
        return name in {"localhost", self.host.lower()} or is_address(name)


def _cross_site_refusal(headers: Mapping[str, str]) -> Refusal | None:
    """The refusal if a browser sends the request on behalf of another site."""
    origin = headers.get("origin")
    site = headers.get("sec-fetch-site", "none")
    same_origin = origin is None or origin == f"http://{headers.get('host', '')}"
    if site in _SAME_SITE and same_origin:
        return None
    return Refusal(403, "another site asked for this: only the page itself may")


def is_address(name: str) -> bool:
    """Whether a name is an IP address."""
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def is_loopback(host: str) -> bool:
    """Whether a server that is bound to this host can be reached from this machine only."""
    return host == "localhost" or (is_address(host) and ipaddress.ip_address(host).is_loopback)
