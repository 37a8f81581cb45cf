"""Commands that look at a table: its properties, timeline, files, debt and freshness."""

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

if TYPE_CHECKING:
    from lakewright.cli import looking, owing, printing
else:
    looking = Later("lakewright.cli.looking")
    owing = Later("lakewright.cli.owing")
    printing = Later("lakewright.cli.printing")

look = group()


@look.command(epilog=example("lakewright info data/trips --size"))
def info(
    path: PathArgument,
    size: Annotated[
        bool, typer.Option("--size", help="Also count files and bytes: lists all partitions.")
    ] = False,
    option: OptionsOption = None,
    options_file: OptionsFileOption = None,
    as_json: JsonOption = False,
) -> None:
    """What a table is: its keys, columns and settings, and what happened last."""
    with exit_codes():
        printing.show(
            looking.show_info(path, parse_options(option, options_file), size=size), as_json=as_json
        )


@look.command(epilog=example("lakewright timeline data/trips --archived --limit 20"))
def timeline(
    path: PathArgument,
    archived: Annotated[
        bool, typer.Option("--archived", help="Put the writes and rollbacks in history before it.")
    ] = False,
    limit: Annotated[
        int | None, typer.Option(metavar="COUNT", min=1, help="Only so many, the newest.")
    ] = None,
    option: OptionsOption = None,
    options_file: OptionsFileOption = None,
    as_json: JsonOption = False,
) -> None:
    """What has happened to a table, oldest first."""
    with exit_codes():
        document = looking.show_timeline(
            path, parse_options(option, options_file), archived=archived, limit=limit
        )
        printing.show(document, as_json=as_json)


@look.command(epilog=example("lakewright files data/trips --partition 2026-01-31"))
def files(
    path: PathArgument,
    partition: Annotated[
        list[str] | None,
        typer.Option(metavar="PATH", help="Only this partition; may be repeated."),
    ] = None,
    as_of: Annotated[
        str | None, typer.Option(metavar="TIME", help="As of an instant, or a date and time.")
    ] = None,
    all_slices: Annotated[
        bool, typer.Option("--all", help="Also the older slices of each file group.")
    ] = False,
    option: OptionsOption = None,
    options_file: OptionsFileOption = None,
    as_json: JsonOption = False,
) -> None:
    """The files that a query reads: file groups, their base file and log files."""
    with exit_codes():
        document = looking.show_files(
            path,
            parse_options(option, options_file),
            partitions=partition,
            as_of=as_of,
            all_slices=all_slices,
        )
        printing.show(document, as_json=as_json)


@look.command(epilog=example("lakewright debt data/trips"))
def debt(
    path: PathArgument,
    option: OptionsOption = None,
    options_file: OptionsFileOption = None,
    as_json: JsonOption = False,
) -> None:
    """Log files that wait for a compaction, and why."""
    with exit_codes():
        printing.show(owing.show_debt(path, parse_options(option, options_file)), as_json=as_json)


@look.command(
    epilog=example(
        "lakewright freshness data/trips --holding",
        "lakewright freshness data/trips --wait 2026-01-31T00:00:00Z --timeout 900",
    )
)
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
    options_file: OptionsFileOption = None,
    as_json: JsonOption = False,
) -> None:
    """Up to which event time the two views of a table are complete, and how fresh they are."""
    with exit_codes():
        waiting = None if wait is None else (wait, view, timeout)
        document = owing.show_freshness(
            path,
            parse_options(option, options_file),
            holding=holding,
            partitions=partitions,
            wait=waiting,
        )
        printing.show(document, as_json=as_json)
