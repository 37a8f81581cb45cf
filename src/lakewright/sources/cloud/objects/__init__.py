"""The rows of objects."""
