"""The tutorial runs as it stands: every block in order, from an empty folder."""

from __future__ import annotations

from pathlib import Path

import pytest
from page_blocks import blocks_of, run_page
from pyspark.sql import SparkSession

pytestmark = pytest.mark.thorough

PAGE = Path(__file__).parents[2] / "docs" / "tutorial.md"


def test_the_tutorial_runs_as_it_stands(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    printed, scope = run_page(PAGE)
    assert scope["spark"] is spark
    assert "3 new, 0 updated" in printed
    assert "1 new, 2 updated" in printed
    assert "commit 2" in printed, "the compaction"
    assert "0 such rows" in printed
    assert "healthy: nothing found" in printed, "the doctor"
    assert "2026-01-30" in printed, "what the commands print of partitions"


def test_it_shows_all_kinds_of_blocks() -> None:
    assert {"python", "sh", "text"} <= {block.language for block in blocks_of(PAGE)}
