"""The options of queries and of streaming reads, with Hudi's keys."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from lakewright.errors import InvalidError, UnsupportedError
from lakewright.options import (
    at_least,
    ignored_options,
    option,
    option_keys,
    parse_bool,
    parse_choice,
    settings_from,
)
from lakewright.scan.planner import EARLIEST
from lakewright.scan.stream_offsets import parse_start
from lakewright.storage.factory import other_options, storage_option_names


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadSettings:
    """What a query reads."""

    query_type: str = option(
        "hoodie.datasource.query.type",
        "snapshot",
        parse=parse_choice("snapshot", "read_optimized", "incremental"),
        aliases=("hoodie.datasource.view.type",),
        doc="`snapshot` (all rows as they are), `read_optimized` (base files alone) or "
        "`incremental` (rows that changed in a range of completion times).",
    )
    as_of: str | None = option(
        "as.of.instant",
        None,
        parse=str.strip,
        doc="Time travel: an instant, compared with requested times, or a date and time.",
    )
    begin: str | None = option(
        "hoodie.datasource.read.begin.instanttime",
        None,
        parse=str.strip,
        doc="Where an incremental range begins: a completion time, not part of the range; "
        "`000` or `earliest` is the beginning. 14 digits begin with the commits of that second.",
    )
    end: str | None = option(
        "hoodie.datasource.read.end.instanttime",
        None,
        parse=str.strip,
        doc="Where an incremental range ends: a completion time, part of the range. 14 digits end "
        "before the commits of that second.",
    )
    incremental_format: str = option(
        "hoodie.datasource.query.incremental.format",
        "latest_state",
        parse=parse_choice("latest_state", "cdc"),
        doc="`latest_state` returns each changed row as it is at the end of the range, `cdc` each "
        "change with the row before and after it.",
    )
    full_scan_fallback: bool = option(
        "hoodie.datasource.read.incr.fallback.fulltablescan.enable",
        True,
        parse=parse_bool,
        doc="Whether a range whose files were cleaned may be read from the latest files.",
    )
    skip_compaction: bool = option(
        "hoodie.datasource.read.incr.skip_compact",
        False,
        parse=parse_bool,
        doc="Whether compactions of a merge-on-read table are left out of a range; they add no "
        "rows either way.",
    )
    schema_of_end: bool = option(
        "hoodie.datasource.read.schema.use.end.instanttime",
        False,
        parse=parse_bool,
        doc="Whether an incremental query has the columns that the table had at its end.",
    )
    range_version: int | None = option(
        "hoodie.datasource.read.incr.table.version",
        None,
        parse=int,
        doc="8 or 9, which is no difference: ranges are over completion times. Those of 6, over "
        "requested times, lose what completes late, and are refused.",
    )


READ_KEYS = option_keys(ReadSettings)

# Options that would change what a query returns, with the value that leaves it as it is.
REFUSED_READ_OPTIONS = {
    "hoodie.datasource.merge.type": "payload_combine",
    "hoodie.datasource.read.extract.partition.values.from.path": "false",
    "hoodie.datasource.read.incr.filters": "",
    "hoodie.datasource.read.incr.path.glob": "",
    "hoodie.datasource.read.partition.value.extractor.enabled": "false",
    "hoodie.datasource.read.paths": "",
    "hoodie.datasource.read.table.valued.function.timeline.relation": "false",
    "hoodie.datasource.read.create.filesystem.relation": "false",
    "hoodie.schema.on.read.enable": "false",
}


# Streaming reads.


START = "hoodie.datasource.streaming.startOffset"
NEW_COLUMNS = "lakewright.streaming.new.columns"
_TABLE_VERSION = "hoodie.datasource.read.streaming.table.version"


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamSettings:
    """What a stream reads; keys are in lower case, as Spark passes options."""

    start: str = option(
        START.lower(),
        EARLIEST,
        parse=parse_start,
        doc="Where a new query begins: `earliest`, `latest`, or a completion time, which is not "
        "part of the stream.",
    )
    max_instants: int | None = option(
        "lakewright.streaming.max.instants.per.trigger",
        None,
        parse=at_least(1),
        doc="How many writes a batch has at most.",
    )
    incremental_format: str = option(
        "hoodie.datasource.query.incremental.format",
        "latest_state",
        parse=parse_choice("latest_state", "cdc"),
        doc="`latest_state` returns each changed row as it is at the end of its batch, `cdc` each "
        "change with the row before and after it.",
    )
    full_scan_fallback: bool = option(
        "hoodie.datasource.read.incr.fallback.fulltablescan.enable",
        True,
        parse=parse_bool,
        doc="Whether a batch whose files were cleaned may be read from the latest files.",
    )
    new_columns: str = option(
        NEW_COLUMNS,
        "fail",
        parse=parse_choice("fail", "ignore"),
        doc="Whether a column that the table gets while the query runs ends it, so that no value "
        "of it is lost; started again it continues with the column.",
    )
    query_type: str = option(
        "hoodie.datasource.query.type",
        "incremental",
        parse=parse_choice("incremental", "snapshot"),
        aliases=("hoodie.datasource.view.type",),
        doc="A stream is always incremental.",
    )
    skip_compaction: bool = option(
        "hoodie.datasource.read.incr.skip_compact",
        False,
        parse=parse_bool,
        doc="Compactions add no rows either way.",
    )
    table_version: int | None = option(
        _TABLE_VERSION,
        None,
        parse=int,
        doc="Streams use completion times, as on tables of version 8 and above: 8 or 9.",
    )


_STREAM_KEYS = option_keys(StreamSettings)
_REFUSED_STREAM_OPTIONS = {
    **REFUSED_READ_OPTIONS,
    "hoodie.datasource.read.incr.table.version": "",
    "hoodie.datasource.read.schema.use.end.instanttime": "false",
}
# A stream has no end, and another option sets its start.
_RANGE_OPTIONS = (
    "as.of.instant",
    "hoodie.datasource.read.begin.instanttime",
    "hoodie.datasource.read.end.instanttime",
)


def stream_settings(options: Mapping[str, str]) -> StreamSettings:
    """Check the options of a stream, and return its settings."""
    stream_options = _stream_options(options)
    range_option = next((key for key in _RANGE_OPTIONS if key in stream_options), None)
    if range_option is not None:
        raise InvalidError(
            "a stream goes on from where it begins: give its start",
            option=range_option,
            instead=START,
        )
    ignored_stream_options(options)
    settings = settings_from(StreamSettings, stream_options)
    if settings.table_version is not None and settings.table_version < 8:
        raise UnsupportedError(
            "streams by requested time are not read: a write that completes late is lost in them; "
            "leave the option out",
            option=_TABLE_VERSION,
            value=settings.table_version,
        )
    return settings


def ignored_stream_options(options: Mapping[str, str]) -> list[str]:
    """Return the Hudi options that have no effect on a stream; raise for unknown ones."""
    return ignored_options(
        _stream_options(options),
        _STREAM_KEYS,
        _REFUSED_STREAM_OPTIONS,
        consumed=storage_option_names(),
    )


def _stream_options(options: Mapping[str, str]) -> dict[str, str]:
    """Return the options of the stream, without the table's path and the storage options."""
    lower_options = {key.lower(): value for key, value in other_options(options).items()}
    lower_options.pop("path", None)
    return lower_options
