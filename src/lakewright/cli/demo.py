"""The command demo: it runs the demo program."""

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
        typer.Option(
            metavar="DIR", help="The folder of the table, which is kept; by default a new one."
        ),
    ] = None,
    seed: Annotated[int, typer.Option(metavar="NUMBER", help="The seed of the random rides.")] = 7,
    rides: Annotated[int, typer.Option(metavar="NUMBER", help="The number of rides a day.")] = 3000,
    as_json: JsonOption = False,
) -> None:
    """Create a table of ride events, run all services on it, and check the result.

    Ends with 1 if a check fails. Example: lakewright demo --keep /tmp/rides
    """
    with exit_codes():
        # Not an import statement: the demo is a program that uses the library, not a part of it.
        run_demo = import_module("lakewright.demo.command").run_demo
        code = run_demo(keep, seed=seed, rides=rides, as_json=as_json)
    raise typer.Exit(code)
