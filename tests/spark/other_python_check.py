"""What each interface says where Spark's workers run another Python.

`other_python_check.py FOLDER NAME=PYTHON...` prints what each says with each of these Pythons, as
JSON. Spark asks for the Python whenever it sends a function, so that one JVM serves them all.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

from pyspark.sql import SparkSession
from typer.testing import CliRunner

import lakewright as lw
from lakewright.cli.main import app
from support.spark import quick_session, speed_up_java

EAGER = {"hoodie.compact.inline.max.delta.commits": "1"}
DDL = "id STRING, ts BIGINT"


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


def main(text: str, *pythons: str) -> None:
    folder = Path(text)
    speed_up_java()
    spark = quick_session()
    # As if the session had been started with this Python; tables must be made first.
    spark.sparkContext.pythonExec = sys.executable
    made(spark, folder / "mor", "MERGE_ON_READ")
    made(spark, folder / "cow", "COPY_ON_WRITE")
    (folder / "files").mkdir()
    (folder / "files" / "a.json").write_text('{"id": "d", "ts": 1}\n')
    messages_by_python = {}
    for name, python in (argument.split("=", 1) for argument in pythons):
        spark.sparkContext.pythonExec = python
        messages_by_python[name] = answers(spark.newSession(), folder)
    # The command line takes the session that there is, with the last of them, and stops it.
    SparkSession._instantiatedSession = spark.newSession()
    messages_by_python[name]["command"] = commanded(folder)
    print(json.dumps(messages_by_python))


if __name__ == "__main__":
    main(*sys.argv[1:])
