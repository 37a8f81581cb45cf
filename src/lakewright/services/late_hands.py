"""Hands that are asked for when there is work, and somebody who watches how far it has come."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from lakewright.services.service import Hands

# Told the instant, how many pieces of work there are and how many bytes to read, when the work
# begins; ends with it.
Watch = Callable[[str, int, int], AbstractContextManager[None]]


def nobody_watches(instant: str, items: int, size: int) -> AbstractContextManager[None]:
    """Show nothing."""
    return nullcontext()


class LateHands:
    """Hands that are asked for when there is work: a clean needs no Spark."""

    def __init__(
        self,
        hands: Callable[[], Hands],
        watch: Callable[[int, int], AbstractContextManager[None]],
    ) -> None:
        self._hands = hands
        self._watch = watch

    def work(self, do: Any, items: Any, size: Any) -> Any:
        """See `Hands`."""
        if not items:
            return []
        hands = self._hands()
        with self._watch(len(items), sum(map(size, items))):
            return hands.work(do, items, size)

    def rows(self, storage: Any, plan: Any, pick: Any, schema: Any) -> Any:
        """See `Hands`."""
        return self._hands().rows(storage, plan, pick, schema)
