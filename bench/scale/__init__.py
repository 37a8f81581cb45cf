"""How metadata work grows: tables without data, from a thousand files to ten million."""
