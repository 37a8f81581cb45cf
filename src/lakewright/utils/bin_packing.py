"""Distribution of items by size: over even bundles, and in batches of a bounded size."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from heapq import heapify, heapreplace
from typing import TypeVar

Item = TypeVar("Item")


def pack_by_size(
    items: Iterable[Item], size: Callable[[Item], int], bundles: int
) -> list[list[Item]]:
    """Distribute items over at most `bundles` bundles, none of them empty.

    Items are assigned in descending order of size, each to the bundle with the smallest load.

    >>> pack_by_size([1, 5, 4, 2], lambda size: size, 2)
    [[5, 1], [4, 2]]
    """
    ordered = sorted(items, key=size, reverse=True)
    packed: list[list[Item]] = [[] for _ in range(min(bundles, len(ordered)))]
    loads = [(0, number) for number in range(len(packed))]
    heapify(loads)
    for item in ordered:
        load, number = loads[0]
        packed[number].append(item)
        heapreplace(loads, (load + size(item), number))
    return packed


def batches_by_size(
    items: Iterable[Item], size: Callable[[Item], int], max_size: int, max_count: int
) -> Iterator[list[Item]]:
    """Yield items in batches, in order: each ends with the item that makes it full.

    No item is taken before the batches in front of it have been used.

    >>> list(batches_by_size([1, 5, 1, 1, 1, 1], lambda size: size, 5, 3))
    [[1, 5], [1, 1, 1], [1]]
    """
    batch: list[Item] = []
    total = 0
    for item in items:
        batch.append(item)
        total += size(item)
        if total >= max_size or len(batch) >= max_count:
            yield batch
            batch, total = [], 0
    if batch:
        yield batch
