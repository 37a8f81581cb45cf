"""Scans and writes on Spark."""
