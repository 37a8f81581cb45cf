"""The bytes of a metadata table: records, log and base files, and its properties."""
