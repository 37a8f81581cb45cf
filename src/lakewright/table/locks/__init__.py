"""Locks of a table, of all kinds."""
