"""What commands share: arguments, options, exit codes, and stopping between two steps."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Annotated, Any, Self

import typer

from lakewright.errors import (
    ConflictError,
    CorruptError,
    InvalidError,
    LakewrightError,
    UnavailableError,
    UnsupportedError,
)
from lakewright.utils.terminal import say

EXIT_CODES: dict[type[LakewrightError], int] = {
    InvalidError: 2,
    ConflictError: 3,
    UnavailableError: 4,
    CorruptError: 5,
    UnsupportedError: 6,
}
_OTHER = 1
# What `doctor` ends with where a table is not well.
UNWELL = 10

EXIT_CODES_TEXT = """\b
Exit codes:
  0   done, or nothing to do; the output says which
  1   something else failed
  2   the call is wrong: an option, a path, an instant
  3   conflict: another writer committed first, or holds the plan; try again
  4   storage or a lock did not answer: try again
  5   the table is damaged: `lakewright doctor PATH` tells more
  6   the table uses what this version does not support
  10  `doctor` found something
"""

PathArgument = Annotated[
    str, typer.Argument(metavar="PATH", help="The table: a folder, or a URI such as s3a://...")
]
OptionsOption = Annotated[
    list[str] | None,
    typer.Option(
        "--option",
        "-o",
        metavar="KEY=VALUE",
        help="An option of Hudi's, of storage (fs.s3a.endpoint=...) or of Spark (spark.*=...).",
    ),
]
OptionsFileOption = Annotated[
    str | None,
    typer.Option(
        metavar="FILE",
        help="Options in a file of Java properties, key=value in each line; -o goes before it.",
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]
MasterOption = Annotated[
    str, typer.Option(metavar="URL", help="Where Spark runs, if there is work for it.")
]


def group(help_text: str = "") -> typer.Typer:
    """Commands that belong together; with a help text of their own they get a common name."""
    # Marked-up help would take half of the time that the help takes.
    return typer.Typer(help=help_text, no_args_is_help=bool(help_text), rich_markup_mode=None)


def example(*lines: str) -> str:
    """How a command is called, for the end of its help."""
    return "\b\n" + "\n".join([f"Example{'s' * (len(lines) > 1)}:", *(f"  {x}" for x in lines)])


def exit_code(error: LakewrightError) -> int:
    """The exit code for a kind of error."""
    return next((code for kind, code in EXIT_CODES.items() if isinstance(error, kind)), _OTHER)


@contextmanager
def exit_codes() -> Iterator[None]:
    """Tell errors of the library without a traceback, and exit with the code of their kind."""
    try:
        yield
    except LakewrightError as error:
        say(f"error: {error.message}", err=True)
        for name, value in error.facts.items():
            say(f"  {name}: {value}", err=True)
        for note in getattr(error, "__notes__", ()):
            say(f"  {note}", err=True)
        raise typer.Exit(exit_code(error)) from error


def parse_options(given: list[str] | None, file: str | None) -> dict[str, str]:
    """Options that were given as `key=value`, before those in a file."""
    options = {} if file is None else _options_in(file)
    for text in given or ():
        key, equals, value = text.partition("=")
        if not equals or not key.strip():
            raise InvalidError("an option is given as key=value", option=text)
        options[key.strip()] = value
    return options


def _options_in(file: str) -> dict[str, str]:
    """The options in a file: what is secret need not be among the arguments of a process."""
    try:
        with open(file, "rb") as opened:
            data = opened.read()
    except (OSError, ValueError) as error:
        raise InvalidError(
            "the file of options cannot be read", file=file, reason=str(error)
        ) from error
    # The help needs none of the library's formats.
    from lakewright.format.table_properties import parse_properties

    try:
        return parse_properties(data)
    except CorruptError as error:
        raise InvalidError(
            "the file of options is no file of properties", file=file, reason=error.message
        ) from error


def listed(text: str | None) -> tuple[str, ...]:
    """Names that were given as a list with commas."""
    return tuple(name.strip() for name in (text or "").split(",") if name.strip())


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
