"""A storage that counts what is read of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import pyarrow as pa

from lakewright.storage.base import Storage
from lakewright.testing.storage import CountingStorage

Result = TypeVar("Result")


class ByteCountingStorage(CountingStorage):
    """Counts bytes beside calls; a file that is opened counts with all its bytes."""

    def __init__(self, inner: Storage) -> None:
        super().__init__(inner)
        self.bytes_read = 0

    def reset(self) -> None:
        super().reset()
        self.bytes_read = 0

    def _call(self, method: Callable[..., Result], *arguments: Any) -> Result:
        result = super()._call(method, *arguments)
        if isinstance(result, pa.NativeFile):
            self.bytes_read += result.size()
        parts = result if isinstance(result, list) else [result]
        self.bytes_read += sum(len(part) for part in parts if isinstance(part, bytes))
        return result
