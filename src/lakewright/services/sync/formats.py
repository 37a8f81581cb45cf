"""The classes by which engines know Hudi's tables in a catalog; without them they read nothing."""

from __future__ import annotations

INPUT = "org.apache.hudi.hadoop.HoodieParquetInputFormat"
INPUT_REALTIME = "org.apache.hudi.hadoop.realtime.HoodieParquetRealtimeInputFormat"
OUTPUT = "org.apache.hadoop.hive.ql.io.parquet.MapredParquetOutputFormat"
SERDE = "org.apache.hadoop.hive.ql.io.parquet.serde.ParquetHiveSerDe"
