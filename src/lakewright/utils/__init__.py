"""What knows nothing of tables."""
