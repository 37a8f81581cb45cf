"""The command `lakewright`: what it is made of.

The commands stand in modules by topic, `*_app.py`. What they do is imported by the first that runs:
the help does not wait for it, and nothing waits for Spark that does not need it.
"""

from __future__ import annotations

import runpy
import sys
import warnings
from collections.abc import Sequence
from importlib import import_module
from typing import Annotated, TextIO

import typer

from lakewright.cli.demo_app import demo
from lakewright.cli.doctor_app import doctor
from lakewright.cli.look_app import look
from lakewright.cli.make_app import make
from lakewright.cli.rows_app import rows
from lakewright.cli.services_app import services
from lakewright.cli.shared import EXIT_CODES_TEXT, exit_code, exit_codes
from lakewright.cli.sync_app import sync
from lakewright.cli.ttl_app import ttl
from lakewright.cli.ui_app import ui
from lakewright.cli.undo_app import undo
from lakewright.cli.work_app import work
from lakewright.errors import InvalidError
from lakewright.utils.terminal import say, tell_bug

__all__ = ["app", "exit_code", "main"]

app = typer.Typer(
    name="lakewright",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # which would take half of the time that the help takes
    epilog=EXIT_CODES_TEXT,
)
for part in (make, look, rows, work, undo, doctor):
    app.add_typer(part)
app.add_typer(services, name="services")
app.add_typer(ttl, name="ttl")
app.command()(demo)
app.command("ui")(ui)
app.command()(sync)


def _tell_version(asked: bool) -> None:
    if asked:
        version = import_module("importlib.metadata").version("lakewright")
        say(f"lakewright {version}")
        raise typer.Exit


@app.callback()
def common(
    show_version: Annotated[
        bool,
        typer.Option("--version", callback=_tell_version, is_eager=True, help="Tell it, and end."),
    ] = False,
    load: Annotated[
        list[str] | None,
        typer.Option(
            metavar="MODULE", help="Import this module or .py file first: it registers services."
        ),
    ] = None,
) -> None:
    """Look at tables in the Apache Hudi format, and keep them in repair."""
    with exit_codes():
        for name in load or ():
            _load(name)


def _load(name: str) -> None:
    try:
        if name.endswith(".py"):
            runpy.run_path(name)
        else:
            import_module(name)
    except (ImportError, OSError) as error:
        raise InvalidError(
            "this module cannot be loaded", module=name, reason=str(error)
        ) from error


def _tell_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    say(f"warning: {message}", err=True)


def run(words: Sequence[str] | None = None) -> None:
    """Run a command, by default that of this process, and end with its exit code."""
    if not sys.warnoptions:
        warnings.showwarning = _tell_warning
    sys.excepthook = tell_bug
    app(words)


def main() -> None:
    """Run the command line of this process."""
    run()


if __name__ == "__main__":
    main()
