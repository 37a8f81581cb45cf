"""The entry point of `lakewright`: all commands, whose modules are imported on first use."""

from __future__ import annotations

import runpy
import sys
import warnings
from collections.abc import Sequence
from functools import cache
from importlib import import_module
from typing import Annotated, Any, TextIO

import typer
from typer.core import TyperGroup

from lakewright.cli.common import EXIT_CODES_TEXT, exit_code, exit_codes
from lakewright.errors import InvalidError
from lakewright.utils.terminal import report_bug, say

__all__ = ["app", "exit_code", "main"]

# By name: the module of the command, and its help line, the first sentence of its docstring.
COMMANDS = {
    "create": ("create", "Create an empty table."),
    "ingest": ("ingest", "Write what a source has into a table: one batch, or batch after batch."),
    "info": ("table", "Show keys, columns and settings of a table, and its last write."),
    "timeline": ("table", "Show the instants of a table, oldest first."),
    "files": ("table", "Show the files that a query reads: file groups, base files, log files."),
    "debt": ("table", "Show the log files that no compaction has merged yet, and why."),
    "freshness": ("table", "Show completion and freshness of both views of a table."),
    "read": ("rows", "Print rows of a table, now or as of a time."),
    "changes": ("rows", "Print the rows that changed in a range of completion times."),
    "compact": ("services", "Merge log files into base files."),
    "cluster": ("services", "Rewrite small files into larger ones, with rows sorted."),
    "clean": ("services", "Delete files that no query of the retained commits reads."),
    "archive": ("services", "Move old instants to the archived timeline."),
    "plan": ("services", "Show what a service would do now, and why not more."),
    "cancel": (
        "services",
        "Cancel a cancellable plan, or ask the process that executes it to stop.",
    ),
    "services": ("services", "Run table services."),
    "ttl": ("ttl", "Manage partition TTL: delete partitions when they are old."),
    "rollback": ("rollback", "Roll back a write, the newest writes first."),
    "savepoint": ("rollback", "Keep the files of a table as of a completed write."),
    "restore": ("rollback", "Restore a table to a savepoint, and roll back all later writes."),
    "doctor": ("doctor", "Find damage in a table, and repair what is safe to repair."),
    "sync": ("sync", "Register a table and its partitions in a catalog."),
    "ui": ("ui", "Show tables on a page in the browser."),
    "demo": (
        "demo",
        "Create a table of ride events, run all services on it, and check the result.",
    ),
}


class LazyGroup(TyperGroup):
    """The commands by name; the module of a command is imported when the command is first used.

    So neither the help nor a command waits for the imports of other commands.
    """

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names of all commands, in the order of the help."""
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Import the module of a command and return the command; None for an unknown name."""
        return load_command(cmd_name) if cmd_name in COMMANDS else None

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the names and help lines of all commands without importing their modules."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])


@cache
def load_command(name: str) -> Any:
    """Return the command or the group of commands with this name."""
    module = import_module(f"lakewright.cli.{COMMANDS[name][0]}")
    command: Any = typer.main.get_command(getattr(module, f"{name}_app", module.app))
    return getattr(command, "commands", {}).get(name, command)


app = typer.Typer(
    name="lakewright",
    cls=LazyGroup,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # rich markup would take half of the time of --help
    epilog=EXIT_CODES_TEXT,
)


def _show_version(requested: bool) -> None:
    if requested:
        version = import_module("importlib.metadata").version("lakewright")
        say(f"lakewright {version}")
        raise typer.Exit


@app.callback()
def common(
    show_version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_show_version, is_eager=True, help="Show the version and exit."
        ),
    ] = False,
    load: Annotated[
        list[str] | None,
        typer.Option(
            metavar="MODULE", help="Import this module or .py file first: it registers services."
        ),
    ] = None,
) -> None:
    """Show, write and maintain tables in the Apache Hudi format."""
    with exit_codes():
        for name in load or ():
            _import_extension(name)


def _import_extension(name: str) -> None:
    try:
        if name.endswith(".py"):
            runpy.run_path(name)
        else:
            import_module(name)
    except (ImportError, OSError) as error:
        raise InvalidError(
            "this module cannot be loaded", module=name, reason=str(error)
        ) from error


def _show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    say(f"warning: {message}", err=True)


def run(arguments: Sequence[str] | None = None) -> None:
    """Run the command with these arguments, by default those of this process, and exit."""
    if not sys.warnoptions:
        warnings.showwarning = _show_warning
    sys.excepthook = report_bug
    app(arguments)


def main() -> None:
    """Run the command with the arguments of this process, and exit."""
    run()


if __name__ == "__main__":
    main()
