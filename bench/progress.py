"""Where the race is: one moving line on a terminal, plain lines elsewhere."""

from __future__ import annotations

import shutil
import time
from typing import TextIO

BAR = 24


def bar(completed: int, steps: int, elapsed: float, text: str, width: int) -> str:
    """The line of a terminal. Pure."""
    filled = BAR * completed // max(steps, 1)
    remaining = f"{clock(elapsed / completed * (steps - completed))} left" if completed else ""
    head = f"[{'#' * filled}{'.' * (BAR - filled)}] {completed}/{steps}"
    line = f"{head}  {clock(elapsed)}  {text}  {remaining}"
    return line[: max(width - 1, 1)].ljust(max(width - 1, 1))


def clock(seconds: float) -> str:
    """Minutes and seconds."""
    return f"{int(seconds) // 60}:{int(seconds) % 60:02}"


class Progress:
    """Tells what begins now."""

    def __init__(self, steps: int, stream: TextIO) -> None:
        self._steps = steps
        self._stream = stream
        self._completed = -1
        self._started = time.monotonic()
        self._last = ""

    def at(self, text: str) -> None:
        """A step begins."""
        self._completed += 1
        elapsed = time.monotonic() - self._started
        if self._stream.isatty():
            width = shutil.get_terminal_size().columns
            self._stream.write("\r" + bar(self._completed, self._steps, elapsed, text, width))
        else:
            self._stream.write(
                f"{clock(elapsed):>6}  {self._completed + 1}/{self._steps}  {text}\n"
            )
        self._stream.flush()

    def say(self, text: str) -> None:
        """A line that stays."""
        self._stream.write(("\n" if self._stream.isatty() else "") + text + "\n")
        self._stream.flush()
