"""Which objects the events table tells of."""
