"""What every system of the race can do, and the one kind of session they all run in.

Imported by processes in several environments: nothing but pyspark and the standard library here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Protocol

from pyspark.sql import DataFrame, SparkSession

from bench.plan import Kind

KEYS = ("l_orderkey", "l_linenumber")
PARTITION = "ship_year"
ORDERING = "ts"
MEASURES = ("l_quantity", "l_extendedprice", "l_discount", "l_tax", "ts")
NUMBERS = ("l_orderkey", "l_partkey", "l_suppkey", "l_linenumber", *MEASURES)
WORDS = ("l_returnflag", "l_linestatus", "l_shipinstruct", "l_shipmode", "l_comment", PARTITION)
DATES = ("l_shipdate", "l_commitdate", "l_receiptdate")
COLUMNS = (*NUMBERS, *WORDS, *DATES)
CLUSTERED_BY = "l_partkey"
TWO_COLUMNS = ("l_returnflag", "l_quantity")


class System(Protocol):
    """One table format with its engine: the same verbs for all.

    `plans` tells how it plans its services in a race: "incremental", or over "all" partitions.
    """

    plans: str

    def load(self, kind: Kind, rows: DataFrame) -> None:
        """Make the table, which is not there, and fill it."""

    def upsert(self, kind: Kind, rows: DataFrame, partitions: Sequence[str]) -> None:
        """Update and insert; `partitions` are those touched where the user would know them."""

    def delete(self, kind: Kind, keys: DataFrame) -> None:
        """Delete by key."""

    def read(self, kind: Kind, *, optimized: bool, columns: Sequence[str]) -> DataFrame:
        """The table now; a reader may leave out all but `columns`."""

    def position(self, kind: Kind, back: int) -> str:
        """Where the last `back` commits of a table begin."""

    def changes(self, kind: Kind, position: str) -> DataFrame:
        """The newest versions of the rows that changed after a position."""

    def compact(self, kind: Kind) -> None:
        """Fold what was written beside the base files into new ones."""

    def cluster(self, kind: Kind) -> None:
        """Rewrite all rows, sorted by one column."""

    def schedule(self, table: Path, *, incremental: bool) -> None:
        """Schedule a compaction of the table in a folder."""

    def ttl(self, table: Path, max_partitions: int) -> Iterable[tuple[str, Callable[[], int]]]:
        """The jobs of the load test of TTL, which may delete `max_partitions` partitions at once.

        Each is done before the next is asked for, and gives how many partitions it was about.
        """

    def forget(self) -> None:
        """Drop what is remembered of tables: their files were exchanged."""


def table_folder(folder: Path, kind: str) -> Path:
    """Where a system keeps its table."""
    return folder / "tables" / kind


def completion_times(table: Path) -> list[str]:
    """When the commits of a table in Hudi's format completed, in order."""
    names = [file.name for file in (table / ".hoodie" / "timeline").glob("*_*.commit")]
    return sorted(name.split("_")[1].removesuffix(".commit") for name in names)


def start_session(settings: dict[str, str], cores: int, memory: str, folder: Path) -> SparkSession:
    """The session of one system; `settings` are what its format needs."""
    common = {
        "spark.driver.memory": memory,
        "spark.driver.extraJavaOptions": "-Duser.timezone=UTC",
        "spark.local.dir": str(folder / "spark"),
        "spark.python.worker.reuse": "true",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": str(cores),
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }
    builder = SparkSession.builder.master(f"local[{cores}]").appName("bench")
    for key, value in {**common, **settings}.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def merge_condition(partitions: Sequence[str]) -> str:
    """When a row `s` meets a row `t` of the table, as a careful user of MERGE would write it."""
    equal = [f"t.{name} = s.{name}" for name in (*KEYS, PARTITION)]
    listed = ", ".join(f"'{partition}'" for partition in partitions)
    return " AND ".join([*equal, f"t.{PARTITION} IN ({listed})"] if partitions else equal)


def merge_upsert(table: str, partitions: Sequence[str]) -> str:
    """The statement that updates and inserts the rows of the view `incoming`."""
    return (
        f"MERGE INTO {table} t USING incoming s ON {merge_condition(partitions)} "
        f"WHEN MATCHED AND s.{ORDERING} >= t.{ORDERING} THEN UPDATE SET * "
        "WHEN NOT MATCHED THEN INSERT *"
    )


def merge_delete(table: str) -> str:
    """The statement that deletes the rows whose keys are in the view `incoming`."""
    return (
        f"MERGE INTO {table} t USING incoming s ON {merge_condition(())} WHEN MATCHED THEN DELETE"
    )


def total_rows(frame: DataFrame) -> tuple[int, int]:
    """The number of rows, and a sum over them that does not depend on their order."""
    texts = ", ".join(f"cast({name} as string)" for name in COLUMNS)
    checksum = f"coalesce(sum(crc32(cast(concat_ws('|', {texts}) as binary))), 0)"
    row = frame.selectExpr("count(*)", checksum).collect()[0]
    return int(row[0]), int(row[1])


def scan_all(frame: DataFrame) -> None:
    """A query that must read every column."""
    sums = [f"sum({name})" for name in NUMBERS]
    ends = [f"max({name})" for name in (*WORDS, *DATES)]
    frame.selectExpr("count(*)", *sums, *ends).collect()


def scan_two(frame: DataFrame) -> None:
    """A query that needs two columns."""
    group, measure = TWO_COLUMNS
    frame.groupBy(group).agg({measure: "sum"}).collect()
