"""What the Python of a worker reports, and what errors of Spark say about it."""

from __future__ import annotations

import json
import sys

import pytest

from lakewright.errors import InvalidError
from lakewright.spark.worker_environment import (
    check_worker_answer,
    library_version,
    problem_in,
    worker_probe,
)

ABOUT_PYTHON = {
    "[PYTHON_VERSION_MISMATCH] Python in worker has different version: 3.9 than that in driver: "
    "3.11, PySpark cannot run with different minor versions.": "another version of Python",
    'Caused by: java.io.IOException: Cannot run program "/no/python": error=2': "cannot start",
    "ModuleNotFoundError: No module named 'lakewright'\n": "lacks this library",
    "ModuleNotFoundError: No module named 'lakewright.read.new'": "lacks this library",
    "ImportError: [PACKAGE_NOT_INSTALLED] PyArrow >= 18.0.0 must be installed; however, it was not "
    "found.": "lacks this library",
    "AttributeError: Can't get attribute '_work' on <module 'lakewright.spark.writer' from 'x'>": (
        "lacks this library"
    ),
}
ABOUT_ROWS = [
    "ModuleNotFoundError: No module named 'scipy'",
    "[DIVIDE_BY_ZERO] Division by zero.",
    "lakewright.errors.CorruptError: a log block is cut off",
]


@pytest.mark.parametrize(("text", "words"), ABOUT_PYTHON.items())
def test_an_error_about_the_python_of_workers(text: str, words: str) -> None:
    error = problem_in(f"Traceback (most recent call last):\n  File x\n{text}\n\tat java.lang.X")
    assert isinstance(error, InvalidError)
    assert words in error.message
    assert "PYSPARK_PYTHON" in error.message
    assert "\n" not in str(error)


@pytest.mark.parametrize("text", ABOUT_ROWS)
def test_an_error_about_something_else(text: str) -> None:
    assert problem_in(text) is None


def test_this_python_is_fit() -> None:
    answer = worker_probe()(None)
    assert json.loads(answer) == {
        "python": sys.executable,
        "missing": "",
        "version": library_version(),
    }
    check_worker_answer(answer, library_version())


def test_an_unknown_version_is_no_error() -> None:
    answer = {"python": "p", "missing": "", "version": ""}
    check_worker_answer(json.dumps(answer), "1.0")
    check_worker_answer(json.dumps({**answer, "version": "1.0"}), "")
    with pytest.raises(InvalidError, match="another version of this library"):
        check_worker_answer(json.dumps({**answer, "version": "0.9"}), "1.0")
