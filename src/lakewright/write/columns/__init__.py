"""Columns that Spark computes for a write."""
