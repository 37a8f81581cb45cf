"""Who may ask, and for what: the rules that every request is held to. Pure."""

from __future__ import annotations

import hmac
import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

TOKEN_HEADER = "x-lakewright-token"
_READING = ("GET", "HEAD")
_WRITING = "POST"
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
    """Why a request is not answered, and the status that says so."""

    status: int
    reason: str


@dataclass(frozen=True, slots=True)
class Guard:
    """What a server lets through: tables are for requests with the token alone, to read as well.

    The page itself (its scripts, its styles) is open: it tells nothing of any table, and the token
    that came with the link is at hand only once it runs.
    """

    token: str
    host: str = "127.0.0.1"
    allow_writes: bool = False

    def refusal(self, method: str, headers: Mapping[str, str]) -> Refusal | None:
        """Why a request is refused, whatever it asks for; names of headers are in lower case."""
        if not self._is_ours(headers.get("host", "")):
            return Refusal(
                421,
                "this server is not known by that name: open it by its address, as it was printed",
            )
        if method not in (*_READING, _WRITING):
            return Refusal(405, "look with GET, change something with POST; nothing else is known")
        # A link may lead here from anywhere; what it opens is the page, without a table.
        opens = method == "GET" and headers.get("sec-fetch-mode") == "navigate"
        return None if opens else _foreign(headers)

    def api_refusal(self, method: str, headers: Mapping[str, str]) -> Refusal | None:
        """Why a request about tables is refused, on top of that."""
        foreign = _foreign(headers)
        if foreign is not None:
            return foreign
        if method == _WRITING and not self.allow_writes:
            return Refusal(
                403, "this page only looks: start it with --allow-writes to run or cancel something"
            )
        given = headers.get(TOKEN_HEADER)
        if not given:
            return Refusal(401, "a token is needed: open the link that was printed at the start")
        if not hmac.compare_digest(given.encode(), self.token.encode()):
            return Refusal(
                403, "the token is another one: open the link that was printed at the last start"
            )
        return None

    def _is_ours(self, asked: str) -> bool:
        """Whether a name in `Host` can only mean this server.

        Another site may have its own name resolved to this machine (DNS rebinding), but not an
        address in digits.
        """
        try:
            name = urlsplit(f"//{asked}").hostname or ""
        except ValueError:
            return False
        return name in {"localhost", self.host.lower()} or is_address(name)


def _foreign(headers: Mapping[str, str]) -> Refusal | None:
    """Whether a browser asks on behalf of another site."""
    origin = headers.get("origin")
    site = headers.get("sec-fetch-site", "none")
    ours = origin is None or origin == f"http://{headers.get('host', '')}"
    if site in _SAME_SITE and ours:
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
    """Whether only this machine can reach a server that is bound to a host."""
    return host == "localhost" or (is_address(host) and ipaddress.ip_address(host).is_loopback)
