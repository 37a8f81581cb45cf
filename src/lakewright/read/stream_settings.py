"""The options of a stream, with Hudi's own keys."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from lakewright.errors import InvalidError, UnsupportedError
from lakewright.read.incremental import EARLIEST
from lakewright.read.offsets import parse_start
from lakewright.read.settings import REFUSED_READ_OPTIONS
from lakewright.settings import (
    at_least,
    ignored_options,
    option,
    option_keys,
    parse_bool,
    parse_choice,
    settings_from,
)
from lakewright.storage.locate import other_options, storage_option_names

START = "hoodie.datasource.streaming.startOffset"
NEW_COLUMNS = "lakewright.streaming.new.columns"
_VERSION = "hoodie.datasource.read.streaming.table.version"


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamSettings:
    """What a stream gives; keys are in lower case, as Spark hands options over."""

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
        doc="`latest_state` gives each changed row as it is at the end of its batch, `cdc` tells "
        "what was done to each row, with the row before and after.",
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
        "of it is passed over; started again it goes on with the column.",
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
        _VERSION,
        None,
        parse=int,
        doc="Streams go by completion times, as on tables of version 8 and above: 8 or 9.",
    )


_KEYS = option_keys(StreamSettings)
_REFUSED = {
    **REFUSED_READ_OPTIONS,
    "hoodie.datasource.read.incr.table.version": "",
    "hoodie.datasource.read.schema.use.end.instanttime": "false",
}
# A stream has no end, and its beginning is told otherwise.
_OF_RANGES = (
    "as.of.instant",
    "hoodie.datasource.read.begin.instanttime",
    "hoodie.datasource.read.end.instanttime",
)


def stream_settings(options: Mapping[str, str]) -> StreamSettings:
    """Check the options of a stream."""
    told = _told(options)
    unfit = next((key for key in _OF_RANGES if key in told), None)
    if unfit is not None:
        raise InvalidError(
            "a stream goes on from where it begins: give its start", option=unfit, instead=START
        )
    without_effect(options)
    settings = settings_from(StreamSettings, told)
    if settings.table_version is not None and settings.table_version < 8:
        raise UnsupportedError(
            "streams by requested time are not read: a write that completes late is lost in them; "
            "leave the option out",
            option=_VERSION,
            value=settings.table_version,
        )
    return settings


def without_effect(options: Mapping[str, str]) -> list[str]:
    """The options of Hudi's among these that do not matter for a stream; refuses unknown ones."""
    return ignored_options(_told(options), _KEYS, _REFUSED, elsewhere=storage_option_names())


def _told(options: Mapping[str, str]) -> dict[str, str]:
    """The options that are about the stream: not the table's path, nor those of its storage."""
    told = {key.lower(): value for key, value in other_options(options).items()}
    told.pop("path", None)
    return told
