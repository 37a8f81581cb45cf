"""Sizes that Spark prints with a plan."""

from __future__ import annotations

import io
import sys
from threading import Thread

import pytest

from lakewright.spark.size_estimate import estimated_bytes, parse_estimate

PLANS = {
    "bytes": ("Range (0, 3), Statistics(sizeInBytes=24.0 B, rowCount=3)", 24),
    "the first operator is the result": (
        "Join Inner, Statistics(sizeInBytes=1.5 GiB)\n+- Relation, Statistics(sizeInBytes=2.0 KiB)",
        3 << 29,
    ),
    "large products": ("Join Cross, Statistics(sizeInBytes=1.2E+3 TiB)", int(1.2e3 * (1 << 40))),
    "what Spark does not know": ("LogicalRDD, Statistics(sizeInBytes=8.0 EiB)", None),
    "a plan without statistics": ("== Physical Plan ==", None),
}


@pytest.mark.parametrize(("plan", "expected"), PLANS.values(), ids=list(PLANS))
def test_an_estimate(plan: str, expected: int | None) -> None:
    assert parse_estimate(plan) == expected


class ExplainedFrame:
    """A frame whose plan is printed while another thread prints as well."""

    def explain(self, *, mode: str) -> None:
        assert mode == "cost"
        other = Thread(target=print, args=("of another thread",))
        other.start()
        other.join()
        print("Relation, Statistics(sizeInBytes=7.0 B)")


def test_what_other_threads_print_is_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    printed = io.StringIO()
    monkeypatch.setattr(sys, "stdout", printed)
    assert estimated_bytes(ExplainedFrame()) == 7  # type: ignore[arg-type]
    assert printed.getvalue() == "of another thread\n"
    assert sys.stdout is printed
