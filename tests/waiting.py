"""Waiting until something happens: a slow machine is waited for, and only a hang is given up."""

from __future__ import annotations

import time
from collections.abc import Callable

CEILING_S = 600.0
_PAUSE_S = 0.005


def until(happened: Callable[[], object], facts: Callable[[], object] = lambda: "") -> None:
    """Return once something has happened; `facts` say what is known if it does not."""
    deadline = time.monotonic() + CEILING_S
    while not happened():
        assert time.monotonic() < deadline, facts()
        time.sleep(_PAUSE_S)
