"""Known holes are found in lock files, and every package that is locked is looked up."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import audit
import pytest
from packages import hashed

ROOT = Path(__file__).parents[2]
ADVISORY = """
id: PYSEC-1
aliases: [CVE-1]
affected:
- package: {name: Web_Page, ecosystem: PyPI}
  ranges:
  - type: GIT
    events: [{introduced: "0"}]
  - type: ECOSYSTEM
    events: [{introduced: "0"}, {fixed: "1.2"}, {introduced: "2.0"}, {fixed: "2.0.3"}]
  versions: ["9.9"]
"""


@pytest.fixture
def database(tmp_path: Path) -> Path:
    folder = tmp_path / "vulns" / "web-page"
    folder.mkdir(parents=True)
    (folder / "PYSEC-1.yaml").write_text(ADVISORY, "utf-8")
    withdrawn = ADVISORY.replace("PYSEC-1", "PYSEC-2") + 'withdrawn: "2026-01-01"\n'
    (folder / "PYSEC-2.yaml").write_text(withdrawn, "utf-8")
    return tmp_path


@pytest.mark.parametrize(
    ("version", "has_hole"),
    [
        ("0.1", True), ("1.1.9", True), ("1.2", False), ("1.10", False), ("2.0", True),
        ("2.0.2", True), ("2.0.3", False), ("9.9", True), ("2.0rc1", False),
    ],
)  # fmt: skip
def test_versions_with_and_without_a_hole(database: Path, version: str, has_hole: bool) -> None:
    holes = [str(hole) for hole in audit.holes(database, "web_page", version)]
    assert holes == ([f"web_page {version}: PYSEC-1, CVE-1"] if has_hole else [])


def test_a_lock_file_with_a_hole_fails(
    database: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lock = database / "lock.txt"
    lock.write_text(
        "other==1 \\\n    --hash=sha256:ab\nweb-page==2.0.1 ; x \\\n    --hash=sha256:cd\n"
    )
    monkeypatch.setattr(sys, "argv", ["audit", str(database), str(lock)])
    assert audit.main() == 1
    assert capsys.readouterr().out.splitlines() == [
        "web-page 2.0.1: PYSEC-1, CVE-1",
        "2 versions looked up in 2 advisories: 1 known holes",
    ]


def test_a_folder_without_advisories_proves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["audit", str(tmp_path), str(ROOT / "requirements/dev.txt")])
    with pytest.raises(SystemExit):
        audit.main()


@pytest.mark.parametrize(
    "lock", sorted((ROOT / "requirements").glob("*.txt")), ids=lambda p: p.name
)
def test_every_package_of_a_lock_file_is_read_with_its_hashes(lock: Path) -> None:
    text = lock.read_text("utf-8")
    assert len(hashed(text)) == len(re.findall(r"(?m)^[\w.-]+(?:\[.*\])?==", text)) > 0


def test_lower_bounds_leave_out_what_is_known_to_be_unsafe() -> None:
    """Such as CVE-2025-43859 (h11), CVE-2025-62727 (starlette) and CVE-2023-47248 (pyarrow)."""
    declared = (ROOT / "pyproject.toml").read_text("utf-8")
    for least in ('"h11>=0.16"', '"starlette>=1.3.1"', '"pyarrow>=18"'):
        assert least in declared
