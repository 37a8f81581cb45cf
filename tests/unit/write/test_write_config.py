"""The options of a write become typed settings."""

from __future__ import annotations

from typing import Any

import pytest

from lakewright.errors import InvalidError, UnsupportedError
from lakewright.format.bloom_filter import BloomSettings, BloomType
from lakewright.options import HUDI_OPTIONS, settings_from
from lakewright.write.write_config import WRITE_KEYS, IndexType, SortMode, WriteSettings

PARSED: dict[str, tuple[str, str, str, Any]] = {
    "a yes": ("hoodie.combine.before.insert", "TRUE", "combine_before_insert", True),
    "no small files": ("hoodie.parquet.small.file.limit", "0", "small_file_limit", 0),
    "a size": ("hoodie.parquet.max.file.size", "1048576", "max_file_size", 1 << 20),
    "a codec in any case": ("hoodie.parquet.compression.codec", "Snappy", "compression", "snappy"),
    "a block format": ("hoodie.logfile.data.block.format", "AVRO", "log_block_format", "avro"),
    "a filter": ("hoodie.bloom.index.filter.type", "simple", "bloom_type", BloomType.SIMPLE),
    "an index": ("hoodie.index.type", "bucket", "index_type", IndexType.BUCKET),
    "columns": ("hoodie.bucket.index.hash.field", "a, b", "bucket_hash_fields", ("a", "b")),
    "an older name": (
        "hoodie.bloom.index.update.partition.path",
        "false",
        "update_partition_path",
        False,
    ),
    "a sort mode": (
        "hoodie.bulkinsert.sort.mode",
        "global_sort",
        "sort_mode",
        SortMode.GLOBAL_SORT,
    ),
    "parallelism of deletes": ("hoodie.delete.shuffle.parallelism", "3", "parallelism", 3),
    "a policy": ("hoodie.datasource.insert.dup.policy", "FAIL", "duplicate_policy", "fail"),
    "duplicates dropped": (
        "hoodie.datasource.write.insert.drop.duplicates",
        "true",
        "duplicate_policy",
        "drop",
    ),
    "duplicates not dropped": (
        "hoodie.datasource.write.insert.drop.duplicates",
        "false",
        "duplicate_policy",
        "none",
    ),
    "no event time": ("hoodie.payload.event.time.field", " ", "event_time_field", None),
    "an event time": ("hoodie.payload.event.time.field", "ts", "event_time_field", "ts"),
    "what is overwritten": (
        "hoodie.datasource.overwrite.mode",
        "STATIC",
        "overwrite_mode",
        "static",
    ),
    "no retries": ("hoodie.datasource.write.streaming.retry.count", "0", "stream_retries", 0),
}


@pytest.mark.parametrize(("key", "text", "name", "value"), PARSED.values(), ids=list(PARSED))
def test_an_option_is_parsed(key: str, text: str, name: str, value: Any) -> None:
    settings = settings_from(WriteSettings, {key: text})
    assert getattr(settings, name) == value
    assert type(getattr(settings, name)) is type(value)


WRONG: dict[str, tuple[str, str]] = {
    "a negative limit": ("hoodie.parquet.small.file.limit", "-1"),
    "files of no size": ("hoodie.parquet.max.file.size", "0"),
    "rows of no size": ("hoodie.copyonwrite.record.size.estimate", "0"),
    "row groups of no size": ("hoodie.parquet.block.size", "0"),
    "pages of no size": ("hoodie.parquet.page.size", "-5"),
    "log files of no size": ("hoodie.logfile.max.size", "0"),
    "log blocks of no size": ("hoodie.logfile.data.block.max.size", "0"),
    "no number": ("hoodie.parquet.max.file.size", "120MB"),
    "a codec that real Hudi cannot read": ("hoodie.parquet.compression.codec", "brotli"),
    "a filter for no keys": ("hoodie.index.bloom.num_entries", "0"),
    "a filter that is always right": ("hoodie.index.bloom.fpp", "0"),
    "a filter that is always wrong": ("hoodie.index.bloom.fpp", "1"),
    "a filter that is not a number": ("hoodie.index.bloom.fpp", "nan"),
    "no buckets": ("hoodie.bucket.index.num.buckets", "0"),
    "negative parallelism": ("hoodie.upsert.shuffle.parallelism", "-2"),
    "an unknown index": ("hoodie.index.type", "TREE"),
    "an unknown sort mode": ("hoodie.bulkinsert.sort.mode", "RANDOM"),
    "neither yes nor no": ("hoodie.combine.before.insert", "1"),
    "an unknown policy": ("hoodie.datasource.insert.dup.policy", "keep"),
    "a negative number of retries": ("hoodie.datasource.write.streaming.retry.count", "-1"),
}


@pytest.mark.parametrize(("key", "text"), WRONG.values(), ids=list(WRONG))
def test_nonsense_is_refused_with_its_option(key: str, text: str) -> None:
    with pytest.raises(InvalidError) as raised:
        settings_from(WriteSettings, {key: text})
    assert raised.value.facts["option"] == key


UNSUPPORTED = {
    name: ("hoodie.index.type", name)
    for name in (
        "RECORD_INDEX",
        "RECORD_LEVEL_INDEX",
        "GLOBAL_RECORD_LEVEL_INDEX",
        "INMEMORY",
        "HBASE",
        "FLINK_STATE",
    )
} | {"HFile blocks": ("hoodie.logfile.data.block.format", "hfile")}


@pytest.mark.parametrize(("key", "text"), UNSUPPORTED.values(), ids=list(UNSUPPORTED))
def test_what_only_hudi_has_is_reported_by_its_name(key: str, text: str) -> None:
    with pytest.raises(UnsupportedError, match=text):
        settings_from(WriteSettings, {key: text.lower()} if text.isupper() else {key: text})


def test_filters_follow_the_options() -> None:
    assert WriteSettings().bloom == BloomSettings()
    options = {
        "hoodie.bloom.index.filter.type": "SIMPLE",
        "hoodie.index.bloom.num_entries": "10",
        "hoodie.index.bloom.fpp": "0.01",
        "hoodie.bloom.index.filter.dynamic.max.entries": "20",
    }
    assert settings_from(WriteSettings, options).bloom == BloomSettings(
        BloomType.SIMPLE, 10, 0.01, 20
    )


def test_every_key_is_one_of_hudi_or_has_the_prefix_of_the_library() -> None:
    own = {key for key in WRITE_KEYS if key.startswith("lakewright.")}
    assert sorted(WRITE_KEYS - own - HUDI_OPTIONS) == []
