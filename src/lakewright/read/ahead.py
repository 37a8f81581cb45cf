"""Reading ahead: the next item is made while the last one is worked on."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

Item = TypeVar("Item")
_END = object()


def ahead(items: Generator[Item, None, None]) -> Iterator[Item]:
    """The same items, each made by a thread of its own before it is asked for.

    Reading parquet needs no lock of the interpreter: a task that owns one large file so uses two
    cores, where there are two.
    """
    pool = ThreadPoolExecutor(1, "read-ahead")
    try:
        coming = pool.submit(next, items, _END)
        while (item := coming.result()) is not _END:
            coming = pool.submit(next, items, _END)
            yield item  # type: ignore[misc]
    finally:
        pool.shutdown()
        items.close()
