"""The command `lakewright`: its commands and options, and how errors end it.

What the commands do is in `commands.py`, which is imported by the first command that runs: the help
does not wait for it, and nothing waits for Spark that does not need it.
"""

from __future__ import annotations

import runpy
import sys
import warnings
from importlib import import_module
from typing import TYPE_CHECKING, Annotated, TextIO

import typer

from lakewright.errors import InvalidError
from lakewright.interfaces.cli import sync_app
from lakewright.interfaces.cli.shared import (
    JsonOption,
    Later,
    OptionsOption,
    PathArgument,
    exit_code,
    exit_codes,
    told_options,
)
from lakewright.interfaces.cli.ttl_app import ttl

if TYPE_CHECKING:
    from lakewright.interfaces.cli import commands, render
    from lakewright.interfaces.cli import ingest as ingesting
else:
    commands = Later("lakewright.interfaces.cli.commands")
    ingesting = Later("lakewright.interfaces.cli.ingest")
    render = Later("lakewright.interfaces.cli.render")

__all__ = ["app", "exit_code", "main"]

app = typer.Typer(
    name="lakewright",
    help="Look at tables in the Apache Hudi format, and keep them in repair.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # which would take half of the time that the help takes
)
services = typer.Typer(help="Table services.", no_args_is_help=True, rich_markup_mode=None)
app.add_typer(services, name="services")
app.add_typer(ttl, name="ttl")
app.command("sync", help=sync_app.HELP)(sync_app.sync)


@app.callback()
def common(
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


@services.command("run")
def services_run(
    path: PathArgument,
    service: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="Which to run, in this order; by default compaction (if there can be log files), "
            "clean and archive.",
        ),
    ] = None,
    continuous: Annotated[
        bool, typer.Option("--continuous", help="Go on until a signal says stop.")
    ] = False,
    interval: Annotated[
        float, typer.Option(metavar="SECONDS", help="The pause between two rounds.")
    ] = 60.0,
    option: OptionsOption = None,
    master: Annotated[
        str, typer.Option(metavar="URL", help="Where Spark runs, if there is work for it.")
    ] = "local[*]",
    as_json: JsonOption = False,
) -> None:
    """Execute the plans that wait, and run services that are due."""
    with exit_codes():
        commands.run_services(
            path,
            service or (),
            told_options(option),
            master=master,
            interval_s=interval if continuous else None,
            show=lambda document: render.show(document, as_json=as_json, one_line=continuous),
        )


@app.command()
def ingest(
    path: PathArgument,
    source: Annotated[
        str,
        typer.Option(
            metavar="NAME", help="hudi, files, kafka, s3-events, gcs-events, cloud, or an own one."
        ),
    ],
    transform: Annotated[
        str | None,
        typer.Option(
            metavar="SQL", help="A query on what the source gives: SELECT ... FROM <SRC>."
        ),
    ] = None,
    operation: Annotated[
        str, typer.Option(metavar="NAME", help="What is done with rows, such as upsert or insert.")
    ] = "upsert",
    continuous: Annotated[
        bool, typer.Option("--continuous", help="Go on until a signal says stop.")
    ] = False,
    min_interval: Annotated[
        float, typer.Option(metavar="SECONDS", help="Rounds begin at least this long apart.")
    ] = 10.0,
    table_services: Annotated[
        str,
        typer.Option(
            "--services",
            metavar="MODE",
            help="inline: after each commit; async: beside the rounds; off: others run them.",
        ),
    ] = "inline",
    checkpoint: Annotated[
        str | None,
        typer.Option(
            metavar="TEXT", help="Where to go on from; the same one given again means nothing."
        ),
    ] = None,
    option: OptionsOption = None,
    master: Annotated[str, typer.Option(metavar="URL", help="Where Spark runs.")] = "local[*]",
    as_json: JsonOption = False,
) -> None:
    """Bring what a source has into a table: one batch, or batch after batch."""
    with exit_codes():
        wanted = ingesting.Wanted(
            path, source, told_options(option), transform, operation, table_services, checkpoint
        )
        interval = min_interval if continuous else None
        ingesting.run_ingest(wanted, master=master, interval_s=interval, as_json=as_json)


@services.command("list")
def services_list(as_json: JsonOption = False) -> None:
    """The services there are."""
    with exit_codes():
        render.show(commands.list_services(), as_json=as_json)


@app.command()
def plan(
    path: PathArgument,
    service: Annotated[str, typer.Argument(metavar="SERVICE", help="Such as compaction.")],
    option: OptionsOption = None,
    as_json: JsonOption = False,
) -> None:
    """What a service would do now, and why not more."""
    with exit_codes():
        render.show(commands.preview(path, service, told_options(option)), as_json=as_json)


@app.command()
def cancel(
    path: PathArgument,
    instant: Annotated[str, typer.Argument(metavar="INSTANT", help="The plan, by its instant.")],
    reason: Annotated[str, typer.Option(metavar="TEXT", help="Why; kept with the rollback.")] = "",
    user: Annotated[str, typer.Option(metavar="NAME", help="Who asks for it.")] = "",
    wait: Annotated[
        float,
        typer.Option(metavar="SECONDS", help="How long to wait for who executes it to stop."),
    ] = 0.0,
    option: OptionsOption = None,
    as_json: JsonOption = False,
) -> None:
    """Take a cancellable plan off the timeline, or ask who executes it to stop."""
    with exit_codes():
        options = told_options(option)
        document = commands.cancel_plan(
            path, options, instant, user=user, reason=reason, wait_s=wait
        )
        render.show(document, as_json=as_json)


@app.command()
def debt(path: PathArgument, option: OptionsOption = None, as_json: JsonOption = False) -> None:
    """Log files that wait for a compaction, and why."""
    with exit_codes():
        render.show(commands.show_debt(path, told_options(option)), as_json=as_json)


@app.command()
def freshness(
    path: PathArgument,
    holding: Annotated[
        bool, typer.Option("--holding", help="Also the log files that hold completion back.")
    ] = False,
    partitions: Annotated[
        bool, typer.Option("--partitions", help="Also every partition: reads all commits.")
    ] = False,
    wait: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="Wait until the view is complete up to this event time."),
    ] = None,
    view: Annotated[
        str, typer.Option(metavar="NAME", help="What to wait for: read_optimized or snapshot.")
    ] = "read_optimized",
    timeout: Annotated[
        float, typer.Option(metavar="SECONDS", help="How long to wait at most.")
    ] = 600.0,
    option: OptionsOption = None,
    as_json: JsonOption = False,
) -> None:
    """Up to which event time the two views of a table are complete, and how fresh they are."""
    with exit_codes():
        waiting = None if wait is None else (wait, view, timeout)
        document = commands.show_freshness(
            path, told_options(option), holding=holding, partitions=partitions, wait=waiting
        )
        render.show(document, as_json=as_json)


@app.command()
def timeline(
    path: PathArgument,
    archived: Annotated[
        bool, typer.Option("--archived", help="Put the writes in history before it.")
    ] = False,
    option: OptionsOption = None,
    as_json: JsonOption = False,
) -> None:
    """What has happened to a table, oldest first."""
    with exit_codes():
        document = commands.show_timeline(path, told_options(option), archived=archived)
        render.show(document, as_json=as_json)


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
    typer.echo(f"warning: {message}", err=True)


def main() -> None:
    """Run the command line of this process."""
    if not sys.warnoptions:
        warnings.showwarning = _tell_warning
    app()


if __name__ == "__main__":
    main()
