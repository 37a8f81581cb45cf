"""Processes that take turns at every call to storage, so that a list tells what happens when."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

from waiting import CEILING_S

from lakewright.storage.base import Storage
from lakewright.testing.storage import CountingStorage

Result = TypeVar("Result")


class Player(CountingStorage):
    """What one process sees of a storage; before each call it waits until it is its turn.

    It has a root of its own, so that locks within this process tell the players apart.
    """

    def __init__(self, inner: Storage, name: str) -> None:
        super().__init__(inner)
        self.name = name
        self.is_over = False
        self._go = threading.Semaphore(0)
        self._arrived = threading.Semaphore(0)

    @property
    def root(self) -> str:
        return f"{self.inner.root}-of-{self.name}"

    def start(self, work: Callable[[Storage], None]) -> None:
        """Begin to work, up to the first call."""
        threading.Thread(target=self._run, args=(work,), name=self.name, daemon=True).start()
        self._wait()

    def step(self) -> None:
        """Do one call and go on up to the next; nothing if the work is done."""
        if not self.is_over:
            self._go.release()
            self._wait()

    def _run(self, work: Callable[[Storage], None]) -> None:
        try:
            work(self)
        finally:
            self.is_over = True
            self._arrived.release()

    def _wait(self) -> None:
        assert self._arrived.acquire(timeout=CEILING_S)

    def _call(self, method: Callable[..., Result], *arguments: Any) -> Result:
        self._arrived.release()
        assert self._go.acquire(timeout=CEILING_S)
        return super()._call(method, *arguments)


def take_turns(
    storage: Storage, works: Sequence[Callable[[Storage], None]], order: Iterable[int]
) -> None:
    """Let processes work on one storage; `order` names who makes the next call.

    Who is done is passed over; when the order ends, each works on to its end, one after the other.
    """
    players = [Player(storage, f"process {n}") for n in range(len(works))]
    for player, work in zip(players, works, strict=True):
        player.start(work)
    for who in order:
        players[who].step()
    for player in players:
        while not player.is_over:
            player.step()
