"""Ingestion of objects in cloud stores, found by the notifications that the stores send."""
