"""Stopping a process between two steps, when a signal asks for it."""

from __future__ import annotations

import os
import signal
from types import FrameType, TracebackType
from typing import Any, Self

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_TOLD = b"stopping after this step; once more to stop at once\n"
_STDERR = 2


class StopRequest:
    """Whether SIGINT or SIGTERM has come since it was entered; the second one ends the process."""

    def __init__(self) -> None:
        self._asked = False
        self._before: dict[signal.Signals, Any] = {}

    def __call__(self) -> bool:
        """Whether it is time to stop."""
        return self._asked

    def __enter__(self) -> Self:
        self._before = {number: signal.getsignal(number) for number in _SIGNALS}
        self.listen()
        return self

    def listen(self) -> None:
        """Take the signals; again, if somebody else has taken them meanwhile."""
        if not self._asked:
            for number in _SIGNALS:
                signal.signal(number, self._note)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._asked = True
        self._restore()
        # Not by way of `sys.stderr`, which may be in the middle of a line.
        os.write(_STDERR, _TOLD)

    def _restore(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._restore()
