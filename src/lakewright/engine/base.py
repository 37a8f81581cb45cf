"""Hands that are asked for when there is work, and somebody who watches how far it has come."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol, TypeVar

import pyarrow as pa

from lakewright.scan.scan_plan import ScanPlan
from lakewright.storage.base import Storage
from lakewright.write.task import WriteToken
from lakewright.write.writer import RowSource

Item = TypeVar("Item")
Answer = TypeVar("Answer")

# Told the instant, how many pieces of work there are and how many bytes to read, when the work
# begins; ends with it.
ProgressCallback = Callable[[str, int, int], AbstractContextManager[None]]


def no_progress(instant: str, items: int, size: int) -> AbstractContextManager[None]:
    """Show nothing."""
    return nullcontext()


class Engine(Protocol):
    """Where the work of a service is done: on Spark's workers, or here in a plain loop."""

    def map(
        self,
        do: Callable[[Item, WriteToken], Answer],
        items: Sequence[Item],
        size: Callable[[Item], int],
    ) -> list[Answer]:
        """Let workers do something with each item, large ones apart; answers in any order.

        `do` and the items travel to other processes: a function of a module, or a `partial` of one.
        """
        ...

    def select(
        self,
        storage: Storage,
        plan: ScanPlan,
        pick: Callable[[pa.RecordBatch], pa.RecordBatch],
        schema: pa.Schema,
    ) -> RowSource:
        """What `pick` leaves of the rows of a query, with columns of `schema`, to be written."""
        ...


class LazyEngine:
    """Hands that are asked for when there is work: a clean needs no Spark."""

    def __init__(
        self,
        hands: Callable[[], Engine],
        watch: Callable[[int, int], AbstractContextManager[None]],
    ) -> None:
        self._hands = hands
        self._watch = watch

    def map(self, do: Any, items: Any, size: Any) -> Any:
        """See `Engine`."""
        if not items:
            return []
        hands = self._hands()
        with self._watch(len(items), sum(map(size, items))):
            return hands.map(do, items, size)

    def select(self, storage: Any, plan: Any, pick: Any, schema: Any) -> Any:
        """See `Engine`."""
        return self._hands().select(storage, plan, pick, schema)
