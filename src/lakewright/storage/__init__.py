"""File access: one small protocol, implemented for several kinds of storage."""
