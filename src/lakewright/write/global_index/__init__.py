"""Keys that are unique in the whole table."""
