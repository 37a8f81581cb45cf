"""Commands that make a table, and bring rows into it."""

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
    listed,
    parse_options,
)

if TYPE_CHECKING:
    from lakewright.cli import creating, printing
    from lakewright.cli import ingest as ingesting
else:
    creating = Later("lakewright.cli.creating")
    ingesting = Later("lakewright.cli.ingest")
    printing = Later("lakewright.cli.printing")

make = group()


@make.command(
    epilog=example(
        "lakewright create data/trips --key id --partition-by day --ordering ts --type mor",
        "lakewright create data/trips --key id --schema 'id string, day date, fare double'",
    )
)
def create(
    path: PathArgument,
    key: Annotated[
        str, typer.Option(metavar="NAMES", help="The record key; none: rows are only inserted.")
    ] = "",
    name: Annotated[
        str, typer.Option(metavar="NAME", help="The table's name; by default that of its folder.")
    ] = "",
    table_type: Annotated[
        str, typer.Option("--type", metavar="TYPE", help="COPY_ON_WRITE or MERGE_ON_READ.")
    ] = "COPY_ON_WRITE",
    partition_by: Annotated[
        str, typer.Option(metavar="NAMES", help="Columns whose values are folders.")
    ] = "",
    ordering: Annotated[
        str, typer.Option(metavar="NAMES", help="Of two versions of a row the greater one wins.")
    ] = "",
    event_time: Annotated[
        str | None, typer.Option(metavar="NAME", help="The column with the time of events.")
    ] = None,
    schema: Annotated[
        str | None,
        typer.Option(metavar="COLUMNS", help="Names and SQL types; else the first write tells."),
    ] = None,
    option: OptionsOption = None,
    options_file: OptionsFileOption = None,
    as_json: JsonOption = False,
) -> None:
    """Make an empty table."""
    with exit_codes():
        document = creating.create(
            path,
            parse_options(option, options_file),
            name=name,
            table_type=table_type,
            key=listed(key),
            partition_by=listed(partition_by),
            ordering=listed(ordering),
            event_time=event_time,
            schema=schema,
        )
        printing.show(document, as_json=as_json)


@make.command(
    epilog=example(
        "lakewright ingest data/trips --source files -o hoodie.streamer.source.dfs.root=landing",
        "lakewright ingest data/trips --source kafka --continuous -o ...",
    )
)
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
    options_file: OptionsFileOption = None,
    master: Annotated[str, typer.Option(metavar="URL", help="Where Spark runs.")] = "local[*]",
    as_json: JsonOption = False,
) -> None:
    """Bring what a source has into a table: one batch, or batch after batch."""
    with exit_codes():
        wanted = ingesting.IngestRequest(
            path,
            source,
            parse_options(option, options_file),
            transform,
            operation,
            table_services,
            checkpoint,
        )
        interval = min_interval if continuous else None
        ingesting.run_ingest(wanted, master=master, interval_s=interval, as_json=as_json)
