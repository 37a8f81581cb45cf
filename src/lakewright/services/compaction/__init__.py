"""Compaction: merges the log files of file groups into new base files."""
