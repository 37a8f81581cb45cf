"""Commands that print rows: read and changes, in this process, or with Spark for large scans."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Annotated

import pyarrow as pa
import typer

from lakewright.cli.common import (
    JsonOption,
    OptionsFileOption,
    OptionsOption,
    PathArgument,
    example,
    exit_codes,
    group,
    listed,
    parse_options,
)
from lakewright.cli.output import FORMATS, OutputSummary, writing
from lakewright.cli.progress import ProgressBar, byte_bar
from lakewright.client.command_options import storage_at
from lakewright.clock import zone_of
from lakewright.engine.local import plan_bytes, prune_partitions, read_local
from lakewright.errors import InvalidError
from lakewright.model.instant import query_time
from lakewright.model.schema import META_COLUMNS, select_fields
from lakewright.scan.cdc.planner import CdcScanPlan, plan_cdc
from lakewright.scan.planner import plan_changes, plan_read_optimized, plan_snapshot
from lakewright.scan.query_options import begin_of_range, end_of_range
from lakewright.scan.scan_plan import RowFilter, ScanPlan
from lakewright.storage.base import Storage
from lakewright.table.snapshot import load_consistent_snapshot, load_snapshot
from lakewright.utils.terminal import say

app = group()

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


@app.command(
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
    """Print rows of a table, now or as of a time. Without Spark where there is little to read."""
    with exit_codes():
        chosen = ReadRequest(
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
        show_read(chosen, as_of=as_of, optimized=optimized)


@app.command(
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
    """Print the rows that changed in a range of completion times. Shows the next checkpoint."""
    with exit_codes():
        chosen = ReadRequest(
            path=path,
            options=parse_options(option, options_file),
            columns=listed(columns),
            meta=meta,
            form="json" if as_json else form,
            out=out,
            master=master or ("local[*]" if spark else None),
        )
        show_changes(chosen, since=since, until=until, limit=limit, cdc=cdc)


# More than this is read sooner by several tasks than by this process.
MOST_BYTES_HERE = 1 << 30
_SHOWN_ROWS = 20

Batches = Iterator[pa.RecordBatch]


@dataclass(frozen=True, kw_only=True)
class ReadRequest:
    """What the command line asks for; with a master Spark reads."""

    path: str
    options: Mapping[str, str] = field(default_factory=dict)
    limit: int | None = None
    columns: tuple[str, ...] = ()
    where: str | None = None
    meta: bool = False
    form: str = "table"
    out: str | None = None
    master: str | None = None

    def check(self) -> None:
        """InvalidError for what cannot be, before anything is read."""
        if self.form not in FORMATS:
            raise InvalidError("no such format", format=self.form, known=list(FORMATS))
        if self.form == "parquet" and self.out is None:
            raise InvalidError("parquet is no text: name a file with --out")

    def names(self, schema: pa.Schema) -> tuple[str, ...]:
        """The columns of the result."""
        if self.columns:
            return tuple(dict.fromkeys(select_fields(schema, self.columns).names))
        return tuple(name for name in schema.names if self.meta or name not in META_COLUMNS)


@dataclass(frozen=True)
class Reading:
    """A query, planned: which rows of it are wanted, and how many."""

    storage: Storage
    plan: ScanPlan | CdcScanPlan
    names: tuple[str, ...]
    limit: int | None = None
    chosen: RowFilter | None = None

    @property
    def schema(self) -> pa.Schema:
        """The columns of the result."""
        return select_fields(self.plan.result_schema, self.names)

    def fits_here(self) -> bool:
        """Whether this process is soon done with it."""
        bounded = self.limit is not None and self.chosen is None
        return bounded or plan_bytes(self.plan) <= MOST_BYTES_HERE


def show_read(wanted: ReadRequest, *, as_of: str | None, optimized: bool) -> None:
    """Show rows of a table."""
    wanted.check()
    storage = storage_at(wanted.path, wanted.options)
    snapshot = load_snapshot(storage)
    time = query_time(as_of, zone_of(snapshot.config.timeline_zone)) if as_of is not None else None
    make = plan_read_optimized if optimized else plan_snapshot
    schema = snapshot.schema(snapshot.view(requested_until=time))
    names = wanted.names(schema)
    chosen = _filter(wanted.where, schema)
    needed = dict.fromkeys((*names, *(chosen.columns if chosen else ())))
    # What Spark filters by is known to Spark alone.
    left_to_spark = wanted.where is not None and chosen is None
    plan = make(snapshot, as_of=time, columns=None if left_to_spark else list(needed))
    if chosen is not None:
        plan = prune_partitions(plan, chosen)
    limit = _SHOWN_ROWS + 1 if wanted.limit is None and wanted.form == "table" else wanted.limit
    reading = Reading(storage, plan, names, limit, chosen)
    told = OutputSummary(
        {"table": storage.root, "as_of": time}, shown=_shown(wanted), more="--limit"
    )
    _write(wanted, reading, told, spark=left_to_spark)


def show_changes(
    wanted: ReadRequest, *, since: str | None, until: str | None, limit: int | None, cdc: bool
) -> None:
    """Show what changed in a range."""
    wanted.check()
    storage = storage_at(wanted.path, wanted.options)
    moment = load_consistent_snapshot(storage)
    begin, end = begin_of_range(since), end_of_range(until)
    if cdc:
        found = plan_cdc(
            moment, since=begin, until=end, limit=limit, columns=wanted.columns or None
        )
        read: ScanPlan | CdcScanPlan = found.plan
        names = tuple(found.plan.result_schema.names)
        context = found.context
    else:
        columns = wanted.columns or None
        changed = plan_changes(moment, since=begin, until=end, limit=limit, columns=columns)
        read, names = changed.plan, wanted.names(changed.plan.result_schema)
        context = changed.context
    head = {
        "table": storage.root,
        "checkpoint": context.checkpoint,
        "instants": [each.requested_at for each in context.instants],
    }
    reading = Reading(storage, read, names)
    _write(
        wanted,
        reading,
        OutputSummary(head, shown=_shown(wanted), more="another --format"),
        spark=False,
    )


def _filter(text: str | None, schema: pa.Schema) -> RowFilter | None:
    if text is None:
        return None
    # Only a query with a filter needs the SQL parser.
    from lakewright.scan.filters import parse_filter

    return parse_filter(text, schema)


def _shown(wanted: ReadRequest) -> int | None:
    return _SHOWN_ROWS if wanted.form == "table" and wanted.limit is None else None


def _write(wanted: ReadRequest, reading: Reading, told: OutputSummary, *, spark: bool) -> None:
    with ExitStack() as stack:
        batches: Callable[[], Batches]
        if spark or wanted.master is not None or not reading.fits_here():
            from lakewright.cli.spark import spark_rows

            batches = stack.enter_context(spark_rows(wanted, reading))
        else:
            batches = lambda: _read_with_bar(wanted, reading, stack)  # noqa: E731
        # Opened last, so that a query that is refused leaves no file.
        sink = stack.enter_context(writing(wanted.form, wanted.out, reading.schema, told))
        count = 0
        for batch in batches():
            sink(batch)
            count += int(batch.num_rows)
    if wanted.out is not None:
        say(f"{count} rows written to {wanted.out}", err=True)


def _read_with_bar(wanted: ReadRequest, reading: Reading, stack: ExitStack) -> Batches:
    # Rows that scroll by on the same terminal are progress enough.
    apart = wanted.out is not None or wanted.form == "table" or not sys.stdout.isatty()
    total = plan_bytes(reading.plan)
    bar = stack.enter_context(byte_bar("reading", total)) if apart else ProgressBar()
    for batch in read_local(
        reading.storage,
        reading.plan,
        chosen=reading.chosen,
        columns=reading.names,
        limit=reading.limit,
        done=bar.advance,
    ):
        bar.add_rows(batch.num_rows)
        yield batch
