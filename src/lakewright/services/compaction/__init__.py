"""Compaction: the log files of a file group become part of its next base file."""
