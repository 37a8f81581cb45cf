"""What people and programs call: parse, call, render; nothing is decided here."""
