"""Commands that print rows: read and changes.

This process reads the rows; Spark does for large scans, and for filters that only Spark evaluates.
"""

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

# Above this size Spark is faster than this process.
MAX_LOCAL_BYTES = 1 << 30
_SHOWN_ROWS = 20

Batches = Iterator[pa.RecordBatch]

app = group()

ColumnsOption = Annotated[
    str | None, typer.Option(metavar="NAMES", help="Only these columns, separated by commas.")
]
FormatOption = Annotated[
    str, typer.Option("--format", "-f", metavar="NAME", help="table, json, jsonl, csv or parquet.")
]
OutOption = Annotated[
    str | None, typer.Option(metavar="FILE", help="Write to this file, which must not exist.")
]
SparkOption = Annotated[
    bool, typer.Option("--spark", help="Read with Spark, even if there is little to read.")
]
MetaOption = Annotated[
    bool, typer.Option("--meta", help="Also the five columns that Hudi adds to each row.")
]
RowsMasterOption = Annotated[
    str | None, typer.Option(metavar="URL", help="Read with Spark, on this Spark master.")
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
            "--limit",
            "-n",
            metavar="COUNT",
            min=0,
            help="At most this many rows; a table shows 20.",
        ),
    ] = None,
    columns: ColumnsOption = None,
    where: Annotated[
        str | None,
        typer.Option(
            "--filter", "--where", metavar="SQL", help="Only rows that match this condition."
        ),
    ] = None,
    as_of: Annotated[
        str | None, typer.Option(metavar="TIME", help="As of an instant, or a date and time.")
    ] = None,
    optimized: Annotated[
        bool, typer.Option("--optimized", help="Only base files: as old as the last compaction.")
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
        request = ReadRequest(
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
        show_read(request, as_of=as_of, optimized=optimized)


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
            help="After this completion time: the checkpoint of the last call; by default all.",
        ),
    ] = None,
    until: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="Up to this completion time; by default the latest."),
    ] = None,
    limit: Annotated[
        int | None, typer.Option(metavar="COUNT", min=1, help="At most this many instants.")
    ] = None,
    cdc: Annotated[
        bool,
        typer.Option("--cdc", help="The operation on each row, with the row before and after."),
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
        request = ReadRequest(
            path=path,
            options=parse_options(option, options_file),
            columns=listed(columns),
            meta=meta,
            form="json" if as_json else form,
            out=out,
            master=master or ("local[*]" if spark else None),
        )
        show_changes(request, since=since, until=until, limit=limit, cdc=cdc)


@dataclass(frozen=True, kw_only=True)
class ReadRequest:
    """The arguments of a command that prints rows; with a master Spark reads."""

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
        """Raise InvalidError for an invalid format, before anything is read."""
        if self.form not in FORMATS:
            raise InvalidError("no such format", format=self.form, known=list(FORMATS))
        if self.form == "parquet" and self.out is None:
            raise InvalidError("parquet is no text: name a file with --out")

    def names(self, schema: pa.Schema) -> tuple[str, ...]:
        """Return the names of the columns of the result."""
        if self.columns:
            return tuple(dict.fromkeys(select_fields(schema, self.columns).names))
        return tuple(name for name in schema.names if self.meta or name not in META_COLUMNS)


@dataclass(frozen=True)
class Reading:
    """A planned query: its scan plan, columns, filter and limit."""

    storage: Storage
    plan: ScanPlan | CdcScanPlan
    names: tuple[str, ...]
    limit: int | None = None
    row_filter: RowFilter | None = None

    @property
    def schema(self) -> pa.Schema:
        """The schema of the result."""
        return select_fields(self.plan.result_schema, self.names)

    def fits_in_process(self) -> bool:
        """Whether this process can read it in a short time."""
        bounded = self.limit is not None and self.row_filter is None
        return bounded or plan_bytes(self.plan) <= MAX_LOCAL_BYTES


def show_read(request: ReadRequest, *, as_of: str | None, optimized: bool) -> None:
    """Print rows of a table."""
    request.check()
    storage = storage_at(request.path, request.options)
    snapshot = load_snapshot(storage)
    time = query_time(as_of, zone_of(snapshot.config.timeline_zone)) if as_of is not None else None
    plan_query = plan_read_optimized if optimized else plan_snapshot
    schema = snapshot.schema(snapshot.view(requested_until=time))
    names = request.names(schema)
    row_filter = _filter(request.where, schema)
    columns = dict.fromkeys((*names, *(row_filter.columns if row_filter else ())))
    # Only Spark knows which columns such a filter reads.
    filtered_by_spark = request.where is not None and row_filter is None
    plan = plan_query(snapshot, as_of=time, columns=None if filtered_by_spark else list(columns))
    if row_filter is not None:
        plan = prune_partitions(plan, row_filter)
    limit = _SHOWN_ROWS + 1 if request.limit is None and request.form == "table" else request.limit
    reading = Reading(storage, plan, names, limit, row_filter)
    summary = OutputSummary(
        {"table": storage.root, "as_of": time},
        shown=_max_shown_rows(request),
        more_option="--limit",
    )
    _write(request, reading, summary, spark=filtered_by_spark)


def show_changes(
    request: ReadRequest, *, since: str | None, until: str | None, limit: int | None, cdc: bool
) -> None:
    """Print the rows that changed in a range of completion times."""
    request.check()
    storage = storage_at(request.path, request.options)
    snapshot = load_consistent_snapshot(storage)
    begin, end = begin_of_range(since), end_of_range(until)
    if cdc:
        cdc_query = plan_cdc(
            snapshot, since=begin, until=end, limit=limit, columns=request.columns or None
        )
        plan: ScanPlan | CdcScanPlan = cdc_query.plan
        names = tuple(cdc_query.plan.result_schema.names)
        context = cdc_query.context
    else:
        columns = request.columns or None
        query = plan_changes(snapshot, since=begin, until=end, limit=limit, columns=columns)
        plan, names = query.plan, request.names(query.plan.result_schema)
        context = query.context
    head = {
        "table": storage.root,
        "checkpoint": context.checkpoint,
        "instants": [instant.requested_at for instant in context.instants],
    }
    reading = Reading(storage, plan, names)
    _write(
        request,
        reading,
        OutputSummary(head, shown=_max_shown_rows(request), more_option="another --format"),
        spark=False,
    )


def _filter(text: str | None, schema: pa.Schema) -> RowFilter | None:
    if text is None:
        return None
    # Imported here: only a filter needs the SQL parser.
    from lakewright.scan.filters import parse_filter

    return parse_filter(text, schema)


def _max_shown_rows(request: ReadRequest) -> int | None:
    return _SHOWN_ROWS if request.form == "table" and request.limit is None else None


def _write(request: ReadRequest, reading: Reading, summary: OutputSummary, *, spark: bool) -> None:
    with ExitStack() as stack:
        batches: Callable[[], Batches]
        if spark or request.master is not None or not reading.fits_in_process():
            from lakewright.cli.spark import spark_rows

            batches = stack.enter_context(spark_rows(request, reading))
        else:
            batches = lambda: _read_with_bar(request, reading, stack)  # noqa: E731
        # Opened last, so that a rejected query leaves no file.
        sink = stack.enter_context(writing(request.form, request.out, reading.schema, summary))
        count = 0
        for batch in batches():
            sink(batch)
            count += int(batch.num_rows)
    if request.out is not None:
        say(f"{count} rows written to {request.out}", err=True)


def _read_with_bar(request: ReadRequest, reading: Reading, stack: ExitStack) -> Batches:
    # No bar on a terminal on which the rows themselves scroll by.
    with_bar = request.out is not None or request.form == "table" or not sys.stdout.isatty()
    total = plan_bytes(reading.plan)
    bar = stack.enter_context(byte_bar("reading", total)) if with_bar else ProgressBar()
    for batch in read_local(
        reading.storage,
        reading.plan,
        row_filter=reading.row_filter,
        columns=reading.names,
        limit=reading.limit,
        on_progress=bar.advance,
    ):
        bar.add_rows(batch.num_rows)
        yield batch
