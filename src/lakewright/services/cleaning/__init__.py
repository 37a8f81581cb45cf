"""Cleaning: deletes the files that no query within the retention period needs."""
