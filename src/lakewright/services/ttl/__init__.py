"""Partition TTL: takes partitions out of the table that nobody has written to for long enough."""
