"""The lock of a table: in-process, lock file, or storage lock."""
