"""Helpers for tests of code that uses tables: drawn timelines, workers in a plain loop."""
