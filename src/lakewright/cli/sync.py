"""The command sync: it registers a table in a catalog."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from lakewright.catalog.sync import SyncResult
from lakewright.catalog.sync import sync as sync_catalog
from lakewright.cli.common import (
    JsonOption,
    OptionsFileOption,
    OptionsOption,
    PathArgument,
    exit_codes,
    group,
    parse_options,
)
from lakewright.cli.output import Document, show
from lakewright.client.service_client import Options, service_runner
from lakewright.clock import SystemClock
from lakewright.errors import InvalidError
from lakewright.model.plans import Skip

app = group()


@app.command()
def sync(
    path: PathArgument,
    mode: Annotated[
        str | None,
        typer.Option(
            metavar="KIND", help="hms or glue; by default derived from the other options."
        ),
    ] = None,
    database: Annotated[
        str | None, typer.Option(metavar="NAME", help="The database; by default `default`.")
    ] = None,
    table: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="The name in the catalog; by default that of the table."),
    ] = None,
    metastore_uris: Annotated[
        str | None,
        typer.Option(metavar="URIS", help="The addresses of a Hive metastore, thrift://host:9083."),
    ] = None,
    full: Annotated[
        bool, typer.Option("--full", help="Compare all partitions, not only what has changed.")
    ] = False,
    option: OptionsOption = None,
    options_file: OptionsFileOption = None,
    as_json: JsonOption = False,
) -> None:
    """Register a table and its partitions in a catalog.

    Later calls update what has changed.

    Example: lakewright sync s3://lake/trips --metastore-uris thrift://hms:9083 --database lake
    """
    with exit_codes():
        arguments = {
            "hoodie.datasource.hive_sync.mode": mode,
            "hoodie.datasource.hive_sync.database": database,
            "hoodie.datasource.hive_sync.table": table,
            "hoodie.datasource.hive_sync.metastore.uris": metastore_uris,
            "hoodie.meta.sync.incremental": "false" if full else None,
        }
        changed = {key: value for key, value in arguments.items() if value is not None}
        document = sync_at(path, {**parse_options(option, options_file), **changed})
        show(document, as_json=as_json)


def sync_at(path: str, options: Options) -> Document:
    """Register the table at a path in a catalog, or update it there."""
    runner = service_runner(path, options)
    results = sync_catalog(runner.storage, SystemClock(), runner.options, _no_session)
    if isinstance(results, Skip):
        return {"table": runner.storage.root, "skipped": results.reason, "synced": []}
    return {"table": runner.storage.root, "synced": [asdict(result) for result in results]}


def _no_session(*_: object) -> tuple[SyncResult, ...]:
    raise InvalidError(
        "name the catalog: --metastore-uris thrift://host:9083, or --mode glue; the catalog of a "
        "Spark session needs Table.sync, or a write with hoodie.datasource.meta.sync.enable"
    )
