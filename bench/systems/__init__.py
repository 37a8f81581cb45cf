"""One module for each system that takes part in the race."""
