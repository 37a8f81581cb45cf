"""The pages about services and freshness say what the settings say."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
TABLES = runpy.run_path(str(ROOT / "scripts" / "option_tables.py"))
TEXT = "".join(page.read_text("utf-8") for page in TABLES["PAGES"])


@pytest.mark.parametrize("name", TABLES["FAMILIES"])
def test_the_options_of_a_family_are_all_there(name: str) -> None:
    table = TABLES["table"](TABLES["FAMILIES"][name])
    told = f"<!-- options: {name} -->\n{table}\n<!-- end -->"
    assert told in TEXT, "run scripts/option_tables.py"


def test_pages_are_as_the_script_writes_them() -> None:
    for page in TABLES["PAGES"]:
        text = page.read_text("utf-8")
        assert TABLES["renewed"](text) == text, "run scripts/option_tables.py"
