"""A file of a remote store as pyarrow reads it: it knows which ranges it wants."""

from __future__ import annotations

import io
from collections.abc import Callable


class RangedInput(io.RawIOBase):
    """A file of `size` bytes, of which `read_range` gives some from an offset on."""

    def __init__(self, size: int, read_range: Callable[[int, int], bytes]) -> None:
        self._size = size
        self._read_range = read_range
        self._position = 0

    def readable(self) -> bool:
        """Yes."""
        return True

    def seekable(self) -> bool:
        """Yes, at no cost."""
        return True

    def tell(self) -> int:
        """Where the next read begins."""
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Move, even to behind the end, where nothing is to be read."""
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}
        self._position = max(0, start[whence] + offset)
        return self._position

    def read(self, size: int | None = -1) -> bytes:
        """Return up to `size` bytes, or all that are left."""
        left = max(0, self._size - self._position)
        wanted = left if size is None or size < 0 else min(size, left)
        data = self._read_range(self._position, wanted)
        self._position += len(data)
        return data
