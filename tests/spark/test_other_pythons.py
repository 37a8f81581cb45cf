"""Where Spark's workers run another Python, every interface says so in a sentence."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path

import pytest

import lakewright
from support.soak import some

CHECK = Path(__file__).with_name("other_python_check.py")
SOURCES = Path(lakewright.__file__).parents[1]
ANOTHER_MINOR = (
    "import sys, collections\n"
    "names = 'major minor micro releaselevel serial'\n"
    "kind = collections.namedtuple('version_info', names)\n"
    "sys.version_info = kind(3, sys.version_info.minor + 1, 0, 'final', 0)\n"
)
ANSWERS = ("install", "read", "changes", "change data", "write", "ingest", "service")
SENTENCES = {
    "bare": "Spark's workers run a Python that lacks this library or what it needs: start the "
    "session with PYSPARK_PYTHON",
    "absent": "Spark cannot start the Python of its workers: start the session with PYSPARK_PYTHON",
    "older": "Spark's workers have another version of this library than the driver: install the "
    "same one there",
    "minor": "Spark's workers run another version of Python than the driver: start the session "
    "with PYSPARK_PYTHON",
}
CHECKED = some(list(SENTENCES), 0)
FACTS = {
    "bare": "reason=\"No module named 'pyarrow'\"",
    "absent": "workers='/there/is/no/python'",
    "older": f"version_of_workers='0.0.1', version_of_driver='{version('lakewright')}'",
    "minor": f"version_of_workers='3.{sys.version_info.minor + 1}'",
}


def python_in(folder: Path, files: Mapping[str, str]) -> Path:
    """A Python of its own with some files where it looks for packages."""
    command = [sys.executable, "-m", "venv", "--without-pip", "--symlinks", str(folder)]
    subprocess.run(command, check=True)
    python = folder / "bin" / "python"
    packages = Path(sysconfig.get_path("purelib", "venv", {"base": str(folder)}))
    for name, text in files.items():
        (packages / name).parent.mkdir(exist_ok=True)
        (packages / name).write_text(text)
    return python


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return python_in(tmp_path_factory.mktemp("bare"), {})


def run(command: list[str], folder: Path, python: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        capture_output=True,
        text=True,
        env={
            **os.environ,
            "PYTHONPATH": str(CHECK.parents[1]),
            "PYSPARK_PYTHON": str(python),
            "SPARK_LOCAL_IP": "127.0.0.1",
        },
        cwd=folder,
        timeout=900,
        check=False,
    )


@pytest.fixture(scope="module")
def checked(bare: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, str]]:
    """What the interfaces say with each Python."""
    folder = tmp_path_factory.mktemp("tables")
    everything = f"{sysconfig.get_path('purelib')}\n{SOURCES}\n"
    metadata = "Metadata-Version: 2.1\nName: lakewright\nVersion: 0.0.1\n"
    pythons = {
        "bare": bare,
        "absent": Path("/there/is/no/python"),
        "older": python_in(
            tmp_path_factory.mktemp("older"),
            {"all.pth": everything, "lakewright-0.0.1.dist-info/METADATA": metadata},
        ),
        "minor": python_in(
            tmp_path_factory.mktemp("minor"),
            {"all.pth": everything, "sitecustomize.py": ANOTHER_MINOR},
        ),
    }
    arguments = [f"{name}={pythons[name]}" for name in CHECKED]
    result = run([sys.executable, str(CHECK), str(folder), *arguments], folder, bare)
    assert result.returncode == 0, result.stderr[-6000:]
    messages: dict[str, dict[str, str]] = json.loads(result.stdout.splitlines()[-1])
    return messages


@pytest.mark.parametrize("name", CHECKED)
def test_every_interface_says_what_is_wrong_and_what_to_do(
    name: str, checked: dict[str, dict[str, str]]
) -> None:
    for interface in ANSWERS:
        message = checked[name][interface]
        assert message.startswith(f"InvalidError: {SENTENCES[name]}"), interface
        assert FACTS[name] in message, interface
        assert "\n" not in message, interface
        assert "Traceback" not in message, interface
    # What Spark reads by itself needs no Python there.
    assert checked[name]["native"] == "answered: 2"


def test_the_command_line_says_so_too(checked: dict[str, dict[str, str]]) -> None:
    *_, last = CHECKED
    message = checked[last]["command"]
    assert message.startswith(f"2: error: {SENTENCES[last]}")
    assert "Traceback" not in message
