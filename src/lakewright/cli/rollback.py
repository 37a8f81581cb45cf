"""Commands that roll back, and that create savepoints and restore them."""

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
from lakewright.client.service_client import Options, service_runner, with_optimistic_concurrency
from lakewright.model.instant import Instant
from lakewright.table import savepoint as savepoints
from lakewright.table.snapshot import load_snapshot
from lakewright.table.transaction import TransactionManager
from lakewright.utils.terminal import ask

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
        _require_table(path, options)
        if not yes:
            ask(f"Take back {instant}? Its rows are gone then.", abort=True)
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
    user: Annotated[str, typer.Option(metavar="NAME", help="Who makes it.")] = "",
    comment: Annotated[str, typer.Option(metavar="TEXT", help="What for.")] = "",
    delete: Annotated[
        bool, typer.Option("--delete", help="Give the savepoint up: its files may be cleaned.")
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
        _require_table(path, options)
        if not yes:
            question = f"Take the table back to {instant}? All later writes are gone then."
            ask(question, abort=True)
        show(_restore(path, options, instant), as_json=as_json)


def _require_table(path: str, options: Options) -> None:
    """InvalidError where there is no table: before anybody is asked whether it may change."""
    load_snapshot(storage_at(path, options))


def _rollback(path: str, options: Options, instant: str, *, force: bool = False) -> Document:
    """Take back a write; with `force` also one whose completed file is damaged."""
    done = savepoints.rollback_instant(_writer(path, options), instant, force=force)
    return _document(path, "taken_back", instant, done)


def _create_savepoint(
    path: str, options: Options, instant: str, *, user: str, comment: str
) -> Document:
    """Keep a state of the table."""
    made = savepoints.create_savepoint(_writer(path, options), instant, user=user, comment=comment)
    return _document(path, "saved", instant, made)


def _delete_savepoint(path: str, options: Options, instant: str) -> Document:
    """Give a savepoint up."""
    savepoints.delete_savepoint(_writer(path, options), instant)
    return {"table": path, "given_up": instant}


def _restore(path: str, options: Options, instant: str) -> Document:
    """Take the table back to a savepoint."""
    return _document(
        path, "restored_to", instant, savepoints.restore(_writer(path, options), instant)
    )


def _writer(path: str, options: Options) -> TransactionManager:
    return service_runner(path, with_optimistic_concurrency(options)).writer


def _document(path: str, what: str, target: str, done: Instant) -> Document:
    return {
        "table": path,
        what: target,
        "action": done.action,
        "instant": done.requested_at,
        "completed_at": done.completed_at,
    }
