"""Where rows of new keys go: small files first, then new ones."""

from __future__ import annotations

from collections.abc import Iterable


def fill_small_files(rooms: Iterable[tuple[int, int]], rows: int) -> list[tuple[int, int]]:
    """How many of `rows` each small file takes, given what each has room for; no more are asked.

    >>> fill_small_files([(7, 3), (8, 5), (9, 5)], 4)
    [(7, 3), (8, 1)]
    >>> fill_small_files([(7, 3)], 10), fill_small_files([(7, 0), (8, 2)], 2)
    ([(7, 3)], [(8, 2)])
    """
    taken: list[tuple[int, int]] = []
    for position, room in rooms:
        share = max(0, min(room, rows))
        if share:
            taken.append((position, share))
            rows -= share
        if not rows:
            break
    return taken


def room_in(size: int, data_bytes: int, rows: int, *, max_size: int, estimate: int) -> int:
    """How many more rows fit into a base file, judged by the rows it has.

    The footer counts for the file's size and not for that of its rows: a filter for sixty thousand
    keys would make a handful of rows look huge.
    """
    width = data_bytes / rows if rows else estimate
    return max(0, int((max_size - size) / max(width, 1.0)))
