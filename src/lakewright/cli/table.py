"""Commands that show a table: info, timeline, files, debt, freshness."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from typing import Annotated

import typer

from lakewright.cli.common import (
    JsonOption,
    OptionsFileOption,
    OptionsOption,
    PathArgument,
    example,
    exit_codes,
    group,
    parse_options,
)
from lakewright.cli.output import Document, show
from lakewright.client.command_options import storage_at
from lakewright.clock import zone_of
from lakewright.errors import CorruptError, InvalidError, UnsupportedError
from lakewright.model import table_config as keys
from lakewright.model.file_group import FileSlice
from lakewright.model.instant import Action, Instant, query_time
from lakewright.model.schema import META_COLUMNS
from lakewright.table.properties import metadata_partitions
from lakewright.table.rollback import load_rollbacks
from lakewright.table.snapshot import Snapshot, load_snapshot

Options = Mapping[str, str]

_MAX_BLOCKING_LOG_FILES = 20
_POLL_S = 5.0

app = group()


@app.command(epilog=example("lakewright info data/trips --size"))
def info(
    path: PathArgument,
    size: Annotated[
        bool, typer.Option("--size", help="Also count files and bytes: lists all partitions.")
    ] = False,
    option: OptionsOption = None,
    options_file: OptionsFileOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show keys, columns and settings of a table, and its last write."""
    with exit_codes():
        show(show_info(path, parse_options(option, options_file), size=size), as_json=as_json)


