"""The Python that Spark's workers run: whether it is fit for the work of this library."""
