"""A sample table written by real Hudi, read with every kind of query and changed without a JAR.

Run it with `python -m lakewright.demo.sample`.
"""

from __future__ import annotations

import tempfile
import zipfile
from importlib import resources
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import lakewright as lw
from lakewright.demo.session import start_spark


def sample_table(folder: Path | None = None) -> str:
    """Unpack the sample table `trips`, which real Hudi wrote; return its path."""
    target = folder or Path(tempfile.mkdtemp(prefix="lakewright-"))
    sample = resources.files("lakewright").joinpath("samples", "trips.zip")
    with sample.open("rb") as file, zipfile.ZipFile(file) as archive:
        archive.extractall(target)
    return str(target / "trips")


def show(spark: SparkSession, path: str) -> None:
    """Print the timeline of the table and the results of every kind of query."""
    lw.install(spark)
    table = lw.open(path, spark=spark)

    title(f"The timeline of {table.config.name} ({table.config.table_type})")
    for instant in table.timeline():
        say(f"  {instant.requested_at}  {instant.action:<12} {instant.state}")
    first, *_, last = table.timeline()

    title("The table as it is: updates and deletes merged from log files")
    table.read().groupBy("city").agg({"fare": "sum", "trip": "count"}).orderBy("city").show()

    title("Read-optimized: base files only, fast and a little behind")
    say(f"  {table.read_optimized().count()} rows; the snapshot has {table.read().count()}")

    title(f"Time travel: as of the first commit, {first.requested_at}")
    say(f"  {table.read(as_of=first).count()} rows")

    title("Changes by completion time: two commits at a time, each from the last checkpoint on")
    checkpoint = None
    while (changes := table.changes(since=checkpoint, limit=2)).instants:
        rows = changes.dataframe.count()
        say(f"  after {checkpoint or 'the beginning'}: {rows} rows, next from {changes.checkpoint}")
        checkpoint = changes.checkpoint

    title("The same table as a Spark data source, in SQL")
    spark.read.format("hudi").load(path).createOrReplaceTempView("trips")
    spark.sql("SELECT paid_by, count(*) AS trips FROM trips GROUP BY paid_by").show()
    say(f"The last write, {last.requested_at}, is the newest that these queries have read.")


def change(spark: SparkSession, path: str) -> None:
    """Write to the table, and roll back the last write."""
    table = lw.open(path, spark=spark)
    trips = table.read().drop(*lw.META_COLUMNS)

    title("An upsert into the table that real Hudi created; real Hudi can continue from here")
    doubled = (F.col("fare") * 2).cast("decimal(8,2)")
    oslo = trips.where("city = 'Oslo'").withColumn("fare", doubled)
    upsert = table.upsert(oslo.withColumn("updated_at", F.current_timestamp()))
    assert isinstance(upsert, lw.Commit)
    say(f"  {upsert.updated} updated, {upsert.inserted} new, commit {upsert.instant}")

    title("A delete by key")
    delete = table.delete(trips.where("city = 'Bergen'"))
    assert isinstance(delete, lw.Commit)
    say(f"  {delete.deleted} deleted, {table.read().count()} rows are left")

    title("A rollback of the delete")
    table.rollback(delete.instant)
    say(f"  {table.read().count()} rows")


def title(text: str) -> None:
    """Print a heading."""
    say(f"\n{text}\n{'-' * len(text)}")


def say(text: str) -> None:
    """Print a line."""
    print(text, flush=True)


def main() -> None:
    """Show and change the sample table in a temporary folder."""
    with tempfile.TemporaryDirectory(prefix="lakewright-demo-") as folder:
        spark = start_spark()
        path = sample_table(Path(folder))
        show(spark, path)
        change(spark, path)
        spark.stop()


if __name__ == "__main__":
    main()
