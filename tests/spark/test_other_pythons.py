"""Where Spark's workers run another Python, every interface says so in a sentence."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
from collections.abc import Callable, Mapping
from importlib.metadata import version
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner

import lakewright
import lakewright as lw
from lakewright.cli.main import app
from support.soak import some
from support.spark import next_session

pytestmark = pytest.mark.thorough

EAGER = {"hoodie.compact.inline.max.delta.commits": "1"}
DDL = "id STRING, ts BIGINT"
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


def made(spark: SparkSession, path: Path, table_type: str) -> lw.Table:
    table = lw.create(
        str(path), spark=spark, name="t", table_type=table_type, record_key="id", ordering="ts"
    )
    table.bulk_insert(spark.createDataFrame([("a", 1), ("b", 1)], DDL))
    table.upsert(spark.createDataFrame([("a", 2)], DDL))
    return table


def message_of(ask: Callable[[], object]) -> str:
    try:
        return f"answered: {ask()}"
    except lw.LakewrightError as error:
        return f"{type(error).__name__}: {error}"


def files_below(folder: Path) -> list[str]:
    return sorted(str(file) for file in folder.rglob("*"))


def answers(spark: SparkSession, folder: Path) -> dict[str, str]:
    """What the interfaces say; none of them may have changed anything."""
    before = files_below(folder)
    merged = lw.open(str(folder / "mor"), spark=spark)
    plain = lw.open(str(folder / "cow"), spark=spark)
    rows = spark.createDataFrame([("c", 1)], DDL)
    source = {
        "hoodie.streamer.source.dfs.root": str(folder / "files"),
        "lakewright.source.files.format": "json",
        "lakewright.source.files.settle.ms": "0",
    }
    messages = {
        "install": message_of(lambda: lw.install(spark)),
        "read": message_of(merged.read),
        "changes": message_of(lambda: merged.changes(since=None).dataframe),
        "change data": message_of(lambda: merged.changes(since=None, format="cdc").dataframe),
        "write": message_of(lambda: plain.upsert(rows)),
        "ingest": message_of(
            lambda: lw.ingest(spark, "files", str(folder / "cow"), options=source)
        ),
        "native": message_of(lambda: plain.read().count()),
    }
    assert files_below(folder) == before
    messages["service"] = message_of(lambda: merged.run("compaction", EAGER))
    # Its plan stays pending for an executor: the next Python is to schedule another.
    for instant in merged.timeline():
        if instant.action == "compaction":
            merged.rollback(instant)
    return messages


def commanded(folder: Path) -> str:
    """What the command line says of a compaction, and ends with."""
    options = [f"--option={key}={value}" for key, value in EAGER.items()]
    result = CliRunner().invoke(app, ["compact", str(folder / "mor"), *options])
    return f"{result.exit_code}: {result.stderr}"


@pytest.fixture(scope="module")
def checked(bare: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, str]]:
    """What the interfaces say with each Python.

    Spark asks for the Python whenever it sends a function, so that one JVM serves them all.
    """
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
    messages = {}
    with next_session({}) as spark:
        made(spark, folder / "mor", "MERGE_ON_READ")
        made(spark, folder / "cow", "COPY_ON_WRITE")
        (folder / "files").mkdir()
        (folder / "files" / "a.json").write_text('{"id": "d", "ts": 1}\n')
        for name in CHECKED:
            # As if the session had been started with this Python.
            spark.sparkContext.pythonExec = str(pythons[name])
            messages[name] = answers(spark.newSession(), folder)
        # The command line takes the session that there is, with the last of them, and stops it.
        SparkSession._instantiatedSession = spark.newSession()
        messages[CHECKED[-1]]["command"] = commanded(folder)
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
