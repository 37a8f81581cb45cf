"""At which moments processes die."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import count

import pytest
from sizes import sized
from written import WrittenTable

from lakewright.testing.storage import Crash, CrashingStorage

# The second leaves the files that the first leaves one change later: see test_testing_storage.py.
each_death = pytest.mark.parametrize(
    "after_effect", sized([False], soak=[False, True]), ids=sized(["before"], ["before", "after"])
)


def deaths(
    fresh: Callable[[], WrittenTable], run: Callable[[WrittenTable], object]
) -> Iterator[tuple[int, WrittenTable]]:
    """The table after a death right after each call that `run` makes, be that a read or a change.

    Where a death leaves the very files that the one before it has left, they are given once. A
    check looks at every other one, a soak run at all.
    """
    last: dict[str, bytes] = {}
    for survive in count(step=sized(2, soak=1)):
        table = fresh()
        inner = table.storage
        dying = CrashingStorage(inner, survive, after_effect=True, reads=True)
        table.storage = dying
        with suppress(Crash):
            run(table)
        table.storage = inner
        left = {file.path: inner.read(file.path) for file in inner.list_tree("")}
        if left != last:
            yield survive, table
        if not dying.crashed:
            return
        last = left
