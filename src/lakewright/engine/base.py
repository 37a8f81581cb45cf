"""The engine: where rows are read, transformed and written."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol, TypeVar

import pyarrow as pa

from lakewright.scan.scan_plan import ScanPlan
from lakewright.storage.base import Storage
from lakewright.write.task import WriteStatus, WriteTask, WriteToken
from lakewright.write.writer import RowSource

Item = TypeVar("Item")
Answer = TypeVar("Answer")

# Called with the number of items and their total bytes when `Engine.map` begins; the context is
# closed when it returns.
MapProgress = Callable[[int, int], AbstractContextManager[None]]


def no_progress(items: int, size: int) -> AbstractContextManager[None]:
    """Show no progress."""
    return nullcontext()


class Rows(RowSource, Protocol):
    """The rows of a scan, not yet read."""

    def map_batches(
        self, function: Callable[[pa.RecordBatch], pa.RecordBatch], schema: pa.Schema
    ) -> RowSource:
        """Return the rows that `function` makes of each batch, in the columns of `schema`.

        The engine may send `function` to other processes: a function of a module, or a `partial`
        of one.
        """
        ...


class Engine(Protocol):
    """Where rows are read, transformed and written: Spark's executors, or this process.

    The library decides what to read and write (`ScanPlan`, `WriteTask`); an engine does it. It
    neither plans nor commits.
    """

    def scan(self, storage: Storage, plan: ScanPlan) -> Rows:
        """Return the rows of a scan."""
        ...

    def write(self, task: WriteTask, rows: RowSource) -> Sequence[WriteStatus]:
        """Write the data files of `task`; one status for each worker that wrote some."""
        ...

    def map(
        self,
        function: Callable[[Item, WriteToken], Answer],
        items: Sequence[Item],
        size: Callable[[Item], int],
    ) -> list[Answer]:
        """Call `function` on each item, large ones in tasks of their own; results in any order.

        The engine may send `function` and the items to other processes: a function of a module, or
        a `partial` of one.
        """
        ...


class LazyEngine:
    """An engine that is started on first use: a clean, for example, starts no Spark session."""

    def __init__(self, start: Callable[[], Engine], progress: MapProgress = no_progress) -> None:
        self._start = start
        self._progress = progress

    def scan(self, storage: Storage, plan: ScanPlan) -> Rows:
        """See `Engine`."""
        return self._start().scan(storage, plan)

    def write(self, task: WriteTask, rows: RowSource) -> Sequence[WriteStatus]:
        """See `Engine`."""
        return self._start().write(task, rows)

    def map(self, function: Any, items: Any, size: Any) -> Any:
        """See `Engine`."""
        if not items:
            return []
        engine = self._start()
        with self._progress(len(items), sum(map(size, items))):
            return engine.map(function, items, size)
