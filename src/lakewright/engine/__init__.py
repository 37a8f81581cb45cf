"""Engines: where rows are read, transformed and written. Spark, or this process."""
