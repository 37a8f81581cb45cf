"""Who watches the demo: a live board in a terminal, lines elsewhere, or nobody."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from rich.console import Console, RenderableType
from rich.live import Live

import lakewright as lw
from lakewright.demo.board import board
from lakewright.demo.stage import Tell
from lakewright.demo.story import Story, bars


@contextmanager
def watching(console: Console, *, quiet: bool = False) -> Iterator[Tell]:
    """Something to tell the story to, as long as it lasts."""
    if quiet:
        yield _nothing
    elif console.is_terminal:
        shown = _Board(console)
        with Live(shown, console=console, refresh_per_second=2, vertical_overflow="crop"):
            yield shown.tell
    else:
        yield _Lines(console).tell


class _Board:
    """Shows the newest story, at the size that the terminal has then.

    The timeline is looked at each time: what is under way is seen while it is.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._story: Story | None = None

    def tell(self, story: Story) -> None:
        self._story = story

    def __rich__(self) -> RenderableType:
        if self._story is None:
            return ""
        now = replace(self._story, bars=bars(lw.open(self._story.path).timeline()))
        return board(now, self._console.width, self._console.height)


class _Lines:
    """Prints what is new in a story."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._known = 0

    def tell(self, story: Story) -> None:
        for line in story.said[self._known :]:
            self._console.print(line, markup=False, highlight=False, soft_wrap=True)
        self._known = len(story.said)


def _nothing(story: Story) -> None:
    """Nobody watches."""
