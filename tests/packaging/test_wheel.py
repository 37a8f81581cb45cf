"""The wheel installs into a clean environment and works there, with its types."""

from __future__ import annotations

import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import packages
import pytest
from packages import Installed

ROOT = Path(__file__).parents[2]


def test_the_wheel_holds_what_the_package_needs(installed: Installed) -> None:
    contents = set(zipfile.ZipFile(installed.wheel).namelist())
    sources = ROOT / "src"
    expected = {
        path.relative_to(sources).as_posix()
        for path in sources.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts and ".egg-info" not in str(path)
    }
    assert "lakewright/py.typed" in expected
    assert expected <= contents
    assert not {name for name in contents if name.startswith(("tests/", "bench/", "docs/"))}
    licences = {name.rpartition("/")[2] for name in contents if ".dist-info/licenses/" in name}
    assert licences == {"LICENSE", "NOTICE"}


def test_the_source_distribution_builds_by_itself(installed: Installed) -> None:
    with tarfile.open(installed.source) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"pyproject.toml", "README.md", "LICENSE", "NOTICE", "src/lakewright/py.typed"} <= names


def test_it_works_without_extras(installed: Installed, tmp_path: Path) -> None:
    assert "lakewright" in packages.smoke(installed.python, tmp_path)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("extra", packages.LIGHT_EXTRAS)
def test_an_extra_brings_what_it_is_for(installed: Installed, extra: str, tmp_path: Path) -> None:
    before = packages.packages_in(installed.python)
    packages.add_extra(installed.python, installed.wheel, extra)
    try:
        assert packages.smoke(installed.python, tmp_path, "--extra", extra)
    finally:
        packages.remove(installed.python, packages.packages_in(installed.python) - before)


@pytest.mark.thorough
def test_a_consumer_of_the_wheel_has_its_types(installed: Installed, tmp_path: Path) -> None:
    consumer = Path(__file__).with_name("consumer.py").read_text("utf-8")
    (tmp_path / "consumer.py").write_text(consumer, "utf-8")
    options = ("--cache-dir", str(ROOT / ".mypy_cache" / "consumer"), "--config-file", "/dev/null")
    where = ("--python-executable", str(installed.python))
    result = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", *options, *where, "consumer.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stdout + result.stderr
