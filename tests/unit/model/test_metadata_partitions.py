"""Partitions of the metadata table and their shards, beside what Hudi makes of them."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from lakewright.errors import CorruptError, InvalidError, UnsupportedError
from lakewright.model.metadata_partitions import (
    IndexVersion,
    MetadataPartitionType,
    Shards,
    by_shard,
    data_partition_of,
    partition_type,
    shard_count,
    shard_file_id,
    shard_numbers,
    shards_by_partition,
    shards_of,
)

FILE_IDS = {
    ("files", 0, None): "files-0000-0",
    ("column_stats", 1, None): "col-stats-0001-0",
    ("partition_stats", 0, None): "partition-stats-0000-0",
    ("bloom_filters", 3, None): "bloom-filters-0003-0",
    ("record_index", 9, None): "record-index-0009-0",
    ("record_index", 12345, None): "record-index-12345-0",
    ("record_index", 0, "2024-01-01"): "record-index-2024%2D01%2D01-0000-0",
    ("record_index", 0, "a_b"): "record-index-a%5Fb-0000-0",
    ("record_index", 0, "c=d"): "record-index-c%3Dd-0000-0",
    ("record_index", 0, "a/b"): "record-index-a%2Fb-0000-0",
    ("record_index", 0, ""): "record-index--0000-0",
    ("record_index", 1, "a%2Db ü"): "record-index-a%252Db ü-0001-0",
    ("secondary_index_idx_s", 1, None): "secondary-index-idx-s-0001-0",
    ("expr_index_ex_ts", 0, None): "expr-index-ex-ts-0000-0",
}


@pytest.mark.parametrize(("shard", "file_id"), FILE_IDS.items(), ids=list(FILE_IDS.values()))
def test_a_shard_has_its_file_id(shard: tuple[str, int, str | None], file_id: str) -> None:
    folder, number, partition = shard
    assert shard_file_id(folder, number, partition) == file_id
    if folder == "record_index":
        assert data_partition_of(file_id) == partition


def test_a_file_id_of_an_old_writer_is_of_no_partition() -> None:
    assert data_partition_of("record-index-0001") is None


def test_only_a_record_index_has_shards_for_partitions() -> None:
    with pytest.raises(InvalidError):
        shard_file_id("files", 0, "p1")


def test_a_folder_says_what_is_in_it() -> None:
    assert partition_type("expr_index_x") is MetadataPartitionType.EXPRESSION_INDEX
    assert partition_type("secondary_index_x") is MetadataPartitionType.SECONDARY_INDEX
    for folder in ("", "files2", ".hoodie", "vector_index_x"):
        with pytest.raises(UnsupportedError):
            partition_type(folder)


# The shards that HoodieTableMetadataUtil.mapRecordKeyToFileGroupIndex says. The hash of the last
# one is -2^31, whose absolute value Java cannot represent.
NUMBERS = {
    ("k0", 2): 1,
    ("k3", 2): 0,
    ("", 10): 0,
    ("a", 10): 7,
    ("polygenelubricants", 10): 8,
    ("polygenelubricants", 1): 0,
}


@pytest.mark.parametrize(("key", "count"), NUMBERS)
def test_a_key_has_its_shard(key: str, count: int) -> None:
    assert shard_numbers(pa.array([key]), count).tolist() == [NUMBERS[key, count]]


def test_keys_without_a_place_are_refused() -> None:
    with pytest.raises(InvalidError):
        shard_numbers(pa.array([None], pa.string()), 1)
    with pytest.raises(InvalidError):
        shard_numbers(pa.array(["a"]), 0)
    with pytest.raises(InvalidError):
        Shards(()).of_keys(pa.array([], pa.string()))


def test_all_keys_of_a_value_are_in_one_shard_since_version_2() -> None:
    shards = Shards(tuple(map(str, range(7))))
    keys = pa.array([f"value$key{number}" for number in range(50)])
    assert len(set(shards.of_secondary_keys(keys, IndexVersion.V2).tolist())) == 1
    assert len(set(shards.of_secondary_keys(keys, IndexVersion.V1).tolist())) == 7


def test_shards_are_numbered_by_their_file_ids() -> None:
    listed = ["record-index-0001-0", "record-index-0000-0", "record-index-0001-0"]
    shards = shards_of(listed)
    assert shards.file_ids == ("record-index-0000-0", "record-index-0001-0")
    assert len(shards) == 2


def test_a_partitioned_index_has_shards_for_each_partition() -> None:
    found = shards_by_partition(
        ["record-index-b-0000-0", "record-index-a%2Db-0001-0", "record-index-a%2Db-0000-0"]
    )
    assert found == {
        "a-b": Shards(("record-index-a%2Db-0000-0", "record-index-a%2Db-0001-0")),
        "b": Shards(("record-index-b-0000-0",)),
    }
    with pytest.raises(CorruptError):
        shards_by_partition(["record-index-0000-0"])


@pytest.mark.parametrize(
    ("records", "least", "most", "expected"),
    [
        (0, 1, 10, 1),
        (5, 10, 10000, 10),
        (10**9, 10, 10000, 89),
        (10**12, 10, 10000, 10000),
        (10**12, 7, 7, 7),
        (16_777_217, 1, 100, 1),
        (12_000_000, 1, 100, 1),
        (22_369_700, 1, 100, 2),
    ],
)
def test_shards_are_estimated(records: int, least: int, most: int, expected: int) -> None:
    assert shard_count(records, least=least, most=most) == expected


def test_impossible_limits_of_shards_are_refused() -> None:
    for least, most in ((0, 1), (3, 2)):
        with pytest.raises(InvalidError):
            shard_count(1, least=least, most=most)


def test_rows_are_grouped_by_shard() -> None:
    grouped = by_shard(np.array([2, 0, 2, 0, 5]))
    assert [(number, rows.tolist()) for number, rows in grouped] == [
        (0, [1, 3]),
        (2, [0, 2]),
        (5, [4]),
    ]
    assert by_shard(np.zeros(0, np.int64)) == []
