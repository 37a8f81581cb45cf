"""The doctor: examine a table, report what is wrong, and repair what can be repaired safely."""
