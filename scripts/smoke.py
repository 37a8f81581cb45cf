"""What an installed wheel must do, run by the Python it is installed for, away from the sources.

`smoke.py` needs no Java; `smoke.py --spark` starts Spark, reads and upserts; `smoke.py --extra ui`
imports what the extra brings.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import zipfile
from importlib import import_module, metadata, resources
from pathlib import Path

BROUGHT = {
    "glue": ("boto3",),
    "hive": ("pymetastore",),
    "metrics": ("prometheus_client",),
    "s3": ("boto3",),
    "ui": ("starlette", "uvicorn"),
}


def check_table(folder: Path) -> None:
    """Import, version, types, help, and the timeline of the sample table, without a JVM."""
    package = import_module("lakewright")
    assert not Path(str(package.__file__)).is_relative_to(Path(__file__).parent.parent / "src")
    assert resources.files("lakewright").joinpath("py.typed").is_file()
    sample = resources.files("lakewright").joinpath("samples", "trips.zip")
    with sample.open("rb") as file, zipfile.ZipFile(file) as archive:
        archive.extractall(folder)
    assert "timeline" in lakewright("--help")
    instants = json.loads(lakewright("timeline", str(folder / "trips"), "--json"))
    assert instants, "the sample table has no timeline"
    for name in package.__all__:
        getattr(package, name)


def lakewright(*arguments: str) -> str:
    """What the installed command says."""
    command = Path(sys.executable).parent / "lakewright"
    process = subprocess.run([str(command), *arguments], capture_output=True, text=True)
    assert process.returncode == 0, f"lakewright {arguments[0]}: {process.stdout}{process.stderr}"
    return process.stdout


def work(folder: Path) -> None:
    """Read, upsert, travel and compact with Spark: classic, in this process."""
    lw = import_module("lakewright")
    demo = import_module("lakewright.demo")
    spark = demo.start_spark()
    lw.install(spark)
    table = lw.create(
        str(folder / "made"),
        spark=spark,
        name="made",
        table_type="MERGE_ON_READ",
        record_key="id",
        partition_by="day",
        ordering="ts",
    )
    columns = "id INT, day STRING, ts INT, name STRING"
    table.upsert(spark.createDataFrame([(1, "a", 1, "x"), (2, "b", 1, "y")], columns))
    second = table.upsert(spark.createDataFrame([(1, "a", 2, "z"), (3, "a", 1, "w")], columns))
    assert (second.updated, second.inserted) == (1, 1)
    table.upsert(spark.createDataFrame([(2, "b", 2, "v")], columns))  # an update, in a log file
    assert {row.name for row in table.read().collect()} == {"v", "z", "w"}
    assert table.read(as_of=table.timeline()[0]).count() == 2
    assert table.changes(since=table.timeline()[0].completed_at).dataframe.count() == 3
    assert table.run("compaction", {"hoodie.compact.inline.max.delta.commits": "1"})
    assert {row.name for row in table.read_optimized().collect()} == {"v", "z", "w"}
    theirs = spark.read.format("hudi").load(str(folder / "trips"))
    assert theirs.count() == lw.open(str(folder / "trips"), spark=spark).read().count() > 0
    spark.stop()


def main() -> None:
    """Look, and with `--spark` work as well."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--spark", action="store_true")
    parser.add_argument("--extra", choices=sorted(BROUGHT))
    arguments = parser.parse_args()
    for module in BROUGHT.get(arguments.extra, ()):
        import_module(module)
    if not arguments.extra:
        with tempfile.TemporaryDirectory() as name:
            check_table(Path(name))
            if arguments.spark:
                work(Path(name))
    versions = [f"{name} {metadata.version(name)}" for name in ("lakewright", "pyspark", "pyarrow")]
    print(f"Python {sys.version.split()[0]}, {', '.join(versions)}")


if __name__ == "__main__":
    main()
