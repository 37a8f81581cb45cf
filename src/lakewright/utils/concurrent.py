"""Helpers for bulk work: pausing the cyclic garbage collector, and reading ahead in threads."""

from __future__ import annotations

import gc
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
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
Result = TypeVar("Result")
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


def map_ahead(
    work: Callable[[Item], Result],
    items: Sequence[Item],
    size: Callable[[Item], int],
    *,
    most: int,
    max_size: int,
) -> Generator[Result, None, None]:
    """Yield `work` of each item, in order, and work on the next items in threads.

    At most `most` items, and one or items of at most `max_size` together, are worked on or
    finished but not yet yielded. A caller that needs no more results closes the generator: which
    items were worked on then depends only on how many results it took.
    """
    if len(items) < 2:
        yield from map(work, items)
        return
    ahead_of_caller: deque[tuple[int, Future[Result]]] = deque()
    total, number = 0, 0
    with ThreadPoolExecutor(min(most, len(items)), "map-ahead") as pool:
        while ahead_of_caller or number < len(items):
            while number < len(items) and len(ahead_of_caller) < most:
                upcoming = size(items[number])
                if ahead_of_caller and total + upcoming > max_size:
                    break
                ahead_of_caller.append((upcoming, pool.submit(work, items[number])))
                total += upcoming
                number += 1
            finished, future = ahead_of_caller.popleft()
            result = future.result()
            total -= finished
            del future
            yield result
            del result
