"""What the README and the docs show runs as it stands there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from lakewright.demo import show, unpack_sample

ROOT = Path(__file__).parents[2]
SNIPPETS = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text("utf-8"), re.S)


@pytest.mark.parametrize("code", SNIPPETS)
def test_a_snippet_of_the_readme_runs(code: str, spark: SparkSession, tmp_path: Path) -> None:
    path = str(unpack_sample(tmp_path))
    scope: dict[str, object] = {"spark": spark, "path": path}
    exec(compile(code, "README.md", "exec"), scope)
    assert "changes" in scope


def test_there_are_snippets() -> None:
    assert SNIPPETS


def test_the_demo_shows_the_table(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    show(spark, str(unpack_sample(tmp_path)))
    shown = capsys.readouterr().out
    assert "351 rows" not in shown.split("Time travel")[0].split("Read-optimized")[0]
    assert "Tromsø" in shown
    assert "300 rows" in shown
