"""Output to the terminal, plain or with colours and tables.

Names, paths and facts come from tables, whose contents are not trusted: characters that a terminal
would interpret as control sequences are printed as escapes.
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

# C0 except tab and line feed, C1, unpaired surrogates, line separators and bidirectional controls.
_UNSAFE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)


def printable(text: str) -> str:
    """Return the text with all characters escaped that could control a terminal."""
    return _UNSAFE.sub(_escaped, text)


def _escaped(match: re.Match[str]) -> str:
    code = ord(match[0])
    # JSON has no \x escapes but allows \u ones, and escapes characters below 0x20 itself.
    return f"\\x{code:02x}" if code < 0x20 else f"\\u{code:04x}"


def say(text: str, *, err: bool = False) -> None:
    """Print a line."""
    typer.echo(printable(text), err=err)


def confirm(question: str, *, abort: bool = False) -> bool:
    """Ask on stderr for yes or no."""
    return typer.confirm(printable(question), abort=abort, err=True)


class SafeFile:
    """A file that escapes terminal control characters in all text written to it."""

    def __init__(self, file: IO[str]) -> None:
        self._file = file

    def write(self, text: str) -> int:
        """Write a string."""
        return self._file.write(printable(text))

    def writelines(self, lines: Iterable[str]) -> None:
        """Write several strings."""
        self._file.writelines(map(printable, lines))


def report_bug(
    kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    """Print the traceback of an uncaught exception; for use as `sys.excepthook`."""
    sys.stderr.write(printable("".join(traceback.format_exception(kind, error, trace))))


class SafeConsole(Console):
    """A rich console that ignores markup in text and escapes control characters in it."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(highlight=False, markup=False, emoji=False, **settings)

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """Render as `Console` does, with all text segments escaped."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else segment._replace(text=printable(segment.text))
