"""The command `lakewright demo`."""

from __future__ import annotations

from typing import Annotated

import typer

from lakewright.cli.shared import JsonOption, Later, exit_codes

# The demo stands above the interfaces, as any program that uses them does: it is loaded by its
# name when it is asked for.
_demo = Later("lakewright.demo.command")


def demo(
    keep: Annotated[
        str | None,
        typer.Option(metavar="DIR", help="Where the table is made and left; by default a new one."),
    ] = None,
    seed: Annotated[int, typer.Option(metavar="NUMBER", help="Another one, other rides.")] = 7,
    rides: Annotated[int, typer.Option(metavar="NUMBER", help="How many rides a day has.")] = 3000,
    as_json: JsonOption = False,
) -> None:
    """Make a table of ride events, let all services work on it, and check the result.

    Ends with 1 if a check fails. Example: lakewright demo --keep /tmp/rides
    """
    with exit_codes():
        code = _demo.run_demo(keep, seed=seed, rides=rides, as_json=as_json)
    raise typer.Exit(code)
