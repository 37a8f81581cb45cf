"""Cleaning: files that no reader within the retained time needs any more are deleted."""
