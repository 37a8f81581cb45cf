"""What the README and the docs show runs as it stands there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from lakewright.demo import change, sample_table, show

ROOT = Path(__file__).parents[2]
SNIPPETS = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text("utf-8"), re.S)


@pytest.mark.parametrize("code", SNIPPETS)
def test_a_snippet_of_the_readme_runs_as_it_stands(code: str, spark: SparkSession) -> None:
    scope: dict[str, object] = {}
    exec(compile(code, "README.md", "exec"), scope)
    assert scope["spark"] is spark


def test_there_are_snippets() -> None:
    assert SNIPPETS


def test_the_demo_shows_the_table(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = sample_table(tmp_path)
    show(spark, path)
    change(spark, path)
    shown = capsys.readouterr().out
    assert "360 rows; the snapshot has 351" in shown
    assert "  300 rows\n" in shown
    assert "|Tromsø|" in shown
    assert "after the beginning: 300 rows" in shown
    assert "117 updated, 0 new" in shown
    assert "117 deleted, 234 rows are left" in shown
    assert shown.endswith("  351 rows\n")
