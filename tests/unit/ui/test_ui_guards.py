"""Which requests the page's server allows."""

from __future__ import annotations

import pytest

from lakewright.ui.guards import TOKEN_HEADER, Guard, Refusal, is_loopback

TOKEN = "a-token-that-nobody-guesses"
HOST = "127.0.0.1:8765"
OURS = {"host": HOST, TOKEN_HEADER: TOKEN}
GUARD = Guard(TOKEN, allow_writes=True)


def refusal(
    method: str, headers: dict[str, str], guard: Guard = GUARD, *, api: bool = True
) -> Refusal | None:
    """As the server asks: about every request, and then about those for tables."""
    return guard.refusal(method, headers) or (guard.api_refusal(method, headers) if api else None)


@pytest.mark.parametrize(
    "name", ["127.0.0.1:8765", "localhost:1", "localhost", "[::1]:8765", "192.168.1.7:80"]
)
def test_names_that_can_only_mean_this_server_are_let_in(name: str) -> None:
    assert refusal("GET", {**OURS, "host": name}) is None


@pytest.mark.parametrize(
    "name",
    ["evil.example", "evil.example:8765", "127.0.0.1.evil.example", "", "[::1", "localhost.evil.x"],
)
def test_a_name_that_others_control_is_refused(name: str) -> None:
    refused = refusal("GET", {**OURS, "host": name})
    assert refused is not None
    assert refused.status == 421


def test_the_name_that_the_server_was_bound_to_is_its_own() -> None:
    assert (
        refusal("GET", {**OURS, "host": "lake.example:8765"}, Guard(TOKEN, "lake.example")) is None
    )


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_the_page_with_its_token_is_let_through(method: str) -> None:
    assert refusal(method, OURS) is None
    same = {"origin": f"http://{HOST}", "sec-fetch-site": "same-origin"}
    assert refusal(method, {**OURS, **same}) is None


@pytest.mark.parametrize(
    ("changed", "status", "reason"),
    [
        ({TOKEN_HEADER: ""}, 401, "a token is needed"),
        ({TOKEN_HEADER: "another"}, 403, "another one"),
        ({TOKEN_HEADER: "å"}, 403, "another one"),
        ({"origin": "http://evil.example"}, 403, "another site"),
        ({"origin": "null"}, 403, "another site"),
        ({"origin": "http://127.0.0.1:9"}, 403, "another site"),
        ({"sec-fetch-site": "cross-site"}, 403, "another site"),
        ({"sec-fetch-site": "same-site"}, 403, "another site"),
        ({"host": "evil.example"}, 421, "not known by that name"),
    ],
)
@pytest.mark.parametrize("method", ["GET", "HEAD", "POST"])
def test_reading_and_writing_are_refused(
    method: str, changed: dict[str, str], status: int, reason: str
) -> None:
    refused = refusal(method, {**OURS, **changed})
    assert refused is not None
    assert refused.status == status
    assert reason in refused.reason


def test_no_process_writes_where_writes_are_not_allowed() -> None:
    refused = refusal("POST", OURS, Guard(TOKEN))
    assert refused is not None
    assert (refused.status, "--allow-writes" in refused.reason) == (403, True)


FROM_ELSEWHERE = {"host": HOST, "sec-fetch-site": "cross-site"}


def test_a_link_from_elsewhere_opens_the_page_and_no_table() -> None:
    opening = {**FROM_ELSEWHERE, "sec-fetch-mode": "navigate"}
    assert refusal("GET", opening, api=False) is None
    assert refusal("POST", opening, api=False) is not None
    assert refusal("GET", {**opening, TOKEN_HEADER: TOKEN}) is not None
    embedding = {**FROM_ELSEWHERE, "sec-fetch-mode": "no-cors"}
    assert refusal("GET", embedding, api=False) is not None


@pytest.mark.parametrize("method", ["PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"])
def test_other_methods_are_refused(method: str) -> None:
    refused = refusal(method, OURS)
    assert refused is not None
    assert refused.status == 405


def test_which_hosts_stay_on_this_machine() -> None:
    assert [is_loopback(h) for h in ("127.0.0.1", "::1", "localhost", "127.9.9.9")] == [True] * 4
    assert [is_loopback(h) for h in ("0.0.0.0", "::", "10.0.0.1", "lake.example")] == [False] * 4
