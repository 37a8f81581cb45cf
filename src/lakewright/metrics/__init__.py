"""What happens to tables, in figures, for systems that watch them."""
