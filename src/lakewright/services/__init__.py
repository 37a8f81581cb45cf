"""Table services: what keeps a table in repair, planned first and done by instant after."""
