"""Who does the work of services."""
