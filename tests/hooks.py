"""Others that act at a chosen moment, on the same storage and without a lock in common."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from lakewright.engine.local import LocalEngine
from lakewright.storage.base import Storage
from lakewright.table.locks import base as locks
from lakewright.testing.storage import CountingStorage

Act = Callable[[Storage, str, bytes], None]


class Hooked(CountingStorage):
    """Others act in place of the first creation of a file whose path fits."""

    def __init__(self, inner: Storage, pattern: str, act: Act) -> None:
        super().__init__(inner)
        self.pattern = re.compile(pattern)
        self.act: Act | None = act

    def create(self, path: str, data: bytes) -> None:
        if self.act is not None and self.pattern.search(path):
            act, self.act = self.act, None
            act(self.inner, path, data)
        else:
            super().create(path, data)


class Interrupted(LocalEngine):
    """Works, and then lets others act."""

    def __init__(self, act: Callable[[], None]) -> None:
        self.act = act

    def map(self, do: Any, items: Sequence[Any], size: Any) -> list[Any]:
        done = super().map(do, items, size)
        self.act()
        return done


@contextmanager
def another_process() -> Iterator[None]:
    """Locks of this process are not seen in the block."""
    before = dict(locks._SLOTS)
    locks._SLOTS.clear()
    try:
        yield
    finally:
        locks._SLOTS.clear()
        locks._SLOTS.update(before)
