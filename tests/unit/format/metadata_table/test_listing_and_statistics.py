"""Records made of columns: listings of files, and statistics of one column in many places."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from lakewright.errors import UnsupportedError
from lakewright.format.metadata_table.column_values import ValueType
from lakewright.format.metadata_table.listing import (
    listed_files,
    listing_records,
    partition_list,
    without_deleted_files,
)
from lakewright.format.metadata_table.record_schema import COLUMN_STATS, FILES
from lakewright.format.metadata_table.statistics import (
    ColumnStatistics,
    file_statistics,
    partition_statistics,
)
from lakewright.model.metadata_keys import ALL_PARTITIONS, column_stats_keys, partition_stats_keys
from lakewright.model.metadata_partitions import IndexVersion
from support.metadata_records import LONG, TEXT, listing, stats

V1, V2 = IndexVersion.V1, IndexVersion.V2


@pytest.mark.parametrize("coded", [False, True])
def test_files_are_grouped_by_partition(coded: bool) -> None:
    partitions = pa.array(["q", "", "q", ""])
    records = listing_records(
        partitions.dictionary_encode() if coded else partitions,
        pa.array(["a", "b", "c", "b"]),
        pa.array([1, 2, 0, 3], pa.int32()),
        pa.array([False, False, True, False]),
    )
    assert records.schema == FILES
    by_key = {row["key"]: row["files"] for row in records.to_pylist()}
    assert by_key == {
        "q": [
            {"name": "a", "size": 1, "is_deleted": False},
            {"name": "c", "size": 0, "is_deleted": True},
        ],
        ".": [
            {"name": "b", "size": 2, "is_deleted": False},
            {"name": "b", "size": 3, "is_deleted": False},
        ],
    }


def test_no_files_are_no_records() -> None:
    empty = pa.array([], pa.string())
    records = listing_records(empty, empty, pa.array([], pa.int64()), pa.array([], pa.bool_()))
    assert records.equals(FILES.empty_table())


def test_partitions_are_listed_in_one_record() -> None:
    assert partition_list(["", "p"], deleted=["q"]).equals(
        listing(**{ALL_PARTITIONS: {".": 0, "p": 0, "q": -1}})
    )
    assert partition_list([]).equals(listing(**{ALL_PARTITIONS: {}}))


def test_a_listing_has_the_partitions_of_the_table() -> None:
    records = pa.concat_tables(
        [
            listing(p={"a": 5, "b": -1}, r={"c": 1}),
            partition_list(["p", "q"], deleted=["r"]),
            listing(**{".": {"a": 5}}),
        ]
    )
    assert listed_files(records) == {"p": {"a": 5}, "q": {}}
    assert listed_files(FILES.empty_table()) == {}


def test_a_base_file_has_no_deleted_files() -> None:
    records = listing(p={"a": 5, "b": -1}, q={"c": -1}, r={"d": 6})
    assert without_deleted_files(records).equals(listing(p={"a": 5}, q={}, r={"d": 6}))
    assert without_deleted_files(FILES.empty_table()).equals(FILES.empty_table())


def test_a_dot_stands_for_the_folder_of_the_table() -> None:
    records = pa.concat_tables([listing(**{".": {"a": 5}}), partition_list([""])])
    assert listed_files(records) == {"": {"a": 5}}


def statistics(
    column: pa.DataType | None, least: list[Any], greatest: list[Any]
) -> ColumnStatistics:
    count = len(least)
    kind = pa.null() if column is None else column
    return ColumnStatistics(
        column="v",
        column_type=column,
        least=pa.array(least, kind),
        greatest=pa.array(greatest, kind),
        values=pa.array([10] * count, pa.int32()),
        nulls=pa.array([1] * count),
        total_sizes=pa.array([100] * count),
        total_uncompressed_sizes=pa.array([200] * count),
    )


def rows(records: pa.Table) -> list[dict[str, Any]]:
    assert records.schema == COLUMN_STATS
    found: list[dict[str, Any]] = records.to_pylist()
    return found


@pytest.mark.parametrize("version", IndexVersion)
def test_a_column_has_a_record_in_each_file(version: IndexVersion) -> None:
    files, partitions = pa.array(["a", "b"]), pa.array(["p", ""])
    keys = column_stats_keys(pa.array(["v", "v"]), partitions, files).to_pylist()
    given = statistics(LONG, [1, None], [2, None])
    assert rows(file_statistics(given, partitions, files, version)) == [
        stats(LONG, 1, 2, version, key=keys[0], file_name="a", type=3),
        stats(LONG, None, None, version, key=keys[1], file_name="b", type=3),
    ]


@pytest.mark.parametrize("is_tight", [True, False])
def test_a_column_has_a_record_in_each_partition(is_tight: bool) -> None:
    partitions = pa.array(["p", ""])
    keys = partition_stats_keys(pa.array(["v", "v"]), partitions).to_pylist()
    given = statistics(TEXT, ["a", "b"], ["c", "d"])
    assert rows(partition_statistics(given, partitions, V2, is_tight=is_tight)) == [
        stats(TEXT, "a", "c", key=keys[0], file_name="p", is_tight_bound=is_tight),
        stats(TEXT, "b", "d", key=keys[1], file_name="", is_tight_bound=is_tight),
    ]


def test_a_log_file_of_deletes_has_values_of_no_type() -> None:
    given = statistics(None, [None], [None])
    place = pa.array(["a"])
    (in_v2,) = rows(file_statistics(given, pa.array(["p"]), place, V2))
    assert (in_v2["value_type"], in_v2["min_wrapper"], in_v2["max_value"]) == (1, 0, b"")
    assert in_v2["value_type"] == ValueType.NULL
    (in_v1,) = rows(file_statistics(given, pa.array(["p"]), place, V1))
    assert in_v1["value_type"] is None


def test_a_column_of_another_type_has_no_statistics() -> None:
    given = statistics(pa.list_(pa.int32()), [None], [None])
    with pytest.raises(UnsupportedError):
        file_statistics(given, pa.array(["p"]), pa.array(["a"]), V2)
