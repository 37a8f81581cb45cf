"""Catalog sync: tables and partitions in Hive metastores, AWS Glue and Spark session catalogs."""
