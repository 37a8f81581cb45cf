"""Ingestion: sources with checkpoints, and the loop that commits their batches to a table."""
