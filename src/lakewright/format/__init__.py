"""Bytes on storage to values and back, without I/O."""
