"""The only door to bytes: one small protocol, several places."""
