"""From a snapshot to rows: plans, workers, and Spark."""
