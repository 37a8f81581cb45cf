"""Commands that undo writes: rollback, savepoint and restore."""

from __future__ import annotations

from typing import Annotated

import typer

from lakewright.cli.common import (
    JsonOption,
    OptionsFileOption,
    OptionsOption,
    PathArgument,
    example,
    exit_codes,
    group,
    parse_options,
)
from lakewright.cli.output import Document, show
from lakewright.client.command_options import storage_at
from lakewright.client.service_client import Options, service_runner
from lakewright.model.instant import Instant
from lakewright.table import savepoint as savepoints
from lakewright.table.options import with_optimistic_concurrency
from lakewright.table.snapshot import load_snapshot
from lakewright.table.transaction import TransactionManager
from lakewright.utils.terminal import confirm

app = group()

InstantArgument = Annotated[
    str, typer.Argument(metavar="INSTANT", help="Its requested time, as `timeline` shows it.")
]
YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]


@app.command(epilog=example("lakewright rollback data/trips 20260131120000000 --yes"))
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
    """Roll back a write, the newest writes first. Its rows and files are deleted."""
    with exit_codes():
        options = parse_options(option, options_file)
        _confirm(path, options, f"Roll back {instant}? Its rows are deleted.", yes=yes)
        document = _rollback(path, options, instant, force=force)
        show(document, as_json=as_json)


@app.command(
    epilog=example(
        "lakewright savepoint data/trips 20260131120000000 --comment 'before the migration'",
        "lakewright savepoint data/trips 20260131120000000 --delete",
    )
)
def savepoint(
    path: PathArgument,
    instant: InstantArgument,
    user: Annotated[str, typer.Option(metavar="NAME", help="The user that creates it.")] = "",
    comment: Annotated[str, typer.Option(metavar="TEXT", help="Stored with the savepoint.")] = "",
    delete: Annotated[
        bool, typer.Option("--delete", help="Delete the savepoint: its files may be cleaned.")
    ] = False,
    option: OptionsOption = None,
    options_file: OptionsFileOption = None,
    as_json: JsonOption = False,
) -> None:
    """Keep the files of a table as of a completed write. It can be restored then."""
    with exit_codes():
        options = parse_options(option, options_file)
        if delete:
            document = _delete_savepoint(path, options, instant)
        else:
            document = _create_savepoint(path, options, instant, user=user, comment=comment)
        show(document, as_json=as_json)


@app.command(epilog=example("lakewright restore data/trips 20260131120000000 --yes"))
def restore(
    path: PathArgument,
    instant: InstantArgument,
    yes: YesOption = False,
    option: OptionsOption = None,
    options_file: OptionsFileOption = None,
    as_json: JsonOption = False,
) -> None:
    """Restore a table to a savepoint, and roll back all later writes."""
    with exit_codes():
        options = parse_options(option, options_file)
        question = f"Restore the table to {instant}? All later writes are rolled back."
        _confirm(path, options, question, yes=yes)
        show(_restore(path, options, instant), as_json=as_json)


def _confirm(path: str, options: Options, question: str, *, yes: bool) -> None:
    """Ask the user to confirm, unless they have; raise InvalidError if there is no table."""
    load_snapshot(storage_at(path, options))
    if not yes:
        confirm(question, abort=True)


def _rollback(path: str, options: Options, instant: str, *, force: bool = False) -> Document:
    """Roll back a write; with `force` also one whose completed file is damaged."""
    completed = savepoints.rollback_instant(_writer(path, options), instant, force=force)
    return _document(path, "taken_back", instant, completed)


def _create_savepoint(
    path: str, options: Options, instant: str, *, user: str, comment: str
) -> Document:
    """Create a savepoint at a completed write."""
    completed = savepoints.create_savepoint(
        _writer(path, options), instant, user=user, comment=comment
    )
    return _document(path, "saved", instant, completed)


def _delete_savepoint(path: str, options: Options, instant: str) -> Document:
    """Delete a savepoint."""
    savepoints.delete_savepoint(_writer(path, options), instant)
    return {"table": path, "given_up": instant}


def _restore(path: str, options: Options, instant: str) -> Document:
    """Restore the table to a savepoint."""
    return _document(
        path, "restored_to", instant, savepoints.restore(_writer(path, options), instant)
    )


def _writer(path: str, options: Options) -> TransactionManager:
    return service_runner(path, with_optimistic_concurrency(options)).writer


def _document(path: str, key: str, target: str, completed: Instant) -> Document:
    return {
        "table": path,
        key: target,
        "action": completed.action,
        "instant": completed.requested_at,
        "completed_at": completed.completed_at,
    }
