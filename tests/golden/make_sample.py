"""Makes the sample table of the demo with real Apache Hudi: `make_sample.py BUNDLE OUT`.

Needs PySpark 3.5, like make_tables.py. A day of trips in three cities on merge-on-read: a load, a
correction of fares, cancelled trips, and a second load.
"""

from __future__ import annotations

import sys
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

OPTIONS = {
    "hoodie.table.name": "trips",
    "hoodie.datasource.write.recordkey.field": "trip",
    "hoodie.datasource.write.partitionpath.field": "city",
    "hoodie.datasource.write.precombine.field": "updated_at",
    "hoodie.datasource.write.table.type": "MERGE_ON_READ",
    "hoodie.table.timeline.timezone": "UTC",
    "hoodie.metadata.enable": "false",
    "hoodie.compact.inline": "false",
    "hoodie.parquet.small.file.limit": "0",
    "hoodie.upsert.shuffle.parallelism": "3",
    # A filter for few keys: the default one takes 400 KB in every file.
    "hoodie.index.bloom.num_entries": "200",
}


def trips(spark: SparkSession, first: int, last: int, hour: int) -> DataFrame:
    number = F.col("id")
    city = F.element_at(
        F.array(*map(F.lit, ["Bergen", "Oslo", "Tromsø"])), (number % 3 + 1).cast("int")
    )
    return spark.range(first, last).select(
        F.format_string("trip-%04d", number).alias("trip"),
        city.alias("city"),
        F.round(40 + (number * 37 % 190) / 10, 2).cast("decimal(8,2)").alias("fare"),
        F.when(number % 4 == 0, F.lit("card")).otherwise(F.lit("app")).alias("paid_by"),
        F.expr(
            f"timestamp'2026-03-01 {hour:02d}:00:00' + make_interval(0,0,0,0,0,cast(id % 60 as int),0)"
        ).alias("updated_at"),
    )


def main(bundle: str, out: str) -> None:
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.jars", bundle)
        .config("spark.ui.enabled", "false")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.driver.extraJavaOptions", "-Duser.timezone=UTC")
        .config("spark.serializer", "org.apache.spark.serializer.KryoSerializer")
        .config("spark.sql.extensions", "org.apache.spark.sql.hudi.HoodieSparkSessionExtension")
        .getOrCreate()
    )
    table = str(Path(out) / "trips")

    def write(frame: DataFrame, operation: str, mode: str = "append") -> None:
        options = {**OPTIONS, "hoodie.datasource.write.operation": operation}
        frame.write.format("hudi").options(**options).mode(mode).save(table)

    write(trips(spark, 0, 300, 8), "upsert", "overwrite")
    write(
        trips(spark, 0, 300, 9)
        .where("trip like '%7'")
        .withColumn("fare", F.expr("cast(fare - 5 as decimal(8,2))")),
        "upsert",
    )
    write(trips(spark, 20, 29, 10), "delete")
    write(trips(spark, 300, 360, 11), "upsert")
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:3])
