"""Test helpers: a manual clock, timelines drawn as text, test storages and local servers."""
