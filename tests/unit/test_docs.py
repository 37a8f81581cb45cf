"""The pages name what there is: public names, what is stored, options of our own, examples."""

from __future__ import annotations

import ast
import dataclasses
import re
from pathlib import Path

import pytest
import site_hooks
from check_site import loaded_from_elsewhere
from hudi_options import families

import lakewright as lw

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES = {path.relative_to(DOCS).as_posix(): path.read_text("utf-8") for path in DOCS.rglob("*.md")}
KEY = re.compile(r"lakewright\.[a-z_]+(\.[a-z_]+)*")
EXTENSION_POINTS = (
    "CloudEventsSourceIncrementalQueryRunner",
    "CloudMetadataIncrementalQueryRunner",
    "EventTimeBasedCompactionStrategy",
    "HoodieSourceIncrementalQueryRunner",
    "IncrementalPartitionAwareStrategy",
    "IncrementalQueryAnalyzer",
    "IncrementalQueryRunner",
    "QueryContext",
    "SnapshotLoadQuerySplitter",
)
# Keys in memory, which no file holds.
IN_MEMORY = {"lakewright.options"}


def own_options() -> set[str]:
    fields = (field for _, family in families() for field in dataclasses.fields(family))
    keys = {field.metadata["key"] for field in fields if "key" in field.metadata}
    return {key for key in keys if key.startswith("lakewright.")}


def literals() -> set[str]:
    """The texts in the sources that look like keys of our own."""
    strings = set()
    for path in (ROOT / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Constant) and KEY.fullmatch(str(node.value)):
                strings.add(str(node.value))
    modules = {
        ".".join(path.relative_to(ROOT / "src").with_suffix("").parts)
        for path in (ROOT / "src").rglob("*.py")
    }
    packages = {module.removesuffix(".__init__") for module in modules}
    return {key for key in strings if key not in modules | packages | IN_MEMORY}


@pytest.mark.parametrize("name", lw.__all__)
def test_a_public_name_is_on_the_page_of_the_api(name: str) -> None:
    shown = {"open": "open_table"}.get(name, name)
    covered = "::: lakewright.errors\n" in PAGES["api.md"] and name.endswith("Error")
    assert covered or re.search(rf"(::: [\w.]+\.{shown}\n|`{shown}`)", PAGES["api.md"])


@pytest.mark.parametrize("name", EXTENSION_POINTS)
def test_an_extension_point_is_on_its_page(name: str) -> None:
    assert re.search(rf"::: [\w.]+\.{name}\n", PAGES["extending.md"])


def test_what_is_stored_is_promised() -> None:
    stored = literals() - own_options()
    assert stored
    assert sorted(key for key in stored if f"`{key}`" not in PAGES["format.md"]) == []


@pytest.mark.parametrize("key", sorted(own_options()))
def test_an_option_of_our_own_is_explained_somewhere(key: str) -> None:
    assert [name for name, text in PAGES.items() if key in text and name != "format.md"]


LINKS = {
    "to a page in the same folder": ("docs/a.md", "[b](b.md#c)", "[b](b.md#c)"),
    "to a page that is made of a file": (
        "docs/a.md",
        "[map](../ARCHITECTURE.md)",
        "[map](architecture.md)",
    ),
    "from such a page": ("ARCHITECTURE.md", "[b](docs/b.md)", "[b](b.md)"),
    "from a folder": ("docs/d/0.md", "[b](../b.md)", "[b](../b.md)"),
    "to a file that has no page": ("docs/a.md", "[results](../bench/x)", "results (`bench/x`)"),
    "to elsewhere": ("docs/a.md", "[x](https://x.example/)", "[x](https://x.example/)"),
    "in code": ("docs/a.md", "`[map](../ARCHITECTURE.md)`", "`[map](../ARCHITECTURE.md)`"),
    "broken": ("docs/a.md", "[gone](gone.md)", "[gone](gone.md)"),
}


@pytest.mark.parametrize(("origin", "text", "expected"), LINKS.values(), ids=list(LINKS))
def test_where_links_lead_on_the_site(origin: str, text: str, expected: str) -> None:
    there = site_hooks.FROM_OUTSIDE.get(origin, origin.removeprefix("docs/"))
    pages = {"a.md", "b.md", "architecture.md", "d/0.md"}
    assert site_hooks.with_site_links(text, origin, there, pages) == expected


def test_pages_come_in_their_order_and_none_is_left_out() -> None:
    nav = site_hooks.ordered({"ttl.md", "README.md", "zebra.md", "examples/x.md"})
    assert nav == [
        {"Start here": ["README.md"]},
        {"Upkeep": ["ttl.md"]},
        {"Examples": ["examples/x.md"]},
        {"More": ["zebra.md"]},
    ]


def test_an_example_is_shown_below_what_it_says() -> None:
    page = site_hooks.example_page("examples/x.py", '"""What it is.\n\nMore.\n"""\n\nimport os\n')
    assert page.startswith("# x.py\n\nWhat it is.\n\nMore.")
    assert page.endswith("```python\nimport os\n```\n")


LOADS = {
    "a script of others": ('<script src="https://x.example/a.js">', ".html", 1),
    "a font of others": ('<link rel="stylesheet" href="//x.example/f.css">', ".html", 1),
    "a link is not fetched": ('<a href="https://x.example/">', ".html", 0),
    "a file of its own": ('<script src="assets/a.js">', ".html", 0),
    "a style that imports": ('@import "https://x.example/a.css"', ".css", 1),
}


@pytest.mark.parametrize(("text", "suffix", "count"), LOADS.values(), ids=list(LOADS))
def test_what_a_browser_would_fetch(text: str, suffix: str, count: int) -> None:
    assert len(loaded_from_elsewhere(text, suffix)) == count
