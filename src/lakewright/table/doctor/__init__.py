"""What is wrong with a table: looking, deciding, and putting right what can safely be."""
