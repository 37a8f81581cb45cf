"""Every panel of the page, and everything on it that can be pressed, in a real browser."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Page, expect

from support.processes import wait_until


@pytest.fixture
def table(page: Page, looking: str) -> Page:
    page.goto(looking)
    expect(page.locator("table.partitions")).to_be_visible()
    expect(page.locator("#timeline-plot .bar").first).to_be_visible()
    return page


def shown(page: Page) -> tuple[int, int]:
    plot = page.locator("#timeline-plot")
    bounds = [plot.get_attribute(f"data-{end}") for end in ("from", "to")]
    return int(bounds[0] or 0), int(bounds[1] or 0)


def width(page: Page) -> int:
    begin, end = shown(page)
    return end - begin


def test_the_start_page_lists_tables_and_leads_to_them(page: Page, several: str) -> None:
    page.goto(several)
    expect(page.get_by_role("heading", name="Tables")).to_be_visible()
    cards = page.locator("a.card")
    expect(cards).to_have_count(3)
    expect(cards.nth(0)).to_contain_text("rides")
    expect(cards.nth(0)).to_contain_text("merge on read")
    cards.nth(1).focus()
    page.keyboard.press("Enter")
    expect(page.locator("h1")).to_have_text("cow_clustered")
    expect(page.locator(".bar.k-clustering")).to_have_count(1)
    expect(page.locator("#freshness")).to_contain_text("No commit keeps completion")
    expect(page.locator("#plans")).to_contain_text("Nothing is pending")
    page.get_by_label("Table", exact=True).select_option(label="mor_avro")
    expect(page.locator("h1")).to_have_text("mor_avro")
    page.locator(".brand").click()
    expect(cards).to_have_count(3)


def test_tiles_summarize_the_table(table: Page) -> None:
    expect(table.locator("#tile-size strong")).to_contain_text("KB")
    expect(table.locator("#tile-debt")).to_contain_text(
        re.compile(r"\d+ log files in \d+ partitions")
    )
    expect(table.locator("#tile-last strong")).to_contain_text("ago")
    expect(table.locator("#tile-complete")).to_contain_text("read-optimized")
    expect(table.locator("#tile-pending strong")).to_have_text("2")
    expect(table.locator("#tile-pending")).to_contain_text("1 alive")
    expect(table.locator("#tile-ttl")).to_contain_text("1 policy")


def test_bars_by_kind_and_state(table: Page) -> None:
    for kind in ("write", "compaction", "clustering", "clean", "rollback"):
        assert table.locator(f"#timeline-plot .bar.k-{kind}").count() > 0, kind
    expect(table.locator(".bar.k-compaction.requested")).to_have_count(1)
    expect(table.locator(".bar.k-clustering.inflight")).to_have_count(1)
    legend = table.locator("#timeline .legend")
    for word in ("Writes", "Compaction", "Clean", "completed", "in flight", "requested"):
        expect(legend.get_by_text(word, exact=True)).to_be_visible()


def test_a_bar_shows_details_under_the_pointer_and_all_when_clicked(table: Page) -> None:
    bar = table.locator(".bar.k-compaction.completed").first
    bar.hover()
    expect(table.locator("#tip")).to_contain_text("Compaction")
    bar.click()
    details = table.locator("#details")
    expect(details.get_by_role("heading", name="Compaction")).to_be_visible()
    expect(details).to_contain_text("completed")
    expect(details).to_contain_text("Partitions (")
    expect(details).to_contain_text("Plan")
    details.get_by_text("Extra metadata").click()
    expect(details).to_contain_text("lakewright.freshness")
    table.keyboard.press("Escape")
    expect(details).to_be_hidden()
    bar.click()
    table.locator("#details-close").click()
    expect(details).to_be_hidden()


def test_the_timeline_zooms_by_buttons(table: Page) -> None:
    before = width(table)
    table.locator("#zoom-in").click()
    assert width(table) < before * 0.8
    table.locator("#zoom-out").click()
    table.locator("#zoom-out").click()
    assert width(table) > before * 1.2
    table.locator("#zoom-all").click()
    assert width(table) > 5 * 86_400_000
    table.locator("#zoom-latest").click()
    assert abs(width(table) - before) < before * 0.05


def test_the_timeline_moves_by_dragging_and_zooms_by_wheel(table: Page) -> None:
    plot = table.locator("#timeline-plot")
    box = plot.bounding_box()
    assert box is not None
    middle = box["x"] + box["width"] / 2
    begin, _ = shown(table)
    before = width(table)
    table.mouse.move(middle, box["y"] + 5)
    table.mouse.down()
    table.mouse.move(middle + 150, box["y"] + 5, steps=4)
    table.mouse.up()
    moved, _ = shown(table)
    assert moved < begin
    assert abs(width(table) - before) < before * 0.01
    plot.focus()
    table.mouse.wheel(0, -300)
    wait_until(lambda: width(table) < before * 0.9)


def test_without_focus_the_wheel_scrolls_the_page(table: Page) -> None:
    before = width(table)
    table.locator("#timeline-plot").hover()
    table.mouse.wheel(0, 300)
    # Not wait_for_function: its second look is an eval that the page's policy forbids.
    wait_until(lambda: table.evaluate("scrollY") > 100)
    assert abs(width(table) - before) < before * 0.05


def test_the_timeline_by_keyboard(table: Page) -> None:
    plot = table.locator("#timeline-plot")
    plot.focus()
    table.keyboard.press("ArrowLeft")
    expect(table.locator(".bar.chosen")).to_have_count(1)
    expect(table.locator("#said")).to_contain_text("Clustering. in flight")
    table.keyboard.press("ArrowLeft")
    expect(table.locator("#said")).to_contain_text("Write: upsert")
    table.keyboard.press("Enter")
    expect(table.locator("#details")).to_contain_text("upsert")
    expect(table.locator("#details-close")).to_be_focused()
    table.keyboard.press("Escape")
    expect(plot).to_be_focused()
    before = width(table)
    table.keyboard.press("+")
    assert width(table) < before
    begin, _ = shown(table)
    table.keyboard.press("Shift+ArrowLeft")
    assert shown(table)[0] < begin
    table.keyboard.press("Home")
    expect(table.locator("#said")).to_contain_text("Write: insert")
    table.keyboard.press("0")
    assert abs(width(table) - before) < before * 0.05


def test_the_timeline_as_a_list(table: Page) -> None:
    table.locator("#timeline summary").click()
    rows = table.locator("#timeline .as-list tbody tr")
    # The list is made after the click: browsers send the toggle event a little later.
    expect(rows.nth(20)).to_be_attached()
    rows.first.get_by_role("button").click()
    expect(table.locator("#details")).to_contain_text("Clustering")
    table.keyboard.press("Escape")
    table.get_by_label("with history").check()
    expect(rows.first).to_be_visible()


def test_completion_and_freshness_of_both_views(table: Page) -> None:
    panel = table.locator("#freshness")
    expect(panel.locator(".line")).to_have_count(4)
    expect(panel).to_contain_text("Snapshot view")
    expect(panel).to_contain_text("complete until")
    expect(panel).to_contain_text("Held back by")
    expect(panel).to_contain_text("Completion is the least event time of the last commit")
    panel.get_by_label("Snapshot: newest row").uncheck()
    expect(panel.locator(".line")).to_have_count(3)
    before = panel.locator(".dot").count()
    table.locator("#freshness-all").click()
    assert panel.locator(".dot").count() > before
    table.locator("#freshness-latest").click()
    assert panel.locator(".dot").count() == before
    panel.locator("svg").hover()
    expect(table.locator("#tip")).to_contain_text("Read-optimized: complete until")
    panel.locator("summary").click()
    expect(panel.locator("tbody tr").first).to_be_visible()


def test_partitions_are_sorted_and_searched(table: Page) -> None:
    panel = table.locator("#partitions")
    names = panel.locator("tbody th")
    first = names.first.inner_text()
    panel.get_by_role("button", name="Partition").click()
    expect(names.last).to_have_text(first)
    for key, label in {"bytes": "Size", "log_bytes": "Log debt", "expires_at": "Expires"}.items():
        panel.get_by_role("button", name=label).click()
        sort = panel.locator(f"th:has([data-sort={key}])")
        expect(sort).to_have_attribute(
            "aria-sort", "ascending" if key == "expires_at" else "descending"
        )
        expect(panel.locator(f"[data-sort={key}]")).to_be_focused()
    expect(panel.locator("tbody tr").first).to_contain_text("in 2 days")
    search = panel.get_by_label("Search partitions")
    search.fill("vienna")
    expect(panel.locator("#partition-count")).to_contain_text("that match")
    assert all(name.startswith("vienna/") for name in names.all_inner_texts())
    search.fill("atlantis")
    expect(panel).to_contain_text("No path of a partition contains “atlantis”")
    search.fill("")
    expect(names.first).to_be_visible()


def test_a_chosen_partition_shows_its_file_groups(table: Page) -> None:
    table.get_by_label("Search partitions").fill("oslo")
    table.get_by_role("button", name="Last write").click()
    choice = table.locator("#partitions tbody button.link").first
    expect(choice).to_contain_text("oslo/")
    choice.click()
    groups = table.locator("#groups")
    expect(groups.get_by_role("heading")).to_contain_text("File groups of oslo/")
    expect(groups.locator(".slice").first).to_be_visible()
    groups.locator("summary").first.click()
    expect(groups).to_contain_text(".parquet")
    expect(groups).to_contain_text(".log.1_")
    choice.click()
    expect(groups).to_be_empty()


def test_plans_show_live_executions_and_what_may_be_cancelled(table: Page) -> None:
    plans = table.locator("#plans .plan")
    expect(plans).to_have_count(2)
    expect(plans.nth(0)).to_contain_text("not cancellable")
    expect(plans.nth(0)).to_contain_text("no heartbeat")
    expect(plans.nth(1)).to_contain_text("in flight")
    expect(plans.nth(1)).to_contain_text("alive, last beat")
    expect(table.locator("#plans .gone")).to_contain_text("ann: the morning load begins")
    plans.nth(0).get_by_role("button").click()
    expect(table.locator("#details")).to_contain_text("operations")


def test_previews_show_the_plan_or_the_reason(table: Page) -> None:
    buttons = table.locator("[data-preview]")
    expect(buttons).to_have_count(6)
    for number in range(6):
        buttons.nth(number).click()
    for service in ("compaction", "logcompaction", "clustering", "clean", "archive", "ttl"):
        expect(table.locator(f"#preview-{service}")).to_contain_text("It would do")
    expect(table.locator("#preview-clean")).to_contain_text("readable from")
    expect(table.locator("#preview-archive")).to_contain_text("commits, and up to 30 are kept")
    expect(table.locator("#preview-clustering")).to_contain_text("which is being executed")


def test_a_read_only_page_has_no_buttons_that_write(table: Page) -> None:
    expect(table.locator("#services")).to_contain_text("--allow-writes")
    assert table.locator("[data-run], [data-cancel]").count() == 0


def test_links_in_the_header_lead_to_panels(table: Page) -> None:
    table.get_by_role("navigation", name="Panels").get_by_text("Services").click()
    expect(table.locator("#services h2")).to_be_focused()
    expect(table.locator("#services h2")).to_be_in_viewport()
