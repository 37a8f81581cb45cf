"""Distribution of items over bundles of about the same total size."""

from __future__ import annotations

from collections.abc import Callable, Iterable
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
