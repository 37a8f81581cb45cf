"""Hands that are asked for when there is work, and somebody who watches how far it has come."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol, TypeVar

import pyarrow as pa

from lakewright.scan.scan_plan import ReadPlan
from lakewright.storage.base import Storage
from lakewright.write.task import Token
from lakewright.write.writer import IncomingRows

Item = TypeVar("Item")
Answer = TypeVar("Answer")

# Told the instant, how many pieces of work there are and how many bytes to read, when the work
# begins; ends with it.
Watch = Callable[[str, int, int], AbstractContextManager[None]]


def nobody_watches(instant: str, items: int, size: int) -> AbstractContextManager[None]:
    """Show nothing."""
    return nullcontext()


class Hands(Protocol):
    """Where the work of a service is done: on Spark's workers, or here in a plain loop."""

    def work(
        self,
        do: Callable[[Item, Token], Answer],
        items: Sequence[Item],
        size: Callable[[Item], int],
    ) -> list[Answer]:
        """Let workers do something with each item, large ones apart; answers in any order.

        `do` and the items travel to other processes: a function of a module, or a `partial` of one.
        """
        ...

    def rows(
        self,
        storage: Storage,
        plan: ReadPlan,
        pick: Callable[[pa.RecordBatch], pa.RecordBatch],
        schema: pa.Schema,
    ) -> IncomingRows:
        """What `pick` leaves of the rows of a query, with columns of `schema`, to be written."""
        ...


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
