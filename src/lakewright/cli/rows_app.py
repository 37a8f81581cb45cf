"""Commands that show rows: `read` and `changes`."""

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
    from lakewright.cli import rows as commands
else:
    commands = Later("lakewright.cli.rows")

rows = group()

ColumnsOption = Annotated[
    str | None, typer.Option(metavar="NAMES", help="Only these columns, with commas between them.")
]
FormatOption = Annotated[
    str, typer.Option("--format", "-f", metavar="NAME", help="table, json, jsonl, csv or parquet.")
]
OutOption = Annotated[
    str | None, typer.Option(metavar="FILE", help="Write to this file, which must not be there.")
]
SparkOption = Annotated[
    bool, typer.Option("--spark", help="Read with Spark, however little there is to read.")
]
MetaOption = Annotated[
    bool, typer.Option("--meta", help="Also the five columns that Hudi adds to each row.")
]
RowsMasterOption = Annotated[
    str | None, typer.Option(metavar="URL", help="Read with Spark, at this master.")
]


@rows.command(
    epilog=example(
        "lakewright read data/trips --limit 5 --columns id,city,ts",
        "lakewright read data/trips --filter \"city = 'Oslo' and ts >= 1700000000\" -f csv",
        "lakewright read data/trips --as-of 2026-01-31 -f parquet --out trips.parquet",
    )
)
def read(
    path: PathArgument,
    limit: Annotated[
        int | None,
        typer.Option(
            "--limit", "-n", metavar="COUNT", min=0, help="At most so many rows; a table shows 20."
        ),
    ] = None,
    columns: ColumnsOption = None,
    where: Annotated[
        str | None,
        typer.Option("--filter", "--where", metavar="SQL", help="Only rows that pass this."),
    ] = None,
    as_of: Annotated[
        str | None, typer.Option(metavar="TIME", help="As of an instant, or a date and time.")
    ] = None,
    optimized: Annotated[
        bool, typer.Option("--optimized", help="Base files alone: as old as the last compaction.")
    ] = False,
    meta: MetaOption = False,
    form: FormatOption = "table",
    out: OutOption = None,
    spark: SparkOption = False,
    master: RowsMasterOption = None,
    option: OptionsOption = None,
    options_file: OptionsFileOption = None,
    as_json: JsonOption = False,
) -> None:
    """Rows of a table, as they are or as they were. Without Spark where there is little to read."""
    with exit_codes():
        chosen = commands.ReadRequest(
            path=path,
            options=parse_options(option, options_file),
            limit=limit,
            columns=listed(columns),
            where=where,
            meta=meta,
            form="json" if as_json else form,
            out=out,
            master=master or ("local[*]" if spark else None),
        )
        commands.show_read(chosen, as_of=as_of, optimized=optimized)


@rows.command(
    epilog=example(
        "lakewright changes data/trips --since 20260131120000000 --json",
        "lakewright changes data/trips --cdc --limit 1",
    )
)
def changes(
    path: PathArgument,
    since: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="After this completion time: the checkpoint of the last call. Else all.",
        ),
    ] = None,
    until: Annotated[
        str | None, typer.Option(metavar="TIME", help="Up to this completion time; else to now.")
    ] = None,
    limit: Annotated[
        int | None, typer.Option(metavar="COUNT", min=1, help="At most so many instants.")
    ] = None,
    cdc: Annotated[
        bool, typer.Option("--cdc", help="What was done to each row, with it before and after.")
    ] = False,
    columns: ColumnsOption = None,
    meta: MetaOption = False,
    form: FormatOption = "table",
    out: OutOption = None,
    spark: SparkOption = False,
    master: RowsMasterOption = None,
    option: OptionsOption = None,
    options_file: OptionsFileOption = None,
    as_json: JsonOption = False,
) -> None:
    """Rows that changed in a range of completion times, and where to go on from next time."""
    with exit_codes():
        chosen = commands.ReadRequest(
            path=path,
            options=parse_options(option, options_file),
            columns=listed(columns),
            meta=meta,
            form="json" if as_json else form,
            out=out,
            master=master or ("local[*]" if spark else None),
        )
        commands.show_changes(chosen, since=since, until=until, limit=limit, cdc=cdc)
