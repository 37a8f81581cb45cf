"""An ordinary Hudi job: upserts, an incremental read, a compaction by CALL, a MERGE.

Nothing in `job` knows which library runs it: it is the same on real Hudi. One line differs in
`main`, the one that brings the format into the session.
"""

import sys
from typing import Any

from pyspark.sql import SparkSession

RIDES = "id STRING, city STRING, fare DOUBLE, ts BIGINT"
OPTIONS = {
    "hoodie.table.name": "rides",
    "hoodie.datasource.write.table.type": "MERGE_ON_READ",
    "hoodie.datasource.write.recordkey.field": "id",
    "hoodie.datasource.write.partitionpath.field": "city",
    "hoodie.datasource.write.precombine.field": "ts",
    "hoodie.datasource.write.operation": "upsert",
    "hoodie.compact.inline": "false",
}
MERGE = """
    MERGE INTO rides AS t
    USING (SELECT 'r2' AS id, 'paris' AS city, 0.0D AS fare, 30L AS ts
           UNION ALL SELECT 'r3', 'oslo', 33.0D, 30L
           UNION ALL SELECT 'r9', 'oslo', 9.0D, 30L) AS s
    ON t.id = s.id AND t.city = s.city
    WHEN MATCHED AND s.fare = 0 THEN DELETE
    WHEN MATCHED AND s.fare > 0 THEN UPDATE SET *
    WHEN NOT MATCHED THEN INSERT *
"""


def job(spark: SparkSession, path: str) -> dict[str, list[tuple[Any, ...]]]:
    """Run the job at a path where nothing is yet; gives what it read on the way."""

    def save(*rows: tuple[str, str, float, int]) -> None:
        frame = spark.createDataFrame(list(rows), RIDES)
        frame.write.format("hudi").options(**OPTIONS).mode("append").save(path)

    def rows(text: str) -> list[tuple[Any, ...]]:
        return sorted((tuple(row) for row in spark.sql(text).collect()), key=str)

    save(("r1", "paris", 10.0, 10), ("r2", "paris", 20.0, 10), ("r3", "oslo", 30.0, 10))
    spark.sql(f"CREATE TABLE rides USING hudi LOCATION '{path}'")
    last_commit = spark.sql("CALL show_commits(table => 'rides', limit => 1)").first()
    assert last_commit is not None
    # One ride is dearer than it was, one is new, and one comes too late to count.
    save(("r1", "paris", 11.0, 20), ("r4", "oslo", 40.0, 20), ("r3", "oslo", 1.0, 5))
    changed = (
        spark.read.format("hudi")
        .option("hoodie.datasource.query.type", "incremental")
        .option("hoodie.datasource.read.begin.instanttime", last_commit["state_transition_time"])
        .load(path)
    )
    results = {
        "changed": sorted(tuple(row) for row in changed.select("id", "fare", "ts").collect())
    }
    compacted = spark.sql(
        "CALL run_compaction(op => 'scheduleAndExecute', table => 'rides', "
        "options => 'hoodie.compact.inline.max.delta.commits=1')"
    )
    results["compacted"] = [(row["operation_size"], row["state"]) for row in compacted.collect()]
    spark.sql(MERGE)
    results["merged"] = rows("SELECT id, city, fare, ts FROM rides")
    first_commit_time = spark.sql("CALL show_commits(table => 'rides')").collect()[-1][
        "commit_time"
    ]
    results["first"] = rows(f"SELECT id, fare FROM rides TIMESTAMP AS OF '{first_commit_time}'")
    spark.sql("UPDATE rides SET fare = fare * 2 WHERE city = 'oslo'")
    spark.sql("DELETE FROM rides WHERE fare > 70")
    results["rides"] = rows("SELECT id, city, fare, ts FROM rides")
    spark.sql("DROP TABLE rides")
    return results


def main(path: str) -> None:
    """Run the job on this library."""
    import lakewright as lw

    spark = SparkSession.builder.appName("rides").getOrCreate()
    lw.install(spark)  # was: .config("spark.jars.packages", "org.apache.hudi:hudi-spark3.5-...")
    for name, rows in job(spark, path).items():
        print(name, *rows, sep="\n  ")


if __name__ == "__main__":
    main(sys.argv[1])
