"""The command demo."""

from __future__ import annotations

from importlib import import_module
from typing import Annotated

import typer

from lakewright.cli.common import JsonOption, exit_codes, group

app = group()


@app.command()
def demo(
    keep: Annotated[
        str | None,
        typer.Option(metavar="DIR", help="Where the table is made and left; by default a new one."),
    ] = None,
    seed: Annotated[int, typer.Option(metavar="NUMBER", help="Another one, other rides.")] = 7,
    rides: Annotated[int, typer.Option(metavar="NUMBER", help="How many rides a day has.")] = 3000,
    as_json: JsonOption = False,
) -> None:
    """Create a table of ride events, run all services on it, and check the result.

    Ends with 1 if a check fails. Example: lakewright demo --keep /tmp/rides
    """
    with exit_codes():
        # The demo is a program that uses the library: no module of the library imports it.
        run_demo = import_module("lakewright.demo.command").run_demo
        code = run_demo(keep, seed=seed, rides=rides, as_json=as_json)
    raise typer.Exit(code)
