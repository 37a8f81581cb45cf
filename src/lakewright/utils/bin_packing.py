"""Dealing work out: bundles of about the same size."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from heapq import heapify, heapreplace
from typing import TypeVar

Item = TypeVar("Item")


def pack_by_size(
    items: Iterable[Item], size: Callable[[Item], int], bundles: int
) -> list[list[Item]]:
    """At most so many bundles, none of them empty: the largest item goes first, to the least load.

    >>> deal([1, 5, 4, 2], lambda size: size, 2)
    [[5, 1], [4, 2]]
    """
    ordered = sorted(items, key=size, reverse=True)
    dealt: list[list[Item]] = [[] for _ in range(min(bundles, len(ordered)))]
    loads = [(0, number) for number in range(len(dealt))]
    heapify(loads)
    for item in ordered:
        load, number = loads[0]
        dealt[number].append(item)
        heapreplace(loads, (load + size(item), number))
    return dealt
