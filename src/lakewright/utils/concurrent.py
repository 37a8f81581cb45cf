"""Work that makes very many values at once, none of which goes before it ends."""

from __future__ import annotations

import gc
from collections.abc import Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar


@contextmanager
def many_values() -> Iterator[None]:
    """Python looks for cycles among all values as their number grows; here it finds none.

    What counts references frees goes as ever. May be nested; of threads that do this at once, the
    first that ends it ends it for all.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


# ------------------------------------------------------------------------------------------------
# Reading ahead: the next item is made while the last one is worked on.


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
