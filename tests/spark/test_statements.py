"""SQL that Spark refuses for Python sources, on tables of both types."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import lakewright as lw
from lakewright.format.timeline_metadata import parse_commit
from lakewright.spark.reader import SPARK_ERRORS
from support.soak import some

QUIET = {"hoodie.compact.inline": "false", "hoodie.clean.automatic": "false"}


class SqlTable:
    """A table in the catalog, and statements about it."""

    def __init__(self, spark: SparkSession, path: str, name: str) -> None:
        self.spark, self.path, self.name = spark, path, name

    def sql(self, text: str, *args: Any, **kwargs: Any) -> list[tuple[Any, ...]]:
        frame = self.spark.sql(text.replace("TBL", self.name), *args, **kwargs)
        return [tuple(row) for row in frame.collect()]

    def rows(self, columns: str = "id, v, day") -> list[tuple[Any, ...]]:
        return sorted(self.sql(f"SELECT {columns} FROM TBL"))

    def announced(self) -> list[str]:
        """The partitions in the inflight file of the last write."""
        files = (Path(self.path) / ".hoodie" / "timeline").glob("*.inflight")
        return list(parse_commit(max(files).read_bytes()).stats)

    @property
    def commits(self) -> int:
        return len(lw.open(self.path, self.spark).snapshot().timeline.completed_writes)


# What a statement means is the same on both types of tables; a check tries one.
on_cow, on_mor = (
    pytest.mark.parametrize("table", some(["cow", "mor"], place), indirect=True) for place in (0, 1)
)


@pytest.fixture
def table(
    request: pytest.FixtureRequest, spark: SparkSession, tmp_path: Path
) -> Iterator[SqlTable]:
    lw.install(spark)
    for key, value in QUIET.items():
        spark.conf.set(key, value)
    name = f"t_{uuid.uuid4().hex[:8]}"
    path = str(tmp_path / "table")
    spark.sql(
        f"CREATE TABLE {name} (id STRING, v INT, ts BIGINT, day STRING) USING hudi "
        f"TBLPROPERTIES (type = '{request.param}', primaryKey = 'id', preCombineField = 'ts') "
        f"PARTITIONED BY (day) LOCATION '{path}'"
    )
    spark.sql(f"INSERT INTO {name} VALUES ('a', 1, 1, 'd1'), ('b', 2, 1, 'd1'), ('c', 3, 1, 'd2')")
    yield SqlTable(spark, path, name)
    spark.sql(f"DROP TABLE {name}")
    for key in QUIET:
        spark.conf.unset(key)


START = [("a", 1, "d1"), ("b", 2, "d1"), ("c", 3, "d2")]


@on_mor
def test_update_and_delete(table: SqlTable) -> None:
    assert table.rows() == START
    counts = table.sql(
        "UPDATE TBL AS x SET v = x.v + 10L WHERE x.id IN (SELECT 'a' UNION SELECT 'c')"
    )
    assert counts == [(2,)]
    assert table.rows() == [("a", 11, "d1"), ("b", 2, "d1"), ("c", 13, "d2")]
    # A condition that is null holds for no row.
    table.sql("UPDATE TBL SET v = NULL WHERE ID = 'b'")
    assert table.sql("DELETE FROM TBL WHERE v <> 11;") == [(1,)]
    assert table.rows() == [("a", 11, "d1"), ("b", None, "d1")]
    assert table.sql("DELETE FROM TBL WHERE id = ? AND v IS NULL", ["b"]) == [(1,)]
    assert table.sql("UPDATE TBL SET v = :v WHERE id = :id", {"id": "a", "v": 7}) == [(1,)]
    assert table.rows() == [("a", 7, "d1")]
    assert table.commits == 6


@on_cow
def test_merge_is_one_commit_with_deletes_updates_and_inserts(table: SqlTable) -> None:
    before = table.commits
    counts = table.sql(
        """
        WITH s AS (
          SELECT * FROM VALUES ('a', 100, 2, 'd1', 'u'), ('b', 0, 2, 'd1', 'd'),
                               ('z', 26, 2, 'd3', 'u'), ('y', 25, 2, 'd3', 'd')
          AS s(id, v, ts, day, op))
        MERGE INTO TBL t USING s ON t.id = s.id AND t.day = s.day
        WHEN MATCHED AND s.op = 'd' THEN DELETE
        WHEN MATCHED THEN UPDATE SET v = s.v + t.v, ts = s.ts
        WHEN NOT MATCHED AND op <> 'd' THEN INSERT *
        WHEN NOT MATCHED BY SOURCE AND t.v = 3 THEN UPDATE SET t.v = -t.v
        """
    )
    assert counts == [(4, 2, 1, 1)]
    assert table.rows() == [("a", 101, "d1"), ("c", -3, "d2"), ("z", 26, "d3")]
    assert table.commits == before + 1
    # The marks of rows that leave are no column of the table.
    assert lw.open(table.path, table.spark).read().columns[5:] == ["id", "v", "ts", "day"]
    table.sql(
        "MERGE INTO TBL USING (SELECT 'z' AS id) s ON TBL.id = s.id "
        "WHEN NOT MATCHED BY SOURCE THEN DELETE "
        "WHEN NOT MATCHED THEN INSERT (id, day) VALUES (s.id, 'd9')"
    )
    assert table.rows() == [("z", 26, "d3")]


@on_mor
def test_with_a_global_index_a_merge_moves_and_deletes_rows_in_one_commit(table: SqlTable) -> None:
    before = table.commits
    table.spark.conf.set("hoodie.index.type", "GLOBAL_SIMPLE")
    try:
        table.sql(
            """
            MERGE INTO TBL t
            USING (VALUES ('a', 0, 2, 'd1', 'd'), ('c', 30, 2, 'd1', 'i')) AS s(id, v, ts, day, op)
            ON t.id = s.id AND t.day = s.day
            WHEN MATCHED AND s.op = 'd' THEN DELETE
            WHEN NOT MATCHED THEN INSERT *
            """
        )
    finally:
        table.spark.conf.unset("hoodie.index.type")
    assert table.rows() == [("b", 2, "d1"), ("c", 30, "d1")]
    assert table.commits == before + 1


WRONG_MERGES = {
    "two rows for one": (
        "USING (VALUES ('a', 1), ('a', 2)) AS s(id, v) ON t.id = s.id "
        "WHEN MATCHED THEN UPDATE SET v = s.v",
        "several rows of the source",
    ),
    "another key": (
        "USING (SELECT 'k' AS id, 1 AS v) s ON t.v = s.v WHEN MATCHED THEN UPDATE SET id = s.id",
        "another key or partition",
    ),
    "a column that is not there": (
        "USING (SELECT 'a' AS id) s ON t.id = s.id WHEN MATCHED THEN UPDATE SET w = 1",
        "no such column",
    ),
    "a star without columns": (
        "USING (SELECT 'a' AS id) s ON t.id = s.id WHEN NOT MATCHED THEN INSERT *",
        "lacks a column for the star",
    ),
    "a type that does not fit": (
        "USING (SELECT 'a' AS id) s ON t.id = s.id WHEN MATCHED THEN UPDATE SET v = 'x'",
        "cannot be stored",
    ),
    "the same name": ("USING (SELECT 1) t ON true WHEN MATCHED THEN DELETE", "same name"),
}


@on_mor
def test_wrong_statements_change_nothing(table: SqlTable) -> None:
    before = sorted(path for path in Path(table.path).rglob("*") if path.is_file())
    for text, message in WRONG_MERGES.values():
        with pytest.raises(lw.InvalidError, match=message):
            table.sql(f"MERGE INTO TBL t {text}")
    for text, message in {
        "UPDATE TBL SET id = 'x'": "key and of the partition",
        "UPDATE TBL SET v = 99999999999": "Spark could not evaluate|does not fit",
        "UPDATE TBL SET nope = 1": "no such column",
        "INSERT INTO TBL VALUES (1)": "4 are expected",
        "INSERT INTO TBL (v, v) SELECT 1, 1": "named twice",
        "INSERT INTO TBL (v) SELECT 1": "column of the key",
        "INSERT INTO TBL PARTITION (v = 1) SELECT 'x', 1, 'd'": "not partitioned by",
        "ALTER TABLE TBL DROP PARTITION (day = 'd1*')": "no partition",
        "ALTER TABLE TBL DROP PARTITION (day = '*')": "no partition",
    }.items():
        with pytest.raises(lw.InvalidError, match=message):
            table.sql(text)
    with pytest.raises(PySparkException, match="nowhere"):
        table.sql("DELETE FROM TBL WHERE nowhere = 1")
    assert table.rows() == START
    after = sorted(path for path in Path(table.path).rglob("*") if path.is_file())
    # Rollbacks of writes that failed while their rows were computed leave traces of their own.
    assert [p for p in after if p.suffix == ".parquet"] == [
        p for p in before if p.suffix == ".parquet"
    ]


@on_mor
def test_inserts(table: SqlTable) -> None:
    assert table.announced() == []
    table.sql("INSERT INTO TBL PARTITION (day = 'd4') SELECT 'e', 5, 1")
    assert table.announced() == ["d4"]
    table.sql("INSERT INTO TBL (day, id) VALUES ('d4', 'f')")
    table.sql("INSERT INTO TBL BY NAME SELECT 'd4' AS DAY, 'g' AS id, 7 AS v")
    assert table.rows()[3:] == [("e", 5, "d4"), ("f", None, "d4"), ("g", 7, "d4")]
    table.sql("INSERT OVERWRITE TBL PARTITION (day = 'd4') VALUES ('h', 8, 1)")
    assert table.rows() == [*START, ("h", 8, "d4")]
    assert table.announced() == ["d4"]
    table.sql("INSERT OVERWRITE TABLE TBL PARTITION (day = 'd4') SELECT 'h', 8, 1 WHERE false")
    assert table.rows() == START
    table.spark.conf.set("hoodie.spark.sql.insert.into.operation", "upsert")
    try:
        assert table.sql("INSERT INTO TBL VALUES ('a', 9, 2, 'd1')") == [(1, 0)]
    finally:
        table.spark.conf.unset("hoodie.spark.sql.insert.into.operation")
    assert table.rows()[0] == ("a", 9, "d1")
    table.sql("ALTER TABLE TBL DROP PARTITION (day = 'd1')")
    table.sql("ALTER TABLE TBL DROP IF EXISTS PARTITION (day = 'd1')")
    assert table.rows() == [("c", 3, "d2")]
    table.sql("INSERT OVERWRITE TBL VALUES ('x', 1, 1, 'd7')")
    assert table.rows() == [("x", 1, "d7")]
    table.sql("TRUNCATE TABLE TBL")
    assert table.rows() == []


@on_cow
def test_points_in_time_paths_and_changes(table: SqlTable) -> None:
    first = lw.open(table.path, table.spark).timeline()[0]
    table.sql("DELETE FROM TBL WHERE id = 'a'")
    instant = first.requested_at
    for text in (
        f"SELECT t.id FROM TBL TIMESTAMP AS OF '{instant}' t ORDER BY 1",
        f"SELECT TBL.id FROM TBL VERSION AS OF {instant} ORDER BY id",
    ):
        assert table.sql(text) == [("a",), ("b",), ("c",)]
    assert table.sql(f"SELECT count(*) FROM hudi.`{table.path}` WHERE v > :v", {"v": 0}) == [(2,)]
    table.sql(f"UPDATE hudi.`{table.path}` SET v = 5 WHERE id = 'b'")
    changed = table.sql(
        f"SELECT id, v FROM hudi_table_changes('TBL', 'latest_state', '{first.completed_at}')"
    )
    assert changed == [("b", 5)]
    # Rows come back from a table as it was.
    table.sql(
        f"MERGE INTO TBL t USING TBL TIMESTAMP AS OF '{instant}' AS s "
        "ON t.id = s.id WHEN NOT MATCHED THEN INSERT *"
    )
    assert [row[0] for row in table.rows()] == ["a", "b", "c"]
    with pytest.raises(lw.UnsupportedError, match="point in time"):
        table.sql("SELECT * FROM TBL TIMESTAMP AS OF now()")


def test_what_is_not_ours_goes_to_spark(spark: SparkSession, tmp_path: Path) -> None:
    lw.install(spark)
    spark.sql("CREATE TABLE plain_p (a INT, b STRING) USING parquet")
    try:
        spark.sql("INSERT INTO plain_p VALUES (1, '{x}'), (2, 'MERGE INTO')")
        assert spark.sql("SELECT a FROM plain_p WHERE b = '{x}'").collect()[0].a == 1
        assert spark.sql("SELECT a FROM plain_p WHERE a = ?", [2]).count() == 1
        assert spark.sql("SELECT a FROM {p} WHERE a = {n}", p=spark.table("plain_p"), n=2).count()
        with pytest.raises(PySparkException):
            spark.sql("UPDATE plain_p SET a = 1")
        with pytest.raises(PySparkException):
            spark.sql("DELETE FROM no_such_table")
    finally:
        spark.sql("DROP TABLE plain_p")


@on_cow
def test_a_copy_or_view_of_our_table_is_not_ours(table: SqlTable) -> None:
    table.sql("CREATE TEMP VIEW only_d1 AS SELECT * FROM TBL WHERE day = 'd1'")
    table.sql("CREATE TABLE copied USING parquet AS SELECT * FROM TBL")
    try:
        with pytest.raises(SPARK_ERRORS):
            table.sql("DELETE FROM only_d1")
        table.sql("INSERT INTO copied SELECT * FROM copied")
        assert table.rows() == START
    finally:
        table.sql("DROP TABLE copied")
        table.sql("DROP VIEW only_d1")


def test_creating(spark: SparkSession, tmp_path: Path) -> None:
    for text, message in {
        "CREATE TABLE n (id INT) USING hudi": "LOCATION",
        f"CREATE TABLE n USING hudi LOCATION '{tmp_path}/no'": "no table at this LOCATION",
        f"CREATE TABLE n (id INT) USING hudi TBLPROPERTIES (primarykeys = 'id') "
        f"LOCATION '{tmp_path}/no'": "did_you_mean='primaryKey'",
        f"CREATE TABLE n (id INT) USING hudi TBLPROPERTIES (type = 'x') "
        f"LOCATION '{tmp_path}/no'": "no such table type",
    }.items():
        with pytest.raises(lw.InvalidError, match=message):
            spark.sql(text)
    assert not (tmp_path / "no").exists()
    assert not spark.catalog.tableExists("n")


@on_cow
def test_creating_from_a_query(table: SqlTable) -> None:
    path, name = f"{table.path}_made", f"made_{table.name}"
    head = f"CREATE TABLE {name} USING hudi PARTITIONED BY (Day) LOCATION '{path}'"
    keyed = f"{head} OPTIONS (primaryKey = 'id')"
    query = "WITH few AS (SELECT day, id, v AS `using` FROM TBL WHERE id <> :no) SELECT * FROM few"
    for wrong, message in {
        f"{head.replace(' USING', ' (id INT) USING')} AS SELECT 1 AS id": "leave one of them out",
        f"{head} AS SELECT 1 AS id": "no such column",
        f"{head} AS SELECT nothing": "nothing",
        f"CREATE TABLE n USING hudi LOCATION '{table.path}' AS SELECT 1 AS id": "INSERT INTO adds",
    }.items():
        with pytest.raises((lw.InvalidError, PySparkException), match=message):
            table.sql(wrong)
        assert not Path(path).exists()
    assert table.sql(f"{keyed} AS {query};", {"no": "b"}) == []
    try:
        rows = table.sql(f"SELECT id, `using`, day FROM {name}")
        assert sorted(rows) == [("a", 1, "d1"), ("c", 3, "d2")]
        made = lw.open(path, table.spark)
        assert made.snapshot().config.record_key_fields == ("id",)
        assert made.read().columns[-3:] == ["id", "using", "day"]
        table.sql(f"UPDATE {name} SET `using` = 9 WHERE id = 'a'")
        assert table.sql(f"SELECT `using` FROM {name} WHERE id = 'a'") == [(9,)]
        assert table.sql(f"{keyed.replace('TABLE', 'TABLE IF NOT EXISTS')} SELECT 1 AS id") == []
    finally:
        table.sql(f"DROP TABLE {name}")
