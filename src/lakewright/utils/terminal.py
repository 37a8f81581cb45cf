"""The one place where text goes to a terminal, plain or with colours and tables.

Names, paths and facts come from tables, which others may have written. What a terminal would take
for a command is shown by its number instead.
"""

from __future__ import annotations

import re
import sys
import traceback
from collections.abc import Iterable
from types import TracebackType
from typing import IO, Any

import typer
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

# C0 but tabs and ends of lines, C1, halves of pairs, and what turns the direction of writing.
_UNSAFE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)


def printable(text: str) -> str:
    """A text that does nothing to a terminal but stand there."""
    return _UNSAFE.sub(_number, text)


def _number(found: re.Match[str]) -> str:
    code = ord(found[0])
    # The longer one is what JSON has as well, which escapes the others itself.
    return f"\\x{code:02x}" if code < 0x20 else f"\\u{code:04x}"


def say(text: str, *, err: bool = False) -> None:
    """Print a line."""
    typer.echo(printable(text), err=err)


def ask(question: str, *, abort: bool = False) -> bool:
    """Ask on stderr for yes or no."""
    return typer.confirm(printable(question), abort=abort, err=True)


class SafeFile:
    """A terminal that rows are written to as they are."""

    def __init__(self, file: IO[str]) -> None:
        self._file = file

    def write(self, text: str) -> int:
        """Write a text."""
        return self._file.write(printable(text))

    def writelines(self, lines: Iterable[str]) -> None:
        """Write several."""
        self._file.writelines(map(printable, lines))


def tell_bug(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Print where an error came from that nobody has caught; a `sys.excepthook`."""
    sys.stderr.write(printable("".join(traceback.format_exception(kind, error, trace))))


# ------------------------------------------------------------------------------------------------
# Terminals with colours, tables and bars, on which texts of tables are only texts.


class SafeConsole(Console):
    """A console that prints texts as they are, and nothing that a terminal obeys but its own."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(highlight=False, markup=False, emoji=False, **settings)

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """See `Console`."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else segment._replace(text=printable(segment.text))
