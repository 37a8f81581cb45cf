"""The page about services says what the settings say."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
TABLES = runpy.run_path(str(ROOT / "scripts" / "option_tables.py"))
PAGE = (ROOT / "docs" / "services.md").read_text("utf-8")


@pytest.mark.parametrize("name", TABLES["FAMILIES"])
def test_the_options_of_a_service_are_all_there(name: str) -> None:
    table = TABLES["table"](TABLES["FAMILIES"][name])
    told = f"<!-- options: {name} -->\n{table}\n<!-- end -->"
    assert told in PAGE, "run scripts/option_tables.py"
