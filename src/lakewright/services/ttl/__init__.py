"""TTL: deletes the partitions, or rows, that are older than a policy allows."""
