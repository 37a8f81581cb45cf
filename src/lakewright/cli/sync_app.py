"""`lakewright sync`: a table in a catalog.

What the command does is in `syncing.py` of this folder, which is imported when it runs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from lakewright.cli.shared import (
    JsonOption,
    Later,
    OptionsFileOption,
    OptionsOption,
    PathArgument,
    exit_codes,
    parse_options,
)

if TYPE_CHECKING:
    from lakewright.cli import printing, syncing
else:
    syncing = Later("lakewright.cli.syncing")
    printing = Later("lakewright.cli.printing")


def sync(
    path: PathArgument,
    mode: Annotated[
        str | None,
        typer.Option(metavar="KIND", help="hms or glue; told by the rest if left out."),
    ] = None,
    database: Annotated[
        str | None, typer.Option(metavar="NAME", help="The database; default if left out.")
    ] = None,
    table: Annotated[
        str | None, typer.Option(metavar="NAME", help="The name; the table's own if left out.")
    ] = None,
    metastore_uris: Annotated[
        str | None,
        typer.Option(metavar="URIS", help="Where a Hive metastore listens, thrift://host:9083."),
    ] = None,
    full: Annotated[
        bool, typer.Option("--full", help="Compare all partitions, not only what has changed.")
    ] = False,
    option: OptionsOption = None,
    options_file: OptionsFileOption = None,
    as_json: JsonOption = False,
) -> None:
    """Register a table and its partitions in a catalog, or tell it what has changed.

    Example: lakewright sync s3://lake/trips --metastore-uris thrift://hms:9083 --database lake
    """
    with exit_codes():
        words = {
            "hoodie.datasource.hive_sync.mode": mode,
            "hoodie.datasource.hive_sync.database": database,
            "hoodie.datasource.hive_sync.table": table,
            "hoodie.datasource.hive_sync.metastore.uris": metastore_uris,
            "hoodie.meta.sync.incremental": "false" if full else None,
        }
        given = {key: word for key, word in words.items() if word is not None}
        document = syncing.sync_at(path, {**parse_options(option, options_file), **given})
        printing.show(document, as_json=as_json)
