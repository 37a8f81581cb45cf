"""The Python of Spark's workers: whether it has this library, and the local folder of a task."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable, Mapping
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
_PYTHON_MISMATCH = re.compile(
    r"\[PYTHON_VERSION_MISMATCH\][^\n]*?version: (?P<worker>[\d.]+) than that in driver"
)
_NO_PYTHON = re.compile(r'Cannot run program "(?P<python>[^"]+)"')
# Only modules of this library and its dependencies: other missing modules concern user functions.
_NO_MODULE = re.compile(
    r"(?P<reason>No module named '(?:lakewright|fastavro|numpy|obstore|pandas|pyarrow|pyspark)"
    r"\b[^\n]*"
    r"|cannot import name [^\n]* from 'lakewright[^\n]*"
    r"|Can't get attribute [^\n]* on <module 'lakewright[^\n]*"
    r"|\w+ >= [\d.]+ must be installed; however, [^\n]*)"
)


def local_folder(number: int, environment: Mapping[str, str] = os.environ) -> str | None:
    """Return the folder for local files of a task; None for the one of the operating system.

    Spark names its own local folders (`spark.local.dir`) to its workers, and deletes them when an
    executor ends. The tasks of an executor are spread over them.
    """
    folders = [folder for folder in environment.get("SPARK_LOCAL_DIRS", "").split(",") if folder]
    return folders[number % len(folders)] if folders else None


def library_version() -> str:
    """Return the version of this library; empty if it is not installed but on the path."""
    try:
        return version("lakewright")
    except PackageNotFoundError:
        return ""


def worker_probe() -> Callable[[object], str]:
    """Return a function that describes the Python that runs it, and needs only that Python.

    Spark sends a nested function as code, but a module's function by its name: where this library
    is missing, none of its functions can be called by name.
    """

    def describe(_: object) -> str:
        result = {"python": sys.executable, "missing": "", "version": ""}
        try:
            for name in ("pyarrow", "lakewright.scan.slice_reader", "lakewright.write.operations"):
                import_module(name)
        except ImportError as error:
            result["missing"] = str(error)
        # Do not call a function of this library, which may be missing.
        with suppress(PackageNotFoundError):
            result["version"] = version("lakewright")
        return json.dumps(result)

    return describe


def check_worker_answer(text: str, driver_version: str) -> None:
    """Raise InvalidError if the answer of `worker_probe` shows an unusable Python."""
    answer = json.loads(text)
    pythons = {"workers": answer["python"], "driver": sys.executable}
    if answer["missing"]:
        raise InvalidError(
            f"Spark's workers run a Python that lacks this library or what it needs: {_REMEDY}, or "
            "install them there",
            reason=answer["missing"],
            **pythons,
        )
    if driver_version and answer["version"] and answer["version"] != driver_version:
        raise InvalidError(
            "Spark's workers have another version of this library than the driver: install the "
            "same one there, or start the session with PYSPARK_PYTHON (or spark.pyspark.python) "
            "naming a Python that has it",
            version_of_workers=answer["version"],
            version_of_driver=driver_version,
            **pythons,
        )


def problem_in(text: str) -> InvalidError | None:
    """Return the InvalidError for a Spark error about its workers' Python; None for any other."""
    mismatch = _PYTHON_MISMATCH.search(text)
    if mismatch is not None:
        return InvalidError(
            "Spark's workers run another version of Python than the driver: start the session with "
            "PYSPARK_PYTHON (or spark.pyspark.python) naming a Python of the same version",
            version_of_workers=mismatch["worker"],
            version_of_driver=".".join(map(str, sys.version_info[:2])),
            driver=sys.executable,
        )
    not_started = _NO_PYTHON.search(text)
    if not_started is not None:
        return InvalidError(
            f"Spark cannot start the Python of its workers: {_REMEDY}, at that path on every "
            "machine",
            workers=not_started["python"],
            driver=sys.executable,
        )
    missing = _NO_MODULE.search(text)
    if missing is not None:
        return InvalidError(
            f"Spark's workers run a Python that lacks this library or what it needs: {_REMEDY}, or "
            "install them there",
            reason=missing["reason"].strip(),
            driver=sys.executable,
        )
    return None


# The errors that Spark raises; those of the JVM are wrapped in more than one class.
SPARK_ERRORS = (PySparkException, Py4JJavaError)
_CHECKED_KEY = "spark.lakewright.workers"


def require_workers(spark: SparkSession) -> None:
    """Raise InvalidError if workers cannot run this library; runs one task, once for a session.

    Spark itself would report it with the stack traces of a task, which name the cause last.
    """
    if spark.conf.get(_CHECKED_KEY, "") == "true":
        return
    # Without Arrow, so that the probe also runs in a Python that lacks it.
    describe = F.udf(worker_probe(), "string", useArrow=False)
    try:
        answers = spark.range(0, 1, 1, 1).select(describe("id").alias("answer")).collect()
    except SPARK_ERRORS as error:
        problem = problem_in(str(error))
        if problem is not None:
            raise problem from error
        raise UnavailableError(
            "Spark's workers did not run Python", reason=str(error)[:1000]
        ) from error
    check_worker_answer(answers[0].answer, library_version())
    spark.conf.set(_CHECKED_KEY, "true")
