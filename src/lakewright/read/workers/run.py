"""Make sure, once for a session, that Spark's workers run a Python that has this library."""

from __future__ import annotations

from typing import TYPE_CHECKING

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import functions as F

from lakewright.errors import UnavailableError
from lakewright.read.workers.facts import asking, check_told, own_version, problem_in

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# What Spark raises; errors of the JVM come in more than one wrapping.
SPARK_ERRORS = (PySparkException, Py4JJavaError)
_CHECKED = "spark.lakewright.workers"


def require_workers(spark: SparkSession) -> None:
    """InvalidError with the remedy if workers cannot do our work; one task, once for a session.

    Spark would tell of it with the stack traces of a task, in which the cause comes last.
    """
    if spark.conf.get(_CHECKED, "") == "true":
        return
    # Not by Arrow: a Python without it is one of those that are looked for.
    tell = F.udf(asking(), "string", useArrow=False)
    try:
        told = spark.range(0, 1, 1, 1).select(tell("id").alias("told")).collect()
    except SPARK_ERRORS as error:
        found = problem_in(str(error))
        if found is not None:
            raise found from error
        raise UnavailableError(
            "Spark's workers did not run Python", reason=str(error)[:1000]
        ) from error
    check_told(told[0].told, own_version())
    spark.conf.set(_CHECKED, "true")
