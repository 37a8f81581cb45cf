"""A storage that sometimes does not answer, before or after it has done what was asked."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from lakewright.errors import UnavailableError
from lakewright.storage.base import Storage
from lakewright.testing.storage import _Wrapped

Result = TypeVar("Result")


class UnreliableStorage(_Wrapped):
    """Fails as told by `fail`; with `after_effect` the call happens, and its answer is lost."""

    __slots__ = ("_planned",)

    def __init__(self, inner: Storage) -> None:
        super().__init__(inner)
        self._planned: dict[str, list[bool]] = {}

    def fail(self, *methods: str, times: int = 1, after_effect: bool = False) -> None:
        """The next calls of these methods fail, in addition to what was planned before."""
        for method in methods:
            self._planned.setdefault(method, []).extend([after_effect] * times)

    def recover(self) -> None:
        """Answer again."""
        self._planned.clear()

    def _call(self, method: Callable[..., Result], *arguments: Any) -> Result:
        planned = self._planned.get(method.__name__)
        if not planned:
            return method(*arguments)
        if planned.pop(0):
            method(*arguments)
        raise UnavailableError("no answer", call=method.__name__)
