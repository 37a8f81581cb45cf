"""The program `lakewright demo`, and the sample table and Spark session for first examples."""

from lakewright.demo.sample import change, sample_table, show
from lakewright.demo.session import start_spark

__all__ = ["change", "sample_table", "show", "start_spark"]
