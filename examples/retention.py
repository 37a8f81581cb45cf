"""Partition TTL on a new table: two policies, what they would do, and then doing it.

Partitions of the city Oslo live two days after their last write, all others a year; the second half
goes by the day that is in the path of a partition instead.
"""

import tempfile

import lakewright as lw
from lakewright.demo import start_spark


def main() -> list[str]:
    spark = start_spark()
    table = lw.create(
        tempfile.mkdtemp(prefix="lakewright-") + "/events",
        spark=spark,
        name="events",
        record_key="id",
        partition_by=["city", "day"],
        options={"hoodie.datasource.write.hive_style_partitioning": "true"},
    )
    table.ttl.save({"spec": "**", "units": "YEARS", "value": 1})
    table.ttl.save({"spec": "city=Oslo/*", "units": "DAYS", "value": 2})
    table.ttl.configure(resolve_conflicts_by="MIN_TTL")  # where both match, the shorter counts
    table.ttl.enable(run_inline=False)  # not after each write: only when it is asked for

    rows = [(1, "Oslo", "2026-01-30"), (2, "Oslo", "2026-01-31"), (3, "Bergen", "2999-01-01")]
    table.upsert(spark.createDataFrame(rows, "id INT, city STRING, day STRING"))

    for decision in table.ttl.explain():
        by = decision.policy.spec if decision.policy else "no policy"
        print(f"{decision.partition:<24} goes at {decision.expires_at} by {by}")
    print("today:", table.run("ttl"))  # Skip, with its reason: all were written just now

    # An entry of today is not yet old. Hudi's own keys go by the day that the path names:
    by_path = {
        "hoodie.partition.ttl.management.strategy.type": "KEEP_BY_EVENT_TIME",
        "hoodie.partition.ttl.strategy.days.retain": "30",
        "hoodie.partition.ttl.strategy.event.time.format": "yyyy-MM-dd",
        "hoodie.partition.ttl.strategy.event.time.partition.start.index": "1",
    }
    deleted = table.run("ttl", by_path)
    print(
        "by the day in the path:", deleted.partitions if isinstance(deleted, lw.Commit) else deleted
    )
    remaining = sorted({row.city + "/" + row.day for row in table.read().collect()})
    print("left:", remaining)
    return remaining


if __name__ == "__main__":
    main()
