"""Archiving: old instants move from the active timeline into history, which keeps all of them."""
