"""SQL statements that Spark cannot carry out for a Python source, carried out here."""
