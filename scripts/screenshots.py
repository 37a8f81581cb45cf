"""Take the pictures of the page for the README: docs/ui-light.png and docs/ui-dark.png.

A lively table is made in a folder that goes away, served by the command, and looked at by Chromium.

    python scripts/screenshots.py [CHROMIUM]
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Literal

from playwright.sync_api import Browser, expect, sync_playwright

from lakewright.clock import SystemClock
from lakewright.storage.local import LocalStorage
from lakewright.testing.sample_history import sample_history

DOCS = Path(__file__).parents[1] / "docs"
CHROMIUM = "/usr/bin/chromium"
FLAGS = [
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
]
SIZE = {"width": 1360, "height": 1500}
MAX_BYTES = 300_000


def take(browser: Browser, url: str, theme: Literal["light", "dark"]) -> Path:
    """One picture; AssertionError if it has become too large for a README."""
    target = DOCS / f"ui-{theme}.png"
    context = browser.new_context(
        viewport={"width": SIZE["width"], "height": SIZE["height"]},
        color_scheme=theme,
        timezone_id="UTC",
        reduced_motion="reduce",
    )
    page = context.new_page()
    page.goto(url)
    expect(page.locator("table.partitions")).to_be_visible()
    expect(page.locator("#freshness .line")).to_have_count(4)
    expect(page.locator("#services article").first).to_be_visible()
    page.screenshot(path=target)
    context.close()
    if target.stat().st_size > MAX_BYTES:
        raise AssertionError(f"{target} has {target.stat().st_size} bytes")
    return target


def main() -> None:
    """Make the table, serve it, and take both pictures."""
    chromium = sys.argv[1] if len(sys.argv) > 1 else CHROMIUM
    with tempfile.TemporaryDirectory() as folder:
        sample_history(LocalStorage(f"{folder}/rides"), SystemClock().now_ms())
        command = [sys.executable, "-m", "lakewright.cli.main", "ui", "--port", "0"]
        # From inside the folder: a picture shows no path of this machine.
        server = subprocess.Popen(
            [*command, "--allow-writes", "--json", "rides"],
            stdout=subprocess.PIPE,
            text=True,
            cwd=folder,
        )
        try:
            if server.stdout is None:
                raise AssertionError("its output goes into a pipe")
            url = json.loads(server.stdout.readline())["url"]
            with sync_playwright() as playwright:
                browser = playwright.chromium.launch(executable_path=chromium, args=FLAGS)
                for theme in ("light", "dark"):
                    print(take(browser, url, "dark" if theme == "dark" else "light"))
                browser.close()
        finally:
            server.terminate()
            server.wait()


if __name__ == "__main__":
    main()
