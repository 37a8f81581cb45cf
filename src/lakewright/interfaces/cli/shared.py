"""What the commands of the command line have in common: arguments, options, how errors end them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Annotated, Any

import typer

from lakewright.errors import (
    ConflictError,
    CorruptError,
    InvalidError,
    LakewrightError,
    UnavailableError,
    UnsupportedError,
)

EXIT_CODES: dict[type[LakewrightError], int] = {
    InvalidError: 2,
    ConflictError: 3,
    UnavailableError: 4,
    CorruptError: 5,
    UnsupportedError: 6,
}
_OTHER = 1

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
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]


class Later:
    """A module that is imported when something of it is asked for."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        return getattr(import_module(self._name), name)


def exit_code(error: LakewrightError) -> int:
    """The exit code for a kind of error."""
    return next((code for kind, code in EXIT_CODES.items() if isinstance(error, kind)), _OTHER)


@contextmanager
def exit_codes() -> Iterator[None]:
    """Tell errors of the library without a traceback, and exit with the code of their kind."""
    try:
        yield
    except LakewrightError as error:
        typer.echo(f"error: {error.message}", err=True)
        for name, value in error.facts.items():
            typer.echo(f"  {name}: {value}", err=True)
        for note in getattr(error, "__notes__", ()):
            typer.echo(f"  {note}", err=True)
        raise typer.Exit(exit_code(error)) from error


def told_options(given: list[str] | None) -> dict[str, str]:
    """Options that were given as `key=value`."""
    options = {}
    for text in given or ():
        key, equals, value = text.partition("=")
        if not equals or not key.strip():
            raise InvalidError("an option is given as key=value", option=text)
        options[key.strip()] = value
    return options
