"""Parse and format the files of a table, without I/O."""
