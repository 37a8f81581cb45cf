"""Avro schemas and container files, and conversion between Avro rows and Arrow columns."""
