"""Writes, services and TTL of one table, by Hudi's options."""
