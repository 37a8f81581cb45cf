"""The options of the source `hudi`, with Hudi's keys."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from lakewright.options import at_least, option, option_keys, parse_bool, parse_word

_PREFIX, _OLD_PREFIX = "hoodie.streamer.", "hoodie.deltastreamer."
_TABLE = "source.hoodieincr."


class MissingCheckpoint(StrEnum):
    """Where to start without a checkpoint."""

    READ_LATEST = "READ_LATEST"
    READ_UPTO_LATEST_COMMIT = "READ_UPTO_LATEST_COMMIT"


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSourceSettings:
    """Which table is read, from where, and how much in a batch."""

    path: str | None = option(
        f"{_PREFIX}{_TABLE}path",
        None,
        parse=str.strip,
        doc="The path of the table to read.",
        aliases=(f"{_OLD_PREFIX}{_TABLE}path",),
    )
    num_instants: int = option(
        f"{_PREFIX}{_TABLE}num_instants",
        5,
        parse=at_least(1),
        doc="How many writes a batch holds at most. Services do not count. A load from the "
        "beginning is not bounded by it.",
        aliases=(f"{_OLD_PREFIX}{_TABLE}num_instants",),
    )
    missing_checkpoint: MissingCheckpoint | None = option(
        f"{_PREFIX}{_TABLE}missing.checkpoint.strategy",
        None,
        parse=parse_word(MissingCheckpoint),
        doc="Where to begin without a checkpoint: `READ_LATEST` (the last write and what follows) "
        "or `READ_UPTO_LATEST_COMMIT` (all rows of the table).",
        aliases=(f"{_OLD_PREFIX}{_TABLE}missing.checkpoint.strategy",),
    )
    read_latest: bool = option(
        f"{_PREFIX}{_TABLE}read_latest_on_missing_ckpt",
        False,
        parse=parse_bool,
        doc="An older way to say `READ_LATEST`; it wins over the strategy.",
        aliases=(f"{_OLD_PREFIX}{_TABLE}read_latest_on_missing_ckpt",),
    )
    drop_meta_fields: bool = option(
        f"{_PREFIX}{_TABLE}drop.all.meta.fields.from.source",
        False,
        parse=parse_bool,
        doc="Whether `_hoodie_partition_path` is left out too; the other meta columns always are.",
        aliases=(f"{_OLD_PREFIX}{_TABLE}drop.all.meta.fields.from.source",),
    )
    fallback: bool = option(
        "hoodie.datasource.read.incr.fallback.fulltablescan.enable",
        True,
        parse=parse_bool,
        doc="Whether writes whose files were cleaned may be read from the latest files.",
    )

    @property
    def beginning(self) -> MissingCheckpoint | None:
        """Where to start without a checkpoint, if the settings say it."""
        return MissingCheckpoint.READ_LATEST if self.read_latest else self.missing_checkpoint


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitSettings:
    """The size of a batch of an initial load."""

    splitter: str | None = option(
        _PREFIX + "snapshotload.query.splitter.class.name",
        None,
        parse=str.strip,
        doc="The splitter of an initial load: a name given to `register_splitter`. Without one, it "
        "is `bounded` if a number of rows or bytes is given.",
        aliases=(_OLD_PREFIX + "snapshotload.query.splitter.class.name",),
    )
    max_rows: int | None = option(
        "lakewright.source.snapshotload.max.rows",
        None,
        parse=at_least(1),
        doc="A batch of a load ends with the write that reaches this many rows.",
    )
    max_bytes: int | None = option(
        "lakewright.source.snapshotload.max.bytes",
        None,
        parse=at_least(1),
        doc="A batch of a load ends with the write that reaches this many bytes.",
    )


MISSING_CHECKPOINT = f"{_PREFIX}{_TABLE}missing.checkpoint.strategy"
PATH = f"{_PREFIX}{_TABLE}path"
TABLE_SOURCE_KEYS = option_keys(TableSourceSettings, SplitSettings)

# Options that would change the rows, each with the only value that is supported.
REFUSED_TABLE_SOURCE_OPTIONS = {
    f"{prefix}{_TABLE}{name}": same
    for prefix in (_PREFIX, _OLD_PREFIX)
    for name, same in {
        "file.format": "parquet",
        "partition.fields": "",
        "partition.extractor.class": "",
        "data.datasource.options": "",
    }.items()
}


def is_for_tables(key: str) -> bool:
    """Whether an option is for a table as a source, known or not."""
    prefixes = (f"{prefix}{_TABLE}" for prefix in (_PREFIX, _OLD_PREFIX))
    return key.startswith(tuple(prefixes))
