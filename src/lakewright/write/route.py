"""Where rows of new keys go: small files first, then new ones."""

from __future__ import annotations

from collections.abc import Sequence


def fill_small_files(free_rows: Sequence[int], rows: int) -> list[int]:
    """How many of `rows` each small file takes, in the order given, none more than it has room for.

    >>> fill_small_files([3, 5], 4), fill_small_files([3], 10), fill_small_files([], 2)
    ([3, 1], [3], [])
    """
    taken = []
    for room in free_rows:
        share = max(0, min(room, rows))
        taken.append(share)
        rows -= share
    return taken


def room_in(size: int, data_bytes: int, rows: int, *, max_size: int, estimate: int) -> int:
    """How many more rows fit into a base file, judged by the rows it has.

    The footer counts for the file's size and not for that of its rows: a filter for sixty thousand
    keys would make a handful of rows look huge.
    """
    width = data_bytes / rows if rows else estimate
    return max(0, int((max_size - size) / max(width, 1.0)))
