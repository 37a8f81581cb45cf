"""Archiving: moves old instants from the active timeline to the archived timeline."""
