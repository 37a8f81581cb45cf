"""Tables and their partitions in catalogs: Hive metastores, AWS Glue, that of a Spark session."""