@app.command(epilog=example("lakewright timeline data/trips --archived --limit 20"))
def timeline(
    path: PathArgument,
    archived: Annotated[
        bool,
        typer.Option("--archived", help="Also the writes and rollbacks of the archived timeline."),
    ] = False,
    limit: Annotated[
        int | None,
        typer.Option(metavar="COUNT", min=1, help="Only this many instants, the newest."),
    ] = None,
    option: OptionsOption = None,
    options_file: OptionsFileOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show the instants of a table, oldest first."""
    with exit_codes():
        document = show_timeline(
            path, parse_options(option, options_file), archived=archived, limit=limit
        )
        show(document, as_json=as_json)


@app.command(epilog=example("lakewright files data/trips --partition 2026-01-31"))
def files(
    path: PathArgument,
    partition: Annotated[
        list[str] | None,
        typer.Option(metavar="PATH", help="Only this partition; may be repeated."),
    ] = None,
    as_of: Annotated[
        str | None, typer.Option(metavar="TIME", help="As of an instant, or a date and time.")
    ] = None,
    all_slices: Annotated[
        bool, typer.Option("--all", help="Also the older slices of each file group.")
    ] = False,
    option: OptionsOption = None,
    options_file: OptionsFileOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show the files that a query reads: file groups, base files, log files."""
    with exit_codes():
        document = show_files(
            path,
            parse_options(option, options_file),
            partitions=partition,
            as_of=as_of,
            all_slices=all_slices,
        )
        show(document, as_json=as_json)


@app.command(epilog=example("lakewright debt data/trips"))
def debt(
    path: PathArgument,
    option: OptionsOption = None,
    options_file: OptionsFileOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show the log files that no compaction has merged yet, and why."""
    with exit_codes():
        show(show_debt(path, parse_options(option, options_file)), as_json=as_json)


@app.command(
    epilog=example(
        "lakewright freshness data/trips --holding",
        "lakewright freshness data/trips --wait 2026-01-31T00:00:00Z --timeout 900",
    )
)
def freshness(
    path: PathArgument,
    holding: Annotated[
        bool, typer.Option("--holding", help="Also the log files that hold completion back.")
    ] = False,
    partitions: Annotated[
        bool, typer.Option("--partitions", help="Also each partition: reads all commits.")
    ] = False,
    wait: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="Wait until the view is complete up to this event time."),
    ] = None,
    view: Annotated[
        str, typer.Option(metavar="NAME", help="What to wait for: read_optimized or snapshot.")
    ] = "read_optimized",
    timeout: Annotated[
        float, typer.Option(metavar="SECONDS", help="How long to wait at most.")
    ] = 600.0,
    option: OptionsOption = None,
    options_file: OptionsFileOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show completion and freshness of both views of a table."""
    with exit_codes():
        awaited = None if wait is None else (wait, view, timeout)
        document = show_freshness(
            path,
            parse_options(option, options_file),
            holding=holding,
            partitions=partitions,
            wait=awaited,
        )
        show(document, as_json=as_json)


def show_info(path: str, options: Options, *, size: bool) -> Document:
    """Return the configuration and columns of a table, and its last write."""
    snapshot = _snapshot(path, options)
    config, timeline = snapshot.config, snapshot.timeline
    writes = timeline.by_completion
    document: Document = {
        "table": snapshot.storage.root,
        "name": config.name,
        "type": config.table_type.value,
        "version": config.version,
        "record_key": _joined(config.record_key_fields),
        "partitioned_by": _joined(config.partition_fields),
        "ordered_by": _joined(config.ordering_fields),
        "merge_mode": config.merge_mode.value,
        "event_time": config.properties.get(keys.EVENT_TIME),
        "index": config.properties.get(keys.INDEX_TYPE),
        "timeline_zone": config.timeline_zone,
        "metadata_table": _joined(metadata_partitions(config)),
        "instants": len(timeline),
        "timeline_from": timeline.start,
        "savepoints": _joined(sorted(timeline.savepointed)),
        "last_write": _last_write(snapshot, writes[-1]) if writes else None,
        "pending": [asdict(instant) for instant in timeline.pending()],
        **(_sizes(snapshot) if size else {}),
        "columns": _columns(snapshot),
    }
    return document


def _joined(names: Sequence[str]) -> str | None:
    return ", ".join(names) or None


def _last_write(snapshot: Snapshot, last: Instant) -> str:
    operation: str = last.action
    with suppress(CorruptError, UnsupportedError):
        operation = snapshot.commits([last])[0].operation or operation
    return f"{last.requested_at}, {operation}, completed {last.completed_at}"


def _columns(snapshot: Snapshot) -> list[Document]:
    if snapshot.avro_schema() is None:
        return []
    schema = snapshot.schema(snapshot.view())
    fields = [field for field in schema if field.name not in META_COLUMNS]
    return [{"column": field.name, "type": str(field.type)} for field in fields]


def _sizes(snapshot: Snapshot) -> Document:
    groups = snapshot.groups(snapshot.view())
    slices = [group.latest_merged_slice() for group in groups]
    return {
        "partitions": len({item.partition for item in slices}),
        "file_groups": len(slices),
        "base_bytes": sum(item.base.size for item in slices if item.base is not None),
        "log_files": sum(len(item.logs) for item in slices),
        "log_bytes": sum(item.log_size for item in slices),
    }


def show_timeline(path: str, options: Options, *, archived: bool, limit: int | None) -> Document:
    """Return the instants of a table; `archived` adds those of the archived timeline."""
    snapshot = _snapshot(path, options)
    details = _instant_details(snapshot, archived=archived)
    # Of the archived timeline only writes, and rollbacks, which explain why plans were cancelled.
    active = {*snapshot.timeline}
    rollbacks = [i for i in details if i.action == Action.ROLLBACK and i not in active]
    older = sorted([*snapshot.archived, *rollbacks]) if archived else ()
    instants = (*older, *snapshot.timeline)
    shown = instants if limit is None else instants[-limit:]
    omitted = {"left_out": len(instants) - len(shown)} if len(shown) < len(instants) else {}
    return {
        "table": snapshot.storage.root,
        **omitted,
        "instants": [asdict(instant) | _detail(details.get(instant)) for instant in shown],
    }


def _instant_details(snapshot: Snapshot, *, archived: bool) -> dict[Instant, str]:
    """Return the targets of rollbacks, and which pending plans are cancellable."""
    details: dict[Instant, str] = {}
    # A damaged timeline file must not prevent showing the timeline.
    with suppress(CorruptError, UnsupportedError):
        details |= {
            rollback.instant: str(rollback)
            for rollback in load_rollbacks(snapshot, archived=archived)
        }
    with suppress(CorruptError, UnsupportedError):
        cancellable = (i for i, plan in snapshot.pending_plans() if plan.cancellable)
        details |= dict.fromkeys(cancellable, "cancellable")
    return details


def _detail(text: str | None) -> Document:
    return {} if text is None else {"detail": text}


def show_files(
    path: str,
    options: Options,
    *,
    partitions: Sequence[str] | None,
    as_of: str | None,
    all_slices: bool,
) -> Document:
    """Return the file slices that a query reads; `all_slices` adds the older ones."""
    snapshot = _snapshot(path, options)
    time = None
    if as_of is not None:
        time = query_time(as_of, zone_of(snapshot.config.timeline_zone))
    listed = snapshot.files([p.strip("/") for p in partitions] if partitions else None)
    _require_partitions(partitions or (), listed)
    groups = snapshot.groups(snapshot.view(requested_until=time), listed)
    slices = [
        item
        for group in groups
        for item in (group.slices if all_slices else [group.latest_merged_slice()])
    ]
    return {
        "table": snapshot.storage.root,
        "file_groups": len(groups),
        "total_bytes": sum(item.size for item in slices),
        "files": [_slice_document(item) for item in slices],
    }


def _require_partitions(requested: Sequence[str], listed: Container[str]) -> None:
    missing = [path for path in requested if path.strip("/") not in listed]
    if missing:
        raise InvalidError("the table has no such partition", partition=missing[0])


def _slice_document(item: FileSlice) -> Document:
    return {
        "partition": item.partition,
        "file_id": item.file_id,
        "base_instant": item.base_instant,
        "base_file": item.base.name if item.base is not None else None,
        "base_bytes": item.base.size if item.base is not None else None,
        "logs": [log.name for log in item.logs],
        "log_bytes": item.log_size,
    }


def _snapshot(path: str, options: Options) -> Snapshot:
    return load_snapshot(storage_at(path, options))


def show_debt(path: str, options: Options) -> Document:
    """Return the compaction debt of a table."""
    # Imported here: `info` needs neither services nor writers.
    from lakewright.client.documents import debt_document
    from lakewright.client.service_client import service_runner
    from lakewright.services.compaction_debt import load_debt

    runner = service_runner(path, options)
    compaction_debt = load_debt(runner.planning_context(load_snapshot(runner.storage)))
    return {"table": runner.storage.root, **debt_document(compaction_debt)}


def show_freshness(
    path: str,
    options: Options,
    *,
    holding: bool,
    partitions: bool,
    wait: tuple[str, str, float] | None,
) -> Document:
    """Return completion and freshness; `wait` is an event time, a view and a timeout in seconds."""
    from lakewright.client.service_client import service_runner
    from lakewright.table.freshness_report import (
        freshness_document,
        load_blocking_log_files,
        load_freshness,
        wait_until_complete,
    )

    runner = service_runner(path, options)
    storage, clock = runner.storage, runner.clock
    if wait is not None:
        time, view, timeout = wait
        report = wait_until_complete(
            storage, clock, time, view=view, timeout=timeout, poll=_POLL_S, options=runner.options
        )
    else:
        report = load_freshness(storage, clock, runner.options)
    document = {
        "table": storage.root,
        **freshness_document(report, partitions=partitions),
    }
    if holding:
        document["holding_back"] = [
            {key: value for key, value in asdict(file).items() if key != "held_at"}
            for file in load_blocking_log_files(storage, _MAX_BLOCKING_LOG_FILES)
        ]
    return document
