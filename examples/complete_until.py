"""Compaction by event time, and a reader that waits until the fast view is complete.

One part of a pipeline writes rides, some of them late. It compacts what happened before midnight.
The other part wants all of yesterday, from base files alone: it waits for completion, then reads.
"""

import tempfile

import lakewright as lw
from lakewright.demo import start_spark

MIDNIGHT = "2026-01-31T00:00:00Z"


def main() -> int:
    spark = start_spark()
    table = lw.create(
        tempfile.mkdtemp(prefix="lakewright-") + "/rides",
        spark=spark,
        name="rides",
        table_type="MERGE_ON_READ",
        record_key="id",
        ordering="ts",
        event_time="ts",
    )

    def write(*rows: tuple[int, float, str]) -> None:
        frame = spark.createDataFrame(rows, "id INT, fare DOUBLE, ts STRING")
        table.upsert(frame.withColumn("ts", frame.ts.cast("timestamp")))

    write((1, 10.0, "2026-01-30 09:00:00"), (2, 12.0, "2026-01-30 18:00:00"))
    write((1, 11.0, "2026-01-30 23:30:00"))  # an update, in a log file
    write((2, 14.0, "2026-01-31 00:10:00"))  # the next day has begun

    for blocking in table.blocking_log_files(limit=1):
        print("held back by", blocking.log, "of the write", blocking.instant)
    result = table.run(
        "compaction",
        {
            "hoodie.compaction.strategy": "event_time",
            "hoodie.compaction.event.time.threshold": MIDNIGHT,
        },
    )
    print(
        "compacted:", f"{result.updated} row folded in" if isinstance(result, lw.Commit) else result
    )

    # Elsewhere, before a report is made: an UnavailableError tells what holds it back.
    table.wait_until_complete("2026-01-30T23:59:59Z", timeout=60)
    report = table.read_optimized().where("ts < '2026-01-31'")
    report.select("id", "fare", "ts").orderBy("id").show()
    return report.count()


if __name__ == "__main__":
    main()
