"""How much a test does: little in a check, much in a soak run."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TypeVar

Amount = TypeVar("Amount")

SOAK = os.environ.get("LAKEWRIGHT_SOAK") == "1"


def some(values: Sequence[Amount], *check: int) -> Sequence[Amount]:
    """All values in a soak run, else those at some places."""
    return values if SOAK else [values[place] for place in check]


def sized(check: Amount, soak: Amount) -> Amount:
    """The amount of work for this run."""
    return soak if SOAK else check
