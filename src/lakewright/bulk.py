"""Work that makes very many values at once, none of which goes before it ends."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


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
