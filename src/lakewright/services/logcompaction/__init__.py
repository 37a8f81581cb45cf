"""Log compaction: the log files of a file group become one, its base file stays as it is."""
