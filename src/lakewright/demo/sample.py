"""A table that real Hudi wrote, read in every way there is and changed, without a JAR.

`python -m lakewright.demo.sample` shows it.
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
    """Unpack the sample table `trips`, which real Hudi wrote; give its path."""
    target = folder or Path(tempfile.mkdtemp(prefix="lakewright-"))
    sample = resources.files("lakewright").joinpath("samples", "trips.zip")
    with sample.open("rb") as file, zipfile.ZipFile(file) as archive:
        archive.extractall(target)
    return str(target / "trips")


def show(spark: SparkSession, path: str) -> None:
    """Print what the table is, was, and how it changed."""
    lw.install(spark)
    table = lw.open(path, spark=spark)

    title(f"The timeline of {table.config.name} ({table.config.table_type})")
    for instant in table.timeline():
        say(f"  {instant.requested_at}  {instant.action:<12} {instant.state}")
    first, *_, last = table.timeline()

    title("The table as it is: updates and deletes merged from log files")
    table.read().groupBy("city").agg({"fare": "sum", "trip": "count"}).orderBy("city").show()

    title("Read-optimized: base files alone, fast and a little behind")
    say(f"  {table.read_optimized().count()} rows; the snapshot has {table.read().count()}")

    title(f"Time travel: as of the first commit, {first.requested_at}")
    say(f"  {table.read(as_of=first).count()} rows")

    title("Changes by completion time: two at a time, going on from the checkpoint")
    position = None
    while (changes := table.changes(since=position, limit=2)).instants:
        rows = changes.dataframe.count()
        say(f"  after {position or 'the beginning'}: {rows} rows, next from {changes.checkpoint}")
        position = changes.checkpoint

    title("The same table as a Spark data source, in SQL")
    spark.read.format("hudi").load(path).createOrReplaceTempView("trips")
    spark.sql("SELECT paid_by, count(*) AS trips FROM trips GROUP BY paid_by").show()
    say(f"The last write, {last.requested_at}, is the newest that these queries have seen.")


def change(spark: SparkSession, path: str) -> None:
    """Write to the table, and take the last write back."""
    table = lw.open(path, spark=spark)
    trips = table.read().drop(*lw.META_COLUMNS)

    title("An upsert into the table that real Hudi made; real Hudi can go on from here")
    dearer = (F.col("fare") * 2).cast("decimal(8,2)")
    oslo = trips.where("city = 'Oslo'").withColumn("fare", dearer)
    raised = table.upsert(oslo.withColumn("updated_at", F.current_timestamp()))
    assert isinstance(raised, lw.Commit)
    say(f"  {raised.updated} updated, {raised.inserted} new, commit {raised.instant}")

    title("A delete by key")
    gone = table.delete(trips.where("city = 'Bergen'"))
    assert isinstance(gone, lw.Commit)
    say(f"  {gone.deleted} deleted, {table.read().count()} rows are left")

    title("Taken back again")
    table.rollback(gone.instant)
    say(f"  {table.read().count()} rows")


def title(text: str) -> None:
    """Print a heading."""
    say(f"\n{text}\n{'-' * len(text)}")


def say(text: str) -> None:
    """Print a line."""
    print(text, flush=True)


def main() -> None:
    """Run the demo in a folder of its own."""
    with tempfile.TemporaryDirectory(prefix="lakewright-demo-") as folder:
        spark = start_spark()
        path = sample_table(Path(folder))
        show(spark, path)
        change(spark, path)
        spark.stop()


if __name__ == "__main__":
    main()
