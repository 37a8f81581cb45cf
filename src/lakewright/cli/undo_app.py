"""Commands that take a table back, and that keep a state to go back to."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from lakewright.cli.shared import (
    JsonOption,
    Later,
    OptionsFileOption,
    OptionsOption,
    PathArgument,
    example,
    exit_codes,
    group,
    parse_options,
)
from lakewright.utils.terminal import ask

if TYPE_CHECKING:
    from lakewright.cli import printing, undoing
else:
    printing = Later("lakewright.cli.printing")
    undoing = Later("lakewright.cli.undoing")

undo = group()

InstantArgument = Annotated[
    str, typer.Argument(metavar="INSTANT", help="Its requested time, as `timeline` shows it.")
]
YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]


@undo.command(epilog=example("lakewright rollback data/trips 20260131120000000 --yes"))
def rollback(
    path: PathArgument,
    instant: InstantArgument,
    force: Annotated[
        bool,
        typer.Option(
            "--force",
            help="Also if its completed file on the timeline is empty or cut off: its data files "
            "are found by name.",
        ),
    ] = False,
    yes: YesOption = False,
    option: OptionsOption = None,
    options_file: OptionsFileOption = None,
    as_json: JsonOption = False,
) -> None:
    """Take back a write: its files and its place on the timeline. The newest ones first."""
    with exit_codes():
        options = parse_options(option, options_file)
        undoing.require_table(path, options)
        if not yes:
            ask(f"Take back {instant}? Its rows are gone then.", abort=True)
        document = undoing.rollback(path, options, instant, force=force)
        printing.show(document, as_json=as_json)


@undo.command(
    epilog=example(
        "lakewright savepoint data/trips 20260131120000000 --comment 'before the migration'",
        "lakewright savepoint data/trips 20260131120000000 --delete",
    )
)
def savepoint(
    path: PathArgument,
    instant: InstantArgument,
    user: Annotated[str, typer.Option(metavar="NAME", help="Who makes it.")] = "",
    comment: Annotated[str, typer.Option(metavar="TEXT", help="What for.")] = "",
    delete: Annotated[
        bool, typer.Option("--delete", help="Give the savepoint up: its files may be cleaned.")
    ] = False,
    option: OptionsOption = None,
    options_file: OptionsFileOption = None,
    as_json: JsonOption = False,
) -> None:
    """Keep the files of a table as of a completed write, so that it can be restored."""
    with exit_codes():
        options = parse_options(option, options_file)
        if delete:
            document = undoing.delete_savepoint(path, options, instant)
        else:
            document = undoing.create_savepoint(path, options, instant, user=user, comment=comment)
        printing.show(document, as_json=as_json)


@undo.command(epilog=example("lakewright restore data/trips 20260131120000000 --yes"))
def restore(
    path: PathArgument,
    instant: InstantArgument,
    yes: YesOption = False,
    option: OptionsOption = None,
    options_file: OptionsFileOption = None,
    as_json: JsonOption = False,
) -> None:
    """Take a table back to a savepoint: all later writes are gone then."""
    with exit_codes():
        options = parse_options(option, options_file)
        undoing.require_table(path, options)
        if not yes:
            question = f"Take the table back to {instant}? All later writes are gone then."
            ask(question, abort=True)
        printing.show(undoing.restore(path, options, instant), as_json=as_json)
