"""The page's server: what it answers, and what it refuses, with a sentence that helps."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette

from lakewright.model.file_group import PARTITION_METADATA
from lakewright.storage.memory import MemoryStorage
from lakewright.table.heartbeat import FOLDER as HEARTBEATS
from lakewright.testing.clock import ManualClock
from lakewright.ui.guards import HEADERS, TOKEN_HEADER, Guard
from lakewright.ui.jobs import Jobs
from lakewright.ui.server import ui_app
from lakewright.ui.table_view import TableView
from support.cancellable_plans import ALWAYS_DUE, MULTI_WRITER, PlanFixture
from support.tables import WrittenTable, row

TOKEN = "the-token"
WITH_TOKEN = {TOKEN_HEADER: TOKEN}
SERVER = "http://127.0.0.1:8765"
ONE = "/api/tables/0"


@dataclass(frozen=True)
class Client:
    """Asks an application as a browser would, without a server between them."""

    app: Starlette

    def get(self, address: str | httpx.URL, **more: Any) -> httpx.Response:
        return asyncio.run(self._ask("GET", address, **more))

    def post(self, address: str, **more: Any) -> httpx.Response:
        return asyncio.run(self._ask("POST", address, **more))

    async def _ask(
        self, method: str, address: str | httpx.URL, *, headers: Any = WITH_TOKEN, **more: Any
    ) -> httpx.Response:
        transport = httpx.ASGITransport(self.app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url=SERVER) as client:
            return await client.request(method, address, headers=headers, **more)


def client_of(*fixtures: PlanFixture | WrittenTable, allow_writes: bool = True) -> Client:
    tables = [
        TableView.at(table.storage.root, {**MULTI_WRITER, **ALWAYS_DUE}) for table in fixtures
    ]
    guard = Guard(TOKEN, allow_writes=allow_writes)
    return Client(ui_app(tables, Jobs(ManualClock(), master="local[1]"), guard))


@pytest.fixture
def fixture() -> PlanFixture:
    return PlanFixture("compaction")


@pytest.fixture
def client(fixture: PlanFixture) -> Client:
    return client_of(fixture)


def get_json(client: Client, path: str, **parameters: Any) -> Any:
    answer = client.get(path, params=parameters)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_tables_are_listed_with_those_that_cannot_be_opened(fixture: PlanFixture) -> None:
    nowhere = WrittenTable(MemoryStorage.fresh())
    answer = get_json(client_of(fixture, nowhere), "/api/tables")
    assert answer["allow_writes"] is True
    good, bad = answer["tables"]
    assert (good["number"], good["name"], good["type"]) == (0, "written", "MERGE_ON_READ")
    assert (good["record_key"], good["partition_by"]) == (["id"], ["day"])
    assert (bad["number"], "name" in bad) == (1, False)
    assert bad["error"]


def test_the_timeline_shows_actions_times_and_what_was_written(
    fixture: PlanFixture, client: Client
) -> None:
    at = fixture.schedule({})
    fixture.execute(at)
    shown = get_json(client, f"{ONE}/timeline")["instants"]
    assert [instant["kind"] for instant in shown] == ["deltacommit"] * 3 + ["compaction"]
    assert all(instant["completed_ms"] > instant["requested_ms"] for instant in shown)
    assert (shown[0]["operation"], shown[0]["rows"], shown[0]["partitions"]) == ("UPSERT", 2, 2)
    assert shown[3]["operation"] == "COMPACT"


def test_the_archived_timeline_is_shown_on_request() -> None:
    table = WrittenTable()
    table.create("COPY_ON_WRITE")
    for number in range(8):
        table.upsert([row(str(number))])
    keep = {"hoodie.keep.min.commits": "2", "hoodie.keep.max.commits": "3"}
    table.services({**keep, "hoodie.clean.commits.retained": "1"}).run("archive")
    client = client_of(table)
    active = get_json(client, f"{ONE}/timeline")["instants"]
    whole = get_json(client, f"{ONE}/timeline", archived=1)["instants"]
    assert len(active) < 8 <= len([i for i in whole if i["action"] == "commit"])
    assert [i["archived"] for i in whole].count(True) == len(whole) - len(active)
    oldest = whole[0]
    details = get_json(client, f"{ONE}/instants/commit/{oldest['requested_at']}")
    assert details["commit"]["inserted"] == 1


def test_one_instant_in_full(fixture: PlanFixture, client: Client) -> None:
    at = fixture.schedule()
    plan = get_json(client, f"{ONE}/instants/compaction/{at}")
    assert (plan["state"], plan["cancellable"]) == ("REQUESTED", True)
    assert [operation["partition"] for operation in plan["plan"]["operations"]] == [
        "2026-01-01",
        "2026-01-02",
    ]
    fixture.execute(at)
    after = client_of(fixture)
    details = get_json(after, f"{ONE}/instants/commit/{at}")
    assert (details["kind"], details["commit"]["operation"]) == ("compaction", "COMPACT")
    assert details["written_bytes"] > 0
    assert "schema" not in details["extra"]


def test_partitions_and_their_file_groups(client: Client) -> None:
    answer = get_json(client, f"{ONE}/partitions", sort="partition", order="desc")
    assert [partition["partition"] for partition in answer["rows"]] == ["2026-01-02", "2026-01-01"]
    first = answer["rows"][0]
    assert (first["groups"], first["log_files"]) == (1, 2)
    assert first["bytes"] > first["log_bytes"] > 0
    assert first["debt_reason"] == "no compaction was planned yet"
    assert answer["totals"]["log_files"] == 4
    assert get_json(client, f"{ONE}/partitions", search="-02")["matching"] == 1
    groups = get_json(client, f"{ONE}/groups", partition="2026-01-02")
    assert groups["total"] == 1
    (only,) = groups["groups"][0]["slices"]
    assert only["base"]["name"].endswith(".parquet")
    assert len(only["logs"]) == 2


def test_a_table_without_partitions_has_one_without_a_name() -> None:
    table = WrittenTable()
    table.create(partition_by=())
    table.upsert([row("a")])
    client = client_of(table)
    assert get_json(client, f"{ONE}/partitions")["rows"][0]["partition"] == ""
    assert get_json(client, f"{ONE}/groups", partition="")["total"] == 1


def test_when_partitions_expire() -> None:
    clock = ManualClock()
    table = WrittenTable(MemoryStorage.fresh(now_ms=clock.now_ms), clock)
    policy = json.dumps([{"spec": "*", "units": "DAYS", "value": 7}])
    table.create(options={"hoodie.ttl.policies": policy, "hoodie.ttl.enabled": "true"})
    table.upsert([row("a"), row("b", day="2026-01-02")])
    answer = get_json(client_of(table), f"{ONE}/partitions", sort="expires_at")
    assert answer["ttl"]["enabled"] is True
    assert answer["ttl"]["expired"] == 2
    assert {partition["policy"] for partition in answer["rows"]} == {"*: 7 DAYS"}
    assert all(partition["expired"] for partition in answer["rows"])


def test_freshness_over_time() -> None:
    table = WrittenTable()
    table.create("MERGE_ON_READ", event_time="ts")
    for ts in (1_767_225_600_000, 1_767_225_700_000):
        table.upsert([row("a", ts)])
    answer = get_json(client_of(table), f"{ONE}/freshness")
    assert [entry["snapshot_completion"] for entry in answer["history"]] == [
        1_767_225_600_000,
        1_767_225_700_000,
    ]
    assert answer["views"][0]["completion"] == 1_767_225_700_000
    assert get_json(client_of(PlanFixture("clustering")), f"{ONE}/freshness")["history"] == []


def test_plans_show_their_heartbeat(fixture: PlanFixture) -> None:
    at = fixture.schedule()
    client = client_of(fixture)
    (plan,) = get_json(client, f"{ONE}/plans")["pending"]
    assert (plan["cancellable"], plan["heartbeat"], plan["groups"]) == (True, None, 2)
    fixture.storage.replace(f"{HEARTBEATS}/{at}", b"")
    (plan,) = get_json(client, f"{ONE}/plans")["pending"]
    # The heartbeat is of the table's clock, which stands long ago.
    assert plan["heartbeat"]["alive"] is False
    assert plan["heartbeat"]["age_ms"] > 0


def test_a_preview_shows_the_plan_or_the_reason(client: Client) -> None:
    plan = get_json(client, f"{ONE}/services/compaction/preview")
    assert plan["planned"] is True
    assert len(plan["operations"]) == 2
    skipped = get_json(client, f"{ONE}/services/ttl/preview")
    assert skipped == {
        "service": "ttl",
        "planned": False,
        "reason": "TTL is off, and there is no policy",
    }


def test_services_are_those_that_the_table_can_have(client: Client) -> None:
    names = [service["name"] for service in get_json(client, f"{ONE}/services")["services"]]
    assert names == ["compaction", "logcompaction", "clustering", "clean", "archive", "ttl"]
    without = client_of(PlanFixture("clustering"))
    names = [service["name"] for service in get_json(without, f"{ONE}/services")["services"]]
    assert names == ["clustering", "clean", "archive", "ttl"]


def test_a_plan_is_cancelled(fixture: PlanFixture, client: Client) -> None:
    at = fixture.schedule()
    answer = client.post(f"{ONE}/plans/{at}/cancel", headers=WITH_TOKEN, json={"reason": "later"})
    assert (answer.status_code, answer.json()["result"]) == (200, "removed")
    fixture.assert_rolled_back(at)
    (rollback,) = fixture.rollbacks()
    assert (rollback.caused_by, rollback.reason) == ("request of the page", "later")
    (shown,) = get_json(client_of(fixture), f"{ONE}/plans")["rollbacks"]
    assert shown["target"] == {"requested_at": at, "action": "compaction"}


def test_a_plan_that_is_not_cancellable_stays(fixture: PlanFixture, client: Client) -> None:
    at = fixture.schedule({})
    answer = client.post(f"{ONE}/plans/{at}/cancel", headers=WITH_TOKEN)
    assert answer.status_code == 400
    assert "not cancellable" in answer.json()["error"]
    fixture.assert_still_pending(at)


REFUSED: dict[str, tuple[str, int, str]] = {
    "unknown table": ("/api/tables/7", 404, "no table of this number"),
    "no number": ("/api/tables/trips", 404, "nothing at this address"),
    "negative table": ("/api/tables/-1/timeline", 404, "nothing at this address"),
    "a path as table": ("/api/tables/%2Fetc%2Fpasswd/timeline", 404, "nothing at this address"),
    "unknown panel": (f"{ONE}/secrets", 404, "nothing at this address"),
    "above the static files": ("/../../app.py", 404, "nothing at this address"),
    "above them, encoded": ("/%2e%2e/%2e%2e/app.py", 404, "nothing at this address"),
    "unknown partition": (f"{ONE}/groups?partition=2026-09-09", 404, "no such partition"),
    "partition above the table": (f"{ONE}/groups?partition=../../etc", 404, "no such partition"),
    "partition in .hoodie": (f"{ONE}/groups?partition=.hoodie", 404, "no such partition"),
    "no partition": (f"{ONE}/groups", 400, "which partition"),
    "unknown order": (f"{ONE}/partitions?sort=secrets", 400, "no such order"),
    "bad direction": (f"{ONE}/partitions?order=up", 400, "asc or desc"),
    "bad offset": (f"{ONE}/partitions?offset=-1", 400, "whole number"),
    "bad limit": (f"{ONE}/partitions?limit=100000", 400, "a page has"),
    "no digits": (f"{ONE}/partitions?limit=%C2%B2", 400, "whole number"),
    "archived": (f"{ONE}/timeline?archived=maybe", 400, "0 or 1"),
    "unknown instant": (f"{ONE}/instants/commit/20200101000000000", 404, "no such instant"),
    "instant as path": (f"{ONE}/instants/commit/..%2F..%2Fx", 404, "nothing at this address"),
    "unknown service": (f"{ONE}/services/vacuum/preview", 404, "no such service"),
    "looking at a button": (f"{ONE}/services/clean/run", 405, "does not take that method"),
}


@pytest.mark.parametrize(("path", "status", "reason"), REFUSED.values(), ids=list(REFUSED))
def test_looking_is_refused(client: Client, path: str, status: int, reason: str) -> None:
    # Not as a text, which a client would tidy up before it asks.
    address = httpx.URL(SERVER, raw_path=path.encode())
    answer = client.get(address)
    assert (answer.status_code, reason in answer.json()["error"]) == (status, True), answer.text


EVERY_LOOK = [
    "/api/tables",
    *(ONE + path for path in (
        "", "/pulse", "/timeline", "/properties", "/partitions", "/groups?partition=x",
        "/freshness", "/plans", "/services", "/services/clean/preview",
        "/instants/commit/20200101000000000", "/nothing",
    )),
]  # fmt: skip


@pytest.mark.parametrize("path", EVERY_LOOK)
def test_a_table_is_not_shown_without_the_token_or_to_another_site(
    client: Client, path: str
) -> None:
    assert client.get(path, headers={}).status_code == 401
    assert client.get(path, headers={TOKEN_HEADER: "guessed"}).status_code == 403
    for site in ("cross-site", "same-site"):
        for mode in ("no-cors", "navigate", "cors"):
            headers = {**WITH_TOKEN, "sec-fetch-site": site, "sec-fetch-mode": mode}
            answer = client.get(path, headers=headers)
            assert (answer.status_code, "another site" in answer.text) == (403, True)


@pytest.mark.parametrize("path", ["/", "/js/app.js", "/style.css", "/icon.svg"])
def test_the_page_itself_needs_no_token(client: Client, path: str) -> None:
    assert client.get(path, headers={}).status_code == 200


def test_halves_of_characters_are_shown_by_their_number(fixture: PlanFixture) -> None:
    path = ".hoodie/hoodie.properties"
    spoilt = fixture.storage.read(path) + b"odd=\\udc80 \\ud83d\\ude00\n"
    fixture.storage.replace(path, spoilt)
    for name in (".hoodie.properties.crc", "hoodie.properties.crc"):
        fixture.storage.delete(f".hoodie/{name}")
    properties = get_json(client_of(fixture), f"{ONE}/properties")["properties"]
    assert [p["value"] for p in properties if p["key"] == "odd"] == ["\\udc80 \U0001f600"]


POSTS: dict[str, tuple[str, dict[str, Any], int, str]] = {
    "no token": (f"{ONE}/services/clean/run", {"headers": {}}, 401, "a token is needed"),
    "wrong token": (
        f"{ONE}/services/clean/run", {"headers": {TOKEN_HEADER: "x"}}, 403, "another one"),
    "another site": (
        f"{ONE}/services/clean/run",
        {"headers": {**WITH_TOKEN, "origin": "http://evil.example"}}, 403, "another site"),
    "unknown table": ("/api/tables/9/services/clean/run", {}, 404, "no table of this number"),
    "unknown service": (f"{ONE}/services/vacuum/run", {}, 404, "no such service"),
    "unknown plan": (f"{ONE}/plans/20200101000000000/cancel", {}, 400, "no plan at this instant"),
    "no instant": (f"{ONE}/plans/yesterday/cancel", {}, 400, "no plan at this instant"),
    "unknown job": (f"{ONE}/jobs/1/stop", {}, 404, "no such job"),
    "posting to look": (f"{ONE}/timeline", {}, 405, "does not take that method"),
    "no JSON": (f"{ONE}/plans/1/cancel", {"content": b"{"}, 400, "no JSON"),
    "nested too deeply": (
        f"{ONE}/plans/1/cancel", {"content": b"[" * 9_000}, 400, "nested too deeply"),
    "no object": (f"{ONE}/plans/1/cancel", {"json": []}, 400, "no JSON object"),
    "reason is no text": (f"{ONE}/plans/1/cancel", {"json": {"reason": 1}}, 400, "a reason is"),
    "long reason": (
        f"{ONE}/plans/1/cancel", {"json": {"reason": "x" * 501}}, 400, "a reason is"),
    "long body": (f"{ONE}/plans/1/cancel", {"content": b" " * 10_001}, 413, "at most"),
}  # fmt: skip


@pytest.mark.parametrize(("path", "more", "status", "reason"), POSTS.values(), ids=list(POSTS))
def test_writing_is_refused(
    fixture: PlanFixture, client: Client, path: str, more: dict[str, Any], status: int, reason: str
) -> None:
    at = fixture.schedule()
    answer = client.post(path, **{"headers": WITH_TOKEN, **more})
    assert (answer.status_code, reason in answer.json()["error"]) == (status, True), answer.text
    fixture.assert_still_pending(at)


@pytest.mark.parametrize(
    "ask",
    [
        lambda client: client.post(f"{ONE}/services/clean/run", headers=WITH_TOKEN),
        lambda client: client.post(f"{ONE}/plans/1/cancel", headers=WITH_TOKEN),
    ],
)
def test_without_allow_writes_nothing_writes(
    fixture: PlanFixture, ask: Callable[[Client], httpx.Response]
) -> None:
    client = client_of(fixture, allow_writes=False)
    answer = ask(client)
    assert answer.status_code == 403
    assert "--allow-writes" in answer.json()["error"]
    assert get_json(client, ONE)["allow_writes"] is False


def test_another_name_for_this_server_is_refused(client: Client) -> None:
    answer = client.get("/api/tables", headers={**WITH_TOKEN, "host": "evil.example"})
    assert answer.status_code == 421
    page = client.get("/", headers={**WITH_TOKEN, "host": "evil.example"})
    assert page.status_code == 421


@pytest.mark.parametrize("path", ["/", "/api/tables", "/js/app.js", "/nothing", f"{ONE}/nothing"])
def test_every_answer_has_the_headers_that_protect_it(client: Client, path: str) -> None:
    answer = client.get(path)
    assert {name: answer.headers.get(name) for name in HEADERS} == dict(HEADERS)
    assert "unsafe" not in answer.headers["content-security-policy"]
    assert answer.headers["cache-control"] in ("no-cache", "no-store")


def test_a_broken_table_is_reported_and_others_go_on(fixture: PlanFixture) -> None:
    broken = PlanFixture("clustering")
    path = ".hoodie/hoodie.properties"
    broken.storage.replace(path, b"hoodie.table.name=broken\n")
    client = client_of(fixture, broken)
    answer = client.get("/api/tables/1/timeline")
    assert answer.status_code == 500
    assert answer.json()["kind"] == "CorruptError"
    assert get_json(client, f"{ONE}/timeline")["instants"]


def test_the_timeline_is_shown_despite_broken_commits(fixture: PlanFixture) -> None:
    first, *_ = sorted(
        f.path for f in fixture.storage.list_files(".hoodie/timeline") if "_" in f.name
    )
    fixture.storage.replace(first, b"no Avro")
    instants = get_json(client_of(fixture), f"{ONE}/timeline")["instants"]
    assert ["operation" in instant for instant in instants] == [False, True, True]


def test_names_from_a_table_are_reported_unchanged() -> None:
    table = WrittenTable()
    table.create(options={})
    table.upsert([row("a", day="<img src=x onerror=alert(1)>")])
    paths = {
        f.path.partition("/")[0]
        for f in table.storage.list_tree("")
        if PARTITION_METADATA in f.path
    }
    partitions = get_json(client_of(table), f"{ONE}/partitions")["rows"]
    assert {partition["partition"] for partition in partitions} == paths
