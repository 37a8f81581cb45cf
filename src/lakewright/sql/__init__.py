"""SQL statements and `CALL` procedures that Spark cannot run on a Python data source."""
