"""Hands that are asked for when there is work: a clean needs no Spark."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lakewright.services.service import Hands


class LateHands:
    """Forwards to hands that are made by the first work for them."""

    def __init__(self, hands: Callable[[], Hands]) -> None:
        self._hands = hands

    def work(self, do: Any, items: Any, size: Any) -> Any:
        """See `Hands`."""
        return self._hands().work(do, items, size) if items else []

    def rows(self, storage: Any, plan: Any, pick: Any, schema: Any) -> Any:
        """See `Hands`."""
        return self._hands().rows(storage, plan, pick, schema)
