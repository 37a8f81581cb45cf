"""The options of a write, with Hudi's keys and, with few exceptions, Hudi's defaults."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from lakewright.errors import UnsupportedError
from lakewright.format.bloom_filter import BloomSettings, BloomType
from lakewright.model.table_config import (
    BUCKET_HASH_FIELDS,
    BUCKETS,
    EVENT_TIME,
    INDEX_TYPE,
    TRACK_EVENT_TIME,
    IndexType,
    csv,
    parse_index_type,
)
from lakewright.options import at_least, option, option_keys, parse_bool, parse_choice, parse_word

__all__ = ["WRITE_KEYS", "IndexType", "SortMode", "WriteSettings"]

_DUPLICATE_POLICIES = ("none", "drop", "fail")


class SortMode(StrEnum):
    """How the rows of a bulk insert are distributed to tasks and sorted."""

    NONE = "NONE"
    GLOBAL_SORT = "GLOBAL_SORT"
    PARTITION_SORT = "PARTITION_SORT"
    PARTITION_PATH_REPARTITION = "PARTITION_PATH_REPARTITION"
    PARTITION_PATH_REPARTITION_AND_SORT = "PARTITION_PATH_REPARTITION_AND_SORT"

    @property
    def keeps_together(self) -> bool:
        """Whether the rows of a partition are contiguous within a task."""
        return self not in (SortMode.NONE, SortMode.PARTITION_PATH_REPARTITION)


def _fraction(text: str) -> float:
    number = float(text)
    if not 0 < number < 1:
        raise ValueError("a number between 0 and 1 expected")
    return number


def _column(text: str) -> str | None:
    return text.strip() or None


def _block_format(text: str) -> str:
    if text.strip().lower() in ("hfile", "hfile_data_block"):
        raise UnsupportedError("log blocks are written as parquet or avro", format=text)
    return parse_choice("parquet", "avro")(text)


def _duplicate_policy(text: str) -> str:
    # The older option only says whether duplicates are dropped.
    policy = {"true": "drop", "false": "none"}.get(text.strip().lower(), text)
    return parse_choice(*_DUPLICATE_POLICIES)(policy)


PARQUET_KEY_FILTER = "lakewright.parquet.key.bloom.filter.enabled"


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteSettings:
    """How a write handles its rows, and the properties of its files."""

    block_speculation: bool = option(
        "hoodie.block.writes.on.speculative.execution",
        True,
        parse=parse_bool,
        doc="Whether writes and services are refused on a Spark session with `spark.speculation`. "
        "With false they run, and the rows are right: files of the slower attempts of a task are "
        "ignored and deleted, but other readers may see them for a moment.",
    )
    combine_before_insert: bool = option(
        "hoodie.combine.before.insert",
        False,
        parse=parse_bool,
        doc="Whether of several incoming rows with one key only the newest is inserted.",
    )
    small_file_limit: int = option(
        "hoodie.parquet.small.file.limit",
        104_857_600,
        parse=at_least(0),
        doc="Base files below this size take new rows; 0: new rows always make new files.",
    )
    max_file_size: int = option(
        "hoodie.parquet.max.file.size",
        125_829_120,
        parse=at_least(1),
        doc="The size at which a base file is full.",
    )
    record_size_estimate: int = option(
        "hoodie.copyonwrite.record.size.estimate",
        1024,
        parse=at_least(1),
        doc="The size of a row as long as no commit shows it.",
    )
    compression: str = option(
        "hoodie.parquet.compression.codec",
        "zstd",
        parse=parse_choice("zstd", "snappy", "gzip", "lz4", "uncompressed"),
        doc="How base files are compressed: zstd, snappy, gzip, lz4 or uncompressed.",
    )
    row_group_size: int = option(
        "hoodie.parquet.block.size",
        125_829_120,
        parse=at_least(1),
        doc="The size of a row group of a base file.",
    )
    page_size: int = option(
        "hoodie.parquet.page.size",
        1_048_576,
        parse=at_least(1),
        doc="The size of a page of a base file.",
    )
    log_block_format: str = option(
        "hoodie.logfile.data.block.format",
        "parquet",
        parse=_block_format,
        doc="How rows are written into log files: parquet or avro.",
    )
    log_max_size: int = option(
        "hoodie.logfile.max.size",
        1_073_741_824,
        parse=at_least(1),
        doc="The size at which a log file is full.",
    )
    log_block_max_size: int = option(
        "hoodie.logfile.data.block.max.size",
        268_435_456,
        parse=at_least(1),
        doc="The size of a block of a log file.",
    )
    bloom_enabled: bool = option(
        "hoodie.parquet.bloom.filter.enabled",
        False,
        parse=parse_bool,
        doc="Whether base files get a bloom filter of their keys also without a BLOOM index. With "
        "one they always do. Hudi's default is true, and costs half a megabyte for each file.",
    )
    parquet_key_filter: bool = option(
        PARQUET_KEY_FILTER,
        False,
        parse=parse_bool,
        doc="Whether base files get a bloom filter of parquet's own for the record key: query "
        "engines use it to skip row groups when they look for single keys.",
    )
    bloom_type: BloomType = option(
        "hoodie.bloom.index.filter.type",
        BloomType.DYNAMIC,
        parse=parse_word(BloomType),
        doc="The filter in base files: SIMPLE, or DYNAMIC_V0, which grows with them.",
    )
    bloom_entries: int = option(
        "hoodie.index.bloom.num_entries",
        60_000,
        parse=at_least(1),
        doc="How many keys a filter, or a row of a dynamic one, is made for.",
    )
    bloom_false_positives: float = option(
        "hoodie.index.bloom.fpp",
        1e-9,
        parse=_fraction,
        doc="How often a filter may be wrong.",
    )
    bloom_max_entries: int = option(
        "hoodie.bloom.index.filter.dynamic.max.entries",
        100_000,
        parse=at_least(1),
        doc="How many keys a dynamic filter grows for.",
    )
    index_type: IndexType = option(
        INDEX_TYPE,
        IndexType.SIMPLE,
        parse=parse_index_type,
        doc="How the file group of a key is found: SIMPLE, BLOOM, BUCKET, or in the whole table "
        "GLOBAL_SIMPLE, GLOBAL_BLOOM. The table remembers what it was created with.",
    )
    buckets: int = option(
        BUCKETS,
        256,
        parse=at_least(1),
        doc="How many buckets a partition has; for the BUCKET index. The table remembers it.",
    )
    bucket_hash_fields: tuple[str, ...] = option(
        BUCKET_HASH_FIELDS,
        (),
        parse=csv,
        doc="The columns of the record key that decide about the bucket; unset: all.",
    )
    update_partition_path: bool = option(
        "hoodie.simple.index.update.partition.path",
        True,
        parse=parse_bool,
        aliases=("hoodie.bloom.index.update.partition.path",),
        doc="With a global index: whether a row moves to the partition of its newest version.",
    )
    sort_mode: SortMode = option(
        "hoodie.bulkinsert.sort.mode",
        SortMode.NONE,
        parse=parse_word(SortMode),
        doc="How a bulk insert spreads and sorts rows: NONE, GLOBAL_SORT, PARTITION_SORT, "
        "PARTITION_PATH_REPARTITION or PARTITION_PATH_REPARTITION_AND_SORT.",
    )
    sort_columns: tuple[str, ...] = option(
        "hoodie.bulkinsert.user.defined.partitioner.sort.columns",
        (),
        parse=csv,
        doc="The columns that a bulk insert sorts by; unset: the record key.",
    )
    parallelism: int = option(
        "hoodie.upsert.shuffle.parallelism",
        0,
        parse=at_least(0),
        aliases=(
            "hoodie.insert.shuffle.parallelism",
            "hoodie.bulkinsert.shuffle.parallelism",
            "hoodie.delete.shuffle.parallelism",
        ),
        doc="How many tasks the incoming rows are spread over; 0: as many as suit.",
    )
    defer_bytes: int = option(
        "lakewright.write.hand.on.bytes",
        33_554_432,
        parse=at_least(0),
        doc="How many bytes of files a task reads or rewrites for few rows itself, before it "
        "defers the work to tasks of its own.",
    )
    max_partition_bytes: int = option(
        "lakewright.write.partition.max.bytes",
        536_870_912,
        parse=at_least(1),
        doc="How many bytes of rows that come into one partition a task compares with the table "
        "by itself. If there are more, the write looks keys up by a join, and no task gets more "
        "than the changes of a file group.",
    )
    allow_missing_columns: bool = option(
        "hoodie.write.set.null.for.missing.columns",
        False,
        parse=parse_bool,
        doc="Whether columns of the table that the rows lack become null; else that is an error.",
    )
    duplicate_policy: str = option(
        "hoodie.datasource.insert.dup.policy",
        "none",
        parse=_duplicate_policy,
        aliases=("hoodie.datasource.write.insert.drop.duplicates",),
        doc="What an insert does with keys that exist: none (the table has them twice), drop or "
        "fail.",
    )
    event_time_field: str | None = option(
        EVENT_TIME,
        None,
        parse=_column,
        doc="The column with the event time: whole seconds or milliseconds, a timestamp or a date. "
        "The table remembers it.",
    )
    track_event_time: bool = option(
        TRACK_EVENT_TIME,
        False,
        parse=parse_bool,
        doc="Whether commits record the least and the greatest event time of each file.",
    )
    overwrite_mode: str = option(
        "hoodie.datasource.overwrite.mode",
        "dynamic",
        parse=parse_choice("dynamic", "static"),
        doc="What an insert overwrite replaces: the partitions of the rows (dynamic) or all.",
    )
    commit_metadata_prefix: str = option(
        "hoodie.datasource.write.commitmeta.key.prefix",
        "_",
        parse=str.strip,
        doc="Options whose name begins like this are stored in the commit.",
    )
    stream_identifier: str = option(
        "hoodie.datasource.write.streaming.checkpoint.identifier",
        "default_single_writer",
        parse=str.strip,
        doc="Identifies a stream among those that write to one table.",
    )
    stream_retries: int = option(
        "hoodie.datasource.write.streaming.retry.count",
        3,
        parse=at_least(0),
        doc="How often a stream tries a batch again.",
    )
    stream_retry_ms: int = option(
        "hoodie.datasource.write.streaming.retry.interval.ms",
        2000,
        parse=at_least(0),
        doc="How long a stream waits before it tries a batch again.",
    )
    stream_ignore_failed: bool = option(
        "hoodie.datasource.write.streaming.ignore.failed.batch",
        False,
        parse=parse_bool,
        doc="Whether a stream continues after a batch that failed: its rows are lost.",
    )

    @property
    def event_time(self) -> str | None:
        """The column whose event times commits record; None if they do not."""
        return self.event_time_field if self.track_event_time else None

    @property
    def bloom(self) -> BloomSettings:
        """The settings of bloom filters in base files."""
        return BloomSettings(
            kind=self.bloom_type,
            entries=self.bloom_entries,
            false_positives=self.bloom_false_positives,
            max_entries=self.bloom_max_entries,
        )


WRITE_KEYS = option_keys(WriteSettings)
