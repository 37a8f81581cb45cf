"""A Kafka topic as a source, read by Spark's own connector."""
