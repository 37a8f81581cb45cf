"""The model of a table: immutable values and pure functions on them, without I/O."""
