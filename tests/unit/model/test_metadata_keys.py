"""Keys of the metadata table, beside those that Hudi makes."""

from __future__ import annotations

import pyarrow as pa
import pytest

from lakewright.errors import CorruptError, InvalidError
from lakewright.model.metadata_keys import (
    bloom_filter_keys,
    column_id,
    column_stats_keys,
    expression_partition_keys,
    partition_id,
    partition_path,
    partition_stats_keys,
    secondary_index_keys,
    secondary_index_prefixes,
    secondary_value_prefixes,
    split_secondary_index_keys,
)

# Of Hudi's ColumnIndexID, PartitionIndexID and FileIndexID.
IDS = {
    "v": "hPjzBX1OK5M=",
    ".": "FXThHwelITM=",
    "p1": "qT4Pioac33A=",
    "2024/01/01": "NEj/wCdb1IM=",
    "_hoodie_record_key": "uSJGdDiVr/k=",
    "_hoodie_commit_time": "JBBzUToHtLc=",
    "__partition_stat__": "2CMHrhWVE9w=",
}
FILE_ID = "njZp0ZtnW9VwWP1GZCBdKg=="


@pytest.mark.parametrize(("text", "expected"), IDS.items())
def test_the_id_of_a_column_is_that_of_hudi(text: str, expected: str) -> None:
    assert column_id(text) == expected


def one(keys: pa.Array) -> str:
    (key,) = keys.to_pylist()
    return str(key)


def test_a_key_of_statistics_is_made_of_three_ids() -> None:
    column, partition, file = (pa.array([text]) for text in ("v", "p1", "v"))
    assert one(column_stats_keys(column, partition, file)) == IDS["v"] + IDS["p1"] + FILE_ID
    assert one(partition_stats_keys(column, partition)) == IDS["v"] + IDS["p1"]
    assert one(bloom_filter_keys(partition, file)) == IDS["p1"] + FILE_ID
    assert one(expression_partition_keys(column, partition)) == (
        IDS["v"] + IDS["__partition_stat__"] + IDS["p1"]
    )


def test_the_folder_of_an_unpartitioned_table_is_a_dot() -> None:
    assert (partition_id(""), partition_id("p1")) == (".", "p1")
    assert (partition_path("."), partition_path("p1")) == ("", "p1")
    assert one(partition_stats_keys(pa.array(["v"]), pa.array([""]))) == IDS["v"] + IDS["."]


def test_coded_columns_have_the_same_keys() -> None:
    columns, partitions = pa.array(["v", "v", "w"]), pa.array(["", "p1", "p1"])
    plain = partition_stats_keys(columns, partitions)
    coded = partition_stats_keys(columns.dictionary_encode(), partitions.dictionary_encode())
    assert plain == coded


def test_a_key_of_nothing_is_refused() -> None:
    with pytest.raises(InvalidError):
        partition_stats_keys(pa.array([None], pa.string()), pa.array(["p1"]))
    with pytest.raises(InvalidError):
        secondary_index_keys(pa.array(["a"]), pa.array([None], pa.string()))


# Keys as Hudi's SecondaryIndexKeyUtils makes them.
SECONDARY = {
    "plain": ("s1", "k0", "s1$k0"),
    "a separator in both": ("a$b", "k$1", r"a\$b$k\$1"),
    "a backslash in both": ("a\\", "\\k", "a\\\\$\\\\k"),
    "an escaped separator": ("\\$", "k", r"\\\$$k"),
    "no value": (None, "z1", "\0$z1"),
    "the character that stands for no value": ("\0", "z1", "\\\0$z1"),
    "no text": ("", "", "$"),
    "several lines": ("a\nb", "k\n", "a\nb$k\n"),
    "characters beyond the basic plane": ("😀", "é", "😀$é"),
}


@pytest.mark.parametrize(("value", "key", "expected"), SECONDARY.values(), ids=list(SECONDARY))
def test_a_value_and_its_record_key_are_one_key(value: str | None, key: str, expected: str) -> None:
    values, keys = pa.array([value], pa.string()), pa.array([key])
    made = secondary_index_keys(values, keys)
    assert made.to_pylist() == [expected]
    assert [part.to_pylist() for part in split_secondary_index_keys(made)] == [[value], [key]]
    prefix = secondary_index_prefixes(made)
    assert prefix == secondary_value_prefixes(values)
    assert expected.startswith(prefix.to_pylist()[0])


@pytest.mark.parametrize("key", ["", "a", r"a\$b"])
def test_a_key_without_a_separator_is_damage(key: str) -> None:
    with pytest.raises(CorruptError):
        split_secondary_index_keys(pa.array([key]))
