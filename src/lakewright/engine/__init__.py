"""Where rows are worked on: on Spark, or in this process."""
