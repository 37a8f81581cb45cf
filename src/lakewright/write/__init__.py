"""Writing rows: from incoming rows to the commit that makes them visible."""
