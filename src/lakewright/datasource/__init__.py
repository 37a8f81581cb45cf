"""The Spark data source `hudi`."""
