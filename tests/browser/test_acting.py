"""Running and cancelling from the page, staying live, and what is refused, in a real browser."""

from __future__ import annotations

import os
import subprocess
import sys
import webbrowser
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from conftest import TOKEN, command, serving, showing
from lakewright.model.instant import Action
from lakewright.storage.local import LocalStorage
from lakewright.table.heartbeat import FOLDER as HEARTBEATS
from lakewright.table.rollback import load_rollbacks
from lakewright.table.snapshot import load_snapshot
from lakewright.testing.clock import ManualClock
from lakewright.testing.sample_history import SampleHistory
from lakewright.ui.browser_link import opened_link
from lakewright.ui.table_view import TableView

WRITER = """
import sys
from lakewright.clock import SystemClock
from lakewright.storage.local import LocalStorage
from lakewright.testing.clock import ManualClock
from lakewright.testing.sample_history import SampleHistory
table = SampleHistory(LocalStorage(sys.argv[1]), ManualClock(SystemClock().now_ms()))
print(table.ingest("lisbon", took_ms=500).instant)
"""


def opened(page: Page, address: str) -> Page:
    page.goto(address)
    expect(page.locator("table.partitions")).to_be_visible()
    expect(page.locator("#services article").first).to_be_visible()
    return page


def plan_of(path: Path, action: str) -> str:
    snapshot = load_snapshot(LocalStorage(str(path)))
    (instant,) = snapshot.timeline.pending(Action(action))
    return instant.requested_at


def test_a_plan_without_an_executor_is_cancelled(page: Page, rides: Path) -> None:
    at = plan_of(rides, "clustering")
    (rides / HEARTBEATS / at).unlink()
    with showing(rides, allow_writes=True) as address:
        opened(page, address)
        assert TOKEN not in page.url
        card = page.locator(f"[data-instant='{at}']")
        card.locator("[data-cancel]").click()
        page.get_by_role("button", name="Keep it").click()
        expect(page.locator("#cancel-reason")).to_have_count(0)
        card.locator("[data-cancel]").click()
        page.locator("#cancel-reason").fill("<b>not tonight</b>")
        page.get_by_role("button", name="Cancel this plan").click()
        expect(page.locator(".notice")).to_contain_text("is gone")
        expect(card).to_have_count(0)
        expect(page.locator("#plans .gone")).to_contain_text("the page: <b>not tonight</b>")
    rollbacks = load_rollbacks(load_snapshot(LocalStorage(str(rides))))
    assert [r.reason for r in rollbacks if r.target.requested_at == at] == ["<b>not tonight</b>"]


def test_the_executor_of_a_plan_is_requested_to_stop(page: Page, rides: Path) -> None:
    at = plan_of(rides, "clustering")
    (rides / HEARTBEATS / at).touch()
    with showing(rides, allow_writes=True) as address:
        opened(page, address)
        card = page.locator(f"[data-instant='{at}']")
        expect(card).to_contain_text("alive")
        card.locator("[data-cancel]").click()
        page.locator("#cancel-reason").press("Enter")
        expect(page.locator(".notice")).to_contain_text("asked to stop")
        expect(card).to_contain_text("asked to stop by request of the page")
        expect(card.locator("[data-cancel]")).to_have_count(0)


def test_services_run_in_a_process_of_their_own(page: Page, rides: Path) -> None:
    with command(str(rides), "--allow-writes") as printed:
        opened(page, printed["url"])
        before = page.locator(".bar.k-clean").count()
        page.locator("[data-run=clean]").click()
        page.get_by_role("button", name="No").click()
        expect(page.locator("[data-job]")).to_have_count(0)
        page.locator("[data-run=clean]").click()
        page.locator("[data-run-yes=clean]").click()
        job = page.locator("[data-job]").first
        expect(job).to_be_visible()
        expect(job).to_have_class("job done")
        expect(job).to_contain_text("clean: ")
        page.locator("[data-run=archive]").click()
        page.locator("[data-run-yes=archive]").click()
        second = page.locator("[data-job]").first
        expect(second).to_contain_text("archive: nothing to do")
        assert page.locator(".bar.k-clean").count() >= before


