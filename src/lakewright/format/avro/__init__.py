"""Avro: schemas, containers, and rows to columns and back."""
