"""How much a test does: little in `./dev test`, more in a check, much in a soak run.

Two marks say what `./dev test` leaves to a check: `thorough`, a test whose proof another one has in
part, and `sampled(n)`, a matrix of which every n-th case is enough.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TypeVar

import pytest

Amount = TypeVar("Amount")

SOAK = os.environ.get("LAKEWRIGHT_SOAK") == "1"
CHECK = SOAK or os.environ.get("LAKEWRIGHT_CHECK") == "1"


def some(values: Sequence[Amount], *check: int) -> Sequence[Amount]:
    """All values in a soak run, else those at some places."""
    return values if SOAK else [values[place] for place in check]


def sized(check: Amount, soak: Amount) -> Amount:
    """The amount of work for this run."""
    return soak if SOAK else check


def left_to_a_check(items: Sequence[pytest.Item]) -> list[pytest.Item]:
    """The tests that a quick run does not run."""
    cases: dict[str, int] = {}
    left = []
    for item in items:
        test = item.nodeid.split("[")[0]
        number = cases[test] = cases.get(test, -1) + 1
        sample = item.get_closest_marker("sampled")
        if item.get_closest_marker("thorough") or (sample and number % sample.args[0]):
            left.append(item)
    return left
