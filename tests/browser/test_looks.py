"""How the page looks and reads, in both themes; and tables that are large or hostile."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
from axe_playwright_python.sync_playwright import Axe
from bench.scale.table import Shape, synthetic_table
from playwright.sync_api import Browser, Page, expect

from conftest import PATIENCE_MS, serving
from lakewright.clock import SystemClock
from lakewright.engine.local import LocalEngine
from lakewright.services.runner import ServiceRunner
from lakewright.ui.snapshot_cache import CachedListing, CachedSnapshot, SnapshotCache
from lakewright.ui.table_view import TableView
from support.soak import sized
from support.tables import WrittenTable, row

pytestmark = pytest.mark.sampled(2)


def offences(page: Page) -> list[str]:
    violations = Axe().run(page).response["violations"]
    return [
        f"{violation['id']}: {node['html']}"
        for violation in violations
        for node in violation["nodes"]
    ]


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_it_is_accessible(chromium: Browser, several: str, theme: str) -> None:
    context = chromium.new_context(
        viewport={"width": 1400, "height": 950},
        color_scheme="dark" if theme == "dark" else "light",
        reduced_motion="reduce",
    )
    page = context.new_page()
    page.set_default_timeout(PATIENCE_MS)
    page.goto(several)
    expect(page.locator("a.card")).to_have_count(3)
    assert offences(page) == []
    page.locator("a.card").first.click()
    expect(page.locator("table.partitions")).to_be_visible()
    page.locator("#partitions tbody button.link").first.click()
    page.locator("#groups summary").first.click()
    page.locator("[data-preview=clean]").click()
    expect(page.locator("#preview-clean")).to_contain_text("It would do")
    for summary in page.locator(".as-list summary").all():
        summary.click()
    assert offences(page) == []
    page.locator("#timeline .as-list tbody button").first.click()
    expect(page.locator("#details")).to_contain_text("Requested")
    assert offences(page) == []
    dark = page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(14, 19, 26)"
    assert dark is (theme == "dark")
    moving = "getComputedStyle(document.querySelector('#live .pulse')).animationName"
    assert page.evaluate(moving) == "none"
    context.close()


def test_the_theme_is_chosen_and_remembered(page: Page, looking: str) -> None:
    page.goto(looking)
    button = page.locator("#theme")
    expect(button).to_contain_text("Auto")
    button.click()
    expect(page.locator("html")).to_have_attribute("data-theme", "light")
    button.click()
    expect(page.locator("html")).to_have_attribute("data-theme", "dark")
    page.reload()
    expect(page.locator("html")).to_have_attribute("data-theme", "dark")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(14, 19, 26)"
    button.click()
    expect(button).to_contain_text("Auto")


def test_it_fits_on_a_telephone(page: Page, looking: str) -> None:
    page.set_viewport_size({"width": 390, "height": 800})
    page.goto(looking)
    expect(page.locator("table.partitions")).to_be_visible()
    assert page.evaluate("document.documentElement.scrollWidth") <= 390


def test_what_a_table_says_is_text_and_never_a_program(page: Page) -> None:
    nasty = "<img src=x onerror=document.title='run'>"
    table = WrittenTable().create(name="<b>nasty</b>")
    table.upsert([row("a", day=nasty)])
    with serving([TableView.at(table.storage.root, {})]) as address:
        page.goto(address)
        expect(page.locator("h1")).to_have_text("<b>nasty</b>")
        expect(page.locator("#partitions tbody button")).to_contain_text("onerror")
        page.locator("#partitions tbody button").click()
        expect(page.locator("#groups h3")).to_contain_text("onerror")
        page.locator("#timeline-plot .bar").click()
        expect(page.locator("#details .paths")).to_contain_text("onerror")
        assert page.locator("main img, #details img").count() == 0
        assert page.title() == "<b>nasty</b> · Lakewright"


class GatedWatch(SnapshotCache):
    """Lists partitions only once it may, and counts how often."""

    def __init__(self, runner: ServiceRunner) -> None:
        super().__init__(runner)
        self.may_list = threading.Event()
        self.listings = 0

    def _list(self, current: CachedSnapshot, changed: frozenset[str] | None) -> CachedListing:
        self.may_list.wait()
        self.listings += 1
        return super()._list(current, changed)


def test_very_many_partitions_stay_usable(page: Page) -> None:
    """The rest of the page does not wait for the listing, and no step lists again."""
    partitions = sized(20_000, soak=100_000)
    storage = synthetic_table(Shape(partitions=partitions, groups=1, touched=100))
    watch = GatedWatch(ServiceRunner(storage, SystemClock(), LocalEngine))
    with serving([TableView(storage.root, {}, watch)]) as address:
        page.goto(address)
        expect(page.locator("#timeline-plot .bar").first).to_be_visible()
        watch.may_list.set()
        count = page.locator("#partition-count")
        expect(count).to_have_text(f"1 to 25 of {partitions:,} partitions")
        acts: tuple[tuple[Callable[[], object], str], ...] = (
            (lambda: page.locator("#page-last").click(), f"{partitions - 24:,} to {partitions:,}"),
            (lambda: page.locator("#partition-search").fill("d00123"), "1 to 25 of 100 "),
            (lambda: page.locator("[data-sort=log_bytes]").click(), "1 to 25 of 100 "),
            (lambda: page.locator("#page-next").click(), "26 to 50"),
            (lambda: page.locator("#partition-search").fill(""), f"1 to 25 of {partitions:,}"),
        )
        for act, text in acts:
            act()
            expect(count).to_contain_text(text)
        rows = page.locator("#partitions tbody tr")
        expect(rows).to_have_count(25)
        rows.first.locator("button").click()
        expect(page.locator("#groups .group")).to_have_count(1)
    assert watch.listings == 1
