"""`lakewright doctor`: what is wrong with a table, and putting it right."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from lakewright.cli.shared import (
    UNWELL,
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
    from lakewright.cli import doctoring
else:
    doctoring = Later("lakewright.cli.doctoring")

doctor = group()


@doctor.command(
    "doctor",
    epilog=example("lakewright doctor data/trips", "lakewright doctor data/trips --repair --yes"),
)
def examine(
    path: PathArgument,
    repair: Annotated[
        bool, typer.Option("--repair", help="Put right what is safe, after asking.")
    ] = False,
    force: Annotated[
        bool,
        typer.Option(
            "--force",
            help="With --repair: also roll back the newest write if its completed file is damaged. "
            "Its rows are gone then.",
        ),
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    option: OptionsOption = None,
    options_file: OptionsFileOption = None,
    as_json: JsonOption = False,
) -> None:
    """Examine a table, and put right what can safely be. Ends with 10 if something is wrong."""
    with exit_codes():
        healthy = doctoring.examine_table(
            path,
            parse_options(option, options_file),
            repairing=repair,
            force=force,
            asking=not yes,
            as_json=as_json,
        )
    if not healthy:
        raise typer.Exit(UNWELL)