def test_without_the_token_nothing_is_shown(page: Page, rides: Path) -> None:
    with showing(rides, allow_writes=True) as address:
        page.goto(address.partition("#")[0])
        problem = page.get_by_role("alert")
        expect(problem).to_contain_text("a token is needed")
        assert page.locator("table, [data-run], .title").count() == 0
        token = page.get_by_label("Or give the token of that link")
        token.fill("guessed")
        page.get_by_role("button", name="Use it").click()
        expect(problem).to_contain_text("the token is another one")
        token.fill(TOKEN)
        page.get_by_role("button", name="Use it").click()
        expect(page.locator("[data-run=clean]")).to_be_visible()
        page.reload()
        expect(page.locator("[data-run=clean]")).to_be_visible()


def test_the_file_that_opens_the_page_leads_to_it(
    page: Page, rides: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From a file, which is another site to the browser, with the token behind `#`."""
    urls: list[str] = []
    monkeypatch.setattr(webbrowser, "open", urls.append)
    with showing(rides) as address, opened_link() as link:
        link.open(address)
        page.goto(urls[0])
        expect(page.locator("table.partitions")).to_be_visible()
        assert page.url == address.partition("#")[0]


def test_the_page_is_live_while_another_process_commits(page: Page, rides: Path) -> None:
    with showing(rides) as address:
        opened(page, address)
        listed = page.locator("#timeline .as-list")
        listed.locator("summary").click()
        live, last = page.locator("#live"), page.locator("#tile-last")
        before = last.get_attribute("title") or "none"
        expect(live).to_have_text("Live")
        words = [sys.executable, "-c", WRITER, str(rides)]
        result = subprocess.run(words, capture_output=True, text=True, check=True)
        instant = result.stdout.strip()
        expect(listed.get_by_role("button", name=instant)).to_be_visible()
        expect(last).not_to_have_attribute("title", before)
        live.click()
        expect(live).to_have_text("Paused")
        live.click()
        expect(live).to_have_text("Live")


def test_a_heartbeat_that_stops_is_reported(page: Page, rides: Path) -> None:
    at = plan_of(rides, "clustering")
    beat = rides / HEARTBEATS / at
    with showing(rides) as address:
        beat.touch()
        opened(page, address)
        card = page.locator(f"[data-instant='{at}']")
        expect(card).to_contain_text("alive")
        long_ago = beat.stat().st_mtime - 10 * 86_400
        os.utime(beat, (long_ago, long_ago))
        expect(card).to_contain_text("expired, last beat 10 days")
        expect(page.locator("#tile-pending")).to_contain_text("expired heartbeat")


def test_a_server_that_does_not_answer_is_reported(page: Page, rides: Path) -> None:
    with showing(rides) as address:
        opened(page, address)
    expect(page.locator("#live")).to_have_text("No answer")


def test_a_table_that_does_not_exist_is_reported(page: Page, looking: str) -> None:
    page.goto(looking)
    expect(page.locator("h1")).to_be_visible()
    page.goto(f"{looking.partition('#')[0]}#/7")
    expect(page.get_by_role("alert")).to_contain_text("no table of this number is served")


def test_an_empty_table_says_so(page: Page, tmp_path: Path) -> None:
    SampleHistory(LocalStorage(str(tmp_path / "new")), ManualClock()).create()
    with serving([TableView.at(str(tmp_path / "new"), {})]) as address:
        page.goto(address)
        expect(page.locator("#timeline")).to_contain_text("Nothing has happened yet")
        expect(page.locator("#partitions")).to_contain_text("No partitions yet")
        expect(page.locator("#plans")).to_contain_text("Nothing is pending")
        expect(page.locator("#tile-last strong")).to_have_text("never")
