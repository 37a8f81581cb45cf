"""What a table is: frozen values and pure rules, without I/O."""
