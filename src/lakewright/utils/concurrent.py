"""Helpers for bulk work: pausing the cyclic garbage collector, and reading ahead in a thread."""

from __future__ import annotations

import gc
from collections.abc import Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar


@contextmanager
def gc_paused() -> Iterator[None]:
    """Disable the cyclic garbage collector while a block creates many long-lived objects.

    Its collections would scan all of them again and again and find no cycles; reference counting
    still frees objects. May be nested. The switch is global to the process: of several threads in
    such a block, the first one that leaves it may enable the collector for all of them.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


Item = TypeVar("Item")
_END = object()


def ahead(items: Generator[Item, None, None]) -> Iterator[Item]:
    """Yield the same items, and produce the next one in a thread while the caller uses the last.

    Reading parquet releases the interpreter lock, so a task that works on one large file can use
    two cores.
    """
    pool = ThreadPoolExecutor(1, "read-ahead")
    try:
        upcoming = pool.submit(next, items, _END)
        while (item := upcoming.result()) is not _END:
            upcoming = pool.submit(next, items, _END)
            yield item  # type: ignore[misc]
    finally:
        pool.shutdown()
        items.close()
