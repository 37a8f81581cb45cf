"""`lakewright services`: rounds of all services that a table needs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from lakewright.cli.shared import (
    JsonOption,
    Later,
    MasterOption,
    OptionsFileOption,
    OptionsOption,
    PathArgument,
    example,
    exit_codes,
    group,
    parse_options,
)

if TYPE_CHECKING:
    from lakewright.cli import commands, printing
else:
    commands = Later("lakewright.cli.commands")
    printing = Later("lakewright.cli.printing")

services = group("Table services.")


@services.command(
    "run",
    epilog=example(
        "lakewright services run data/trips",
        "lakewright services run data/trips --service clean --continuous --interval 300",
    ),
)
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
    options_file: OptionsFileOption = None,
    master: MasterOption = "local[*]",
    as_json: JsonOption = False,
) -> None:
    """Execute the plans that wait, and run services that are due."""
    with exit_codes():
        commands.run_services(
            path,
            service or (),
            parse_options(option, options_file),
            master=master,
            interval_s=interval if continuous else None,
            show=lambda document: printing.show(document, as_json=as_json, one_line=continuous),
        )


@services.command("list", epilog=example("lakewright services list --json"))
def services_list(as_json: JsonOption = False) -> None:
    """The services there are."""
    with exit_codes():
        printing.show(commands.list_services(), as_json=as_json)
