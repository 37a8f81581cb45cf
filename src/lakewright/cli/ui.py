"""The command ui: it serves a page that shows tables in the browser."""

from __future__ import annotations

from typing import Annotated

import typer

from lakewright.cli.common import (
    JsonOption,
    OptionsFileOption,
    OptionsOption,
    exit_codes,
    group,
    parse_options,
)
from lakewright.utils.optional_imports import imported

_EXTRA = "ui"
_PORT = 8765

app = group()


@app.command("ui")
def ui(
    context: typer.Context,
    paths: Annotated[
        list[str],
        typer.Argument(metavar="PATH", help="The tables: folders, or URIs such as s3a://..."),
    ],
    allow_writes: Annotated[
        bool,
        typer.Option("--allow-writes", help="Show buttons that run services and cancel plans."),
    ] = False,
    host: Annotated[
        str, typer.Option(metavar="ADDRESS", help="The address to listen on.")
    ] = "127.0.0.1",
    port: Annotated[
        int,
        typer.Option(metavar="NUMBER", min=0, max=65535, help="The port; 0 chooses a free one."),
    ] = _PORT,
    open_browser: Annotated[
        bool, typer.Option("--open", help="Open the page in the browser.")
    ] = False,
    option: OptionsOption = None,
    options_file: OptionsFileOption = None,
    master: Annotated[
        str, typer.Option(metavar="URL", help="The Spark master, if a service needs Spark.")
    ] = "local[*]",
    as_json: JsonOption = False,
) -> None:
    """Show tables on a page in the browser.

    Timeline, partitions, freshness, plans and services.

    Example: lakewright ui /data/trips /data/riders --open
    """
    with exit_codes():
        for module in ("starlette", "uvicorn"):
            imported(module, _EXTRA)
        # Imported after the check that the packages of the extra are installed.
        from lakewright.ui import server

        modules = context.parent.params.get("load") if context.parent is not None else None
        server.serve(
            paths,
            parse_options(option, options_file),
            host=host,
            port=port,
            allow_writes=allow_writes,
            open_browser=open_browser,
            master=master,
            load=modules or (),
            as_json=as_json,
        )
