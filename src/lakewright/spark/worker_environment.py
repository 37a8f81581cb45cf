"""Make sure, once for a session, that Spark's workers run a Python that has this library."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import functions as F

from lakewright.errors import InvalidError, UnavailableError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_REMEDY = (
    "start the session with PYSPARK_PYTHON (or spark.pyspark.python) naming a Python that has them"
)
_OTHER_PYTHON = re.compile(
    r"\[PYTHON_VERSION_MISMATCH\][^\n]*?version: (?P<worker>[\d.]+) than that in driver"
)
_NO_PYTHON = re.compile(r'Cannot run program "(?P<python>[^"]+)"')
# Of this library and of what it needs; others are missed by functions of the user.
_NO_MODULE = re.compile(
    r"(?P<reason>No module named '(?:lakewright|fastavro|numpy|obstore|pandas|pyarrow|pyspark)"
    r"\b[^\n]*"
    r"|cannot import name [^\n]* from 'lakewright[^\n]*"
    r"|Can't get attribute [^\n]* on <module 'lakewright[^\n]*"
    r"|\w+ >= [\d.]+ must be installed; however, [^\n]*)"
)


def own_version() -> str:
    """The version of this library; empty if it is not installed but found on a path."""
    try:
        return version("lakewright")
    except PackageNotFoundError:
        return ""


def worker_probe() -> Callable[[object], str]:
    """A function that tells about the Python which runs it; it needs nothing but that Python.

    Spark sends a function that is made within another one as code, and others by their name: of
    this library nothing can be called by name where it is missing.
    """

    def tell(_: object) -> str:
        told = {"python": sys.executable, "missing": "", "version": ""}
        try:
            for name in ("pyarrow", "lakewright.scan.slice_reader", "lakewright.write.operations"):
                import_module(name)
        except ImportError as error:
            told["missing"] = str(error)
        # Not by a function of this library, which may be missing.
        with suppress(PackageNotFoundError):
            told["version"] = version("lakewright")
        return json.dumps(told)

    return tell


def check_worker_answer(text: str, version_here: str) -> None:
    """InvalidError if a worker whose Python told this about itself cannot do our work."""
    told = json.loads(text)
    here = {"workers": told["python"], "driver": sys.executable}
    if told["missing"]:
        raise InvalidError(
            f"Spark's workers run a Python that lacks this library or what it needs: {_REMEDY}, or "
            "install them there",
            reason=told["missing"],
            **here,
        )
    if version_here and told["version"] and told["version"] != version_here:
        raise InvalidError(
            "Spark's workers have another version of this library than the driver: install the "
            "same one there, or start the session with PYSPARK_PYTHON (or spark.pyspark.python) "
            "naming a Python that has it",
            version_of_workers=told["version"],
            version_of_driver=version_here,
            **here,
        )


def problem_in(text: str) -> InvalidError | None:
    """What an error of Spark says about the Python of its workers; None if it is about others."""
    other = _OTHER_PYTHON.search(text)
    if other is not None:
        return InvalidError(
            "Spark's workers run another version of Python than the driver: start the session with "
            "PYSPARK_PYTHON (or spark.pyspark.python) naming a Python of the same version",
            version_of_workers=other["worker"],
            version_of_driver=".".join(map(str, sys.version_info[:2])),
            driver=sys.executable,
        )
    absent = _NO_PYTHON.search(text)
    if absent is not None:
        return InvalidError(
            f"Spark cannot start the Python of its workers: {_REMEDY}, at that path on every "
            "machine",
            workers=absent["python"],
            driver=sys.executable,
        )
    lacking = _NO_MODULE.search(text)
    if lacking is not None:
        return InvalidError(
            f"Spark's workers run a Python that lacks this library or what it needs: {_REMEDY}, or "
            "install them there",
            reason=lacking["reason"].strip(),
            driver=sys.executable,
        )
    return None


# ------------------------------------------------------------------------------------------------
# What a worker's Python is, and what is wrong with it for this library. Pure.


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
    tell = F.udf(worker_probe(), "string", useArrow=False)
    try:
        told = spark.range(0, 1, 1, 1).select(tell("id").alias("told")).collect()
    except SPARK_ERRORS as error:
        found = problem_in(str(error))
        if found is not None:
            raise found from error
        raise UnavailableError(
            "Spark's workers did not run Python", reason=str(error)[:1000]
        ) from error
    check_worker_answer(told[0].told, own_version())
    spark.conf.set(_CHECKED, "true")
