"""Arguments, options, exit codes and signal handling that all commands share."""

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
_OTHER_ERROR = 1
# The exit code of `doctor` if it finds errors or warnings.
UNWELL = 10

EXIT_CODES_TEXT = """\b
Exit codes:
  0   done, or nothing to do; the output says which
  1   something else failed
  2   the call is wrong: an option, a path, an instant
  3   conflict: another writer committed first, or holds the plan; try again
  4   storage or a lock did not answer: try again
  5   the table is damaged: `lakewright doctor PATH` shows the findings
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
        help="An option of Hudi, of the storage (fs.s3a.endpoint=...) or of Spark (spark.*=...).",
    ),
]
OptionsFileOption = Annotated[
    str | None,
    typer.Option(
        metavar="FILE",
        help="A Java properties file with options, key=value in each line; -o takes precedence.",
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]
MasterOption = Annotated[
    str, typer.Option(metavar="URL", help="The Spark master, if Spark is needed.")
]


def group(help_text: str = "") -> typer.Typer:
    """Return a new group of commands; with a help text it is a command with subcommands."""
    # Rich markup would take half of the time of --help.
    return typer.Typer(
        help=help_text,
        no_args_is_help=bool(help_text),
        add_completion=False,
        rich_markup_mode=None,
    )


def example(*lines: str) -> str:
    """Return the examples for the end of the help of a command."""
    return "\b\n" + "\n".join([f"Example{'s' * (len(lines) > 1)}:", *(f"  {x}" for x in lines)])


def exit_code(error: LakewrightError) -> int:
    """Return the exit code of an error."""
    return next(
        (code for kind, code in EXIT_CODES.items() if isinstance(error, kind)), _OTHER_ERROR
    )


@contextmanager
def exit_codes() -> Iterator[None]:
    """Print errors of the library without a traceback, and exit with their exit code."""
    try:
        yield
    except LakewrightError as error:
        say(f"error: {error.message}", err=True)
        for name, value in error.facts.items():
            say(f"  {name}: {value}", err=True)
        for note in getattr(error, "__notes__", ()):
            say(f"  {note}", err=True)
        raise typer.Exit(exit_code(error)) from error


def parse_options(assignments: list[str] | None, file: str | None) -> dict[str, str]:
    """Return the options given as `key=value`, which take precedence, and those in a file."""
    options = {} if file is None else _load_options(file)
    for text in assignments or ():
        key, equals, value = text.partition("=")
        if not equals or not key.strip():
            raise InvalidError("an option is given as key=value", option=text)
        options[key.strip()] = value
    return options


def _load_options(file: str) -> dict[str, str]:
    """Return the options in a file, which keeps secrets out of the arguments of the process."""
    try:
        with open(file, "rb") as stream:
            data = stream.read()
    except (OSError, ValueError) as error:
        raise InvalidError(
            "the options file cannot be read", file=file, reason=str(error)
        ) from error
    # Imported here: --help does not need it.
    from lakewright.format.table_properties import parse_properties

    try:
        return parse_properties(data)
    except CorruptError as error:
        raise InvalidError(
            "the options file is not a Java properties file", file=file, reason=error.message
        ) from error


def listed(text: str | None) -> tuple[str, ...]:
    """Return the names in a list separated by commas."""
    return tuple(name.strip() for name in (text or "").split(",") if name.strip())


_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_STOP_MESSAGE = b"stopping after this step; once more to stop at once\n"
_STDERR = 2


class StopRequest:
    """Whether SIGINT or SIGTERM was received in the block; a second one has its usual effect."""

    def __init__(self) -> None:
        self._requested = False
        self._previous_handlers: dict[signal.Signals, Any] = {}

    def __call__(self) -> bool:
        """Whether a signal was received."""
        return self._requested

    def __enter__(self) -> Self:
        self._previous_handlers = {number: signal.getsignal(number) for number in _SIGNALS}
        self.listen()
        return self

    def listen(self) -> None:
        """Install the signal handlers; call it again after other code has installed its own."""
        if not self._requested:
            for number in _SIGNALS:
                signal.signal(number, self._on_signal)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._requested = True
        self._restore_handlers()
        # Not through `sys.stderr`, which is not safe to use in a signal handler.
        os.write(_STDERR, _STOP_MESSAGE)

    def _restore_handlers(self) -> None:
        for number, handler in self._previous_handlers.items():
            signal.signal(number, handler)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._restore_handlers()
