"""The options of a query, with Hudi's own keys."""

from __future__ import annotations

from dataclasses import dataclass

from lakewright.settings import option, option_keys, parse_bool, parse_choice


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadSettings:
    """What a query gives."""

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
        "`000` or `earliest` is the beginning.",
    )
    end: str | None = option(
        "hoodie.datasource.read.end.instanttime",
        None,
        parse=str.strip,
        doc="Where an incremental range ends: a completion time, part of the range.",
    )
    incremental_format: str = option(
        "hoodie.datasource.query.incremental.format",
        "latest_state",
        parse=parse_choice("latest_state", "cdc"),
        doc="`latest_state` gives each changed row as it is at the end of the range, `cdc` each "
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
